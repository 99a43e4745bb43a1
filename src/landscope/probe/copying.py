"""A copy of a model whose functions belong to the copy too.

`copy.deepcopy` takes functions as they are. A `forward` that was replaced on the instance, a hook or an activation kept as
a lambda keeps calling the layers of the model that it was made for, through its closure, its defaults or a global name:
the copy would compute with weights that are not its own. Here such functions are made again, with every reference to a part
of the original replaced by its copy. What refers to no part of the model is shared, not copied.

What such a function remembers between calls (a dictionary in its closure) is the copy's own: what the copy puts there is made
of its tensors, and the original would read it.

A loss is treated the same way: it may read the model that it was written for (an auxiliary term that a forward pass keeps, a
fixed reference), and modules of its own may have a state that changes from call to call.
"""

from __future__ import annotations

import copy
import functools
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from landscope.core.memory import available_bytes

MOST_OBJECTS = 20_000
"""How far references are followed from one function: what lies further is not part of a forward pass."""
MOST_TO_COPY = 1_000_000
"""How many objects of a model are searched for one that cannot be copied."""
MEMORIES = (dict, list, set, defaultdict, OrderedDict, weakref.WeakKeyDictionary, weakref.WeakValueDictionary)
"""What functions remember things in between calls."""


def copied(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """A deep copy of a module; `memo` holds what is there already, as for `copy.deepcopy`.

    >>> net = nn.Linear(2, 2)
    >>> old = net.forward
    >>> net.forward = lambda x: 2 * old(x)
    >>> twin = copied(net)
    >>> _ = nn.init.zeros_(net.weight), nn.init.zeros_(net.bias)
    >>> bool(twin(torch.ones(1, 2)).any())
    True
    """
    return copied_with(model, None, memo)[0]


def copied_with(
    model: nn.Module, loss: Callable[..., Tensor] | None, memo: dict[int, Any] | None = None
) -> tuple[nn.Module, Any]:
    """A deep copy of a module, and a loss that refers to the copy wherever it referred to the module.

    Modules that the loss refers to besides are copied too, where they can be and fit into memory.

    >>> net, criterion = nn.Linear(2, 2), nn.MSELoss()
    >>> twin, loss = copied_with(net, lambda z, y: criterion(z, y) + net.penalty)
    >>> twin.penalty = 3.0
    >>> loss(torch.ones(1), torch.ones(1))
    tensor(3.)
    """
    memo = {} if memo is None else memo
    own = list(model.modules())
    for module in own:
        for value in vars(module).values():  # what a pass left behind (its last outputs) may have a graph behind it
            if isinstance(value, Tensor) and not value.is_leaf:
                memo.setdefault(id(value), value.detach().clone())
    try:
        twin = _deep_copy(model, memo)
    except Exception:
        _share_what_cannot_be_copied(model, memo)
        twin = _deep_copy(model, memo)
    _refuse_a_shared_copy(model, twin)
    known = set(map(id, own))
    for found in _reached(loss):
        if isinstance(found, nn.Module) and id(found) not in known:
            known.update(map(id, found.modules()))
            if _copy_too(found, memo):
                own += found.modules()
    parts = {id(part) for module in own for part in (module, *_own_tensors(module))}
    rebinding = _Rebinding(memo, parts)
    rebinding.keep_memories_apart(twin, loss)
    rebinding.walk(twin)
    return twin, rebinding.bound(loss)


def _deep_copy(module: nn.Module, memo: dict[int, Any]) -> nn.Module:
    """`copy.deepcopy` that leaves the memo as it was where it fails."""
    trial = {key: value for key, value in memo.items() if key != id(memo)}
    twin = copy.deepcopy(module, trial)
    memo.setdefault(id(memo), []).append(trial.pop(id(trial), None))  # alive as long as the memo is
    memo.update(trial)
    return twin


def _share_what_cannot_be_copied(model: nn.Module, memo: dict[int, Any]) -> None:
    """Add to the memo what stops a copy: locks, open files and the like are shared, and tensors with a graph are cut off it."""
    for found in _reached(model, MOST_TO_COPY):
        if id(found) in memo or isinstance(found, types.GeneratorType):  # whoever shared that would advance it
            continue
        if isinstance(found, Tensor):
            if not found.is_leaf:
                memo[id(found)] = found.detach().clone()
            continue
        try:
            copy.copy(found)
        except Exception:
            memo[id(found)] = found


def _refuse_a_shared_copy(model: nn.Module, twin: nn.Module) -> None:
    """A `__deepcopy__` that hands out the module itself, or one with its tensors: to measure that would change the original."""
    theirs = {id(module) for module in model.modules()} | {place(tensor) for tensor in _all_tensors(model)}
    for name, module in twin.named_modules():
        if id(module) in theirs or any(place(tensor) in theirs for tensor in _own_tensors(module) if place(tensor)):
            raise TypeError(
                f"the copy of {name or 'the model'} ({type(module).__name__}) still has the original's tensors"
            )


def place(tensor: Tensor) -> int | None:
    """Where the values of a tensor lie; `None` where they lie in no one place."""
    try:
        return tensor.untyped_storage().data_ptr() or None
    except (RuntimeError, NotImplementedError):
        return None


def _copy_too(module: nn.Module, memo: dict[int, Any]) -> bool:
    """Add a copy of a module to the memo; whether there is one now."""
    held = [tensor for part in module.modules() for tensor in _own_tensors(part) if id(tensor) not in memo]
    if held and sum(t.numel() * t.element_size() for t in held) > available_bytes(held[0].device) // 4:
        return False
    try:
        with torch.enable_grad():
            for part in module.modules():
                for value in vars(part).values():  # with the graph behind it, which shows what it was computed from
                    if isinstance(value, Tensor) and not value.is_leaf:
                        memo.setdefault(id(value), value.clone())
        _deep_copy(module, memo)
    except Exception:  # it is shared, and later checks see whether it changes
        return False
    return True


def _all_tensors(model: nn.Module) -> Iterator[Tensor]:
    for module in model.modules():
        yield from _own_tensors(module)


def _own_tensors(module: nn.Module) -> Iterator[Tensor]:
    for tensor in (*module._parameters.values(), *module._buffers.values()):
        if tensor is not None:
            yield tensor


class _Rebinding:
    """Functions of a copied object graph, rebound from the original to the copy.

    `memo` is the one of `copy.deepcopy`, from the ids of what was copied to the copies; `parts` are the ids of the original's
    modules and tensors.
    """

    def __init__(self, memo: dict[int, Any], parts: set[int]) -> None:
        self.memo, self.parts = memo, parts
        self.fresh = {id(value) for key, value in memo.items() if key not in (id(memo), id(value))}
        self.made: dict[int, Any] = {}
        self.walked: set[int] = set()

    def keep_memories_apart(self, twin: nn.Module, loss: Any) -> None:
        """Copy the containers in which functions that will be rebuilt remember something; all that use them are rebuilt then."""
        found = (each for root in (twin, loss) for each in _reached(root))
        functions = {id(each): each for each in found if isinstance(each, types.FunctionType)}.values()
        known = -1
        while known < len(self.made):  # a container in a second function may be the first's
            known = len(self.made)
            for function in filter(self._reaches, functions):
                for kept in _cells(function):
                    if type(kept) in MEMORIES and id(kept) not in self.parts and not self._reaches(kept):
                        self.made[id(kept)] = copy.copy(kept)
                        self.parts.add(id(kept))

    def walk(self, value: Any) -> Any:
        """What is in the copy already: functions in it are replaced in place; what is returned stands for the value."""
        if isinstance(value, (types.FunctionType, weakref.ReferenceType)):
            return self.bound(value)
        if isinstance(value, types.MethodType):
            function = self.bound(value.__func__)
            return value if function is value.__func__ else types.MethodType(function, value.__self__)
        if isinstance(value, tuple):
            return _tuple_like(value, [self.walk(item) for item in value])
        if id(value) in self.walked or id(value) not in self.fresh:
            return value
        self.walked.add(id(value))
        if isinstance(value, functools.partial):
            state = self.walk(value.func), tuple(map(self.walk, value.args)), value.keywords, vars(value)
            value.__setstate__(state)  # type: ignore[attr-defined]
            self._walk_items(value.keywords)
            self._walk_items(vars(value))
        elif isinstance(value, dict):
            self._walk_items(value)
        elif isinstance(value, list):
            value[:] = map(self.walk, value)
        elif not isinstance(value, (type, types.ModuleType, Tensor)):
            self._walk_items(_attributes(value))
        return value

    def _walk_items(self, items: dict[Any, Any]) -> None:
        for key, value in list(items.items()):
            new = self.walk(value)
            if new is not value:
                items[key] = new

    def bound(self, value: Any) -> Any:
        """What stands for a value of the original's side: the copy of a part, or the same thing rebuilt around copies."""
        if id(value) in self.memo and id(value) not in self.fresh:
            return self.walk(self.memo[id(value)])
        if id(value) in self.made:
            return self.made[id(value)]
        if not self._reaches(value):
            return value
        if isinstance(value, types.FunctionType):
            eager = vars(value).get("_torchdynamo_orig_callable")  # compiled, with guards on what it closed over
            return self._function(value) if eager is None else self.bound(eager)
        if isinstance(value, types.MethodType):
            return types.MethodType(self.bound(value.__func__), self.bound(value.__self__))
        if isinstance(value, weakref.ReferenceType):
            return weakref.ref(self.bound(value()))
        if isinstance(value, functools.partial):
            part = functools.partial(self.bound(value.func), *map(self.bound, value.args))
            part.__setstate__((part.func, part.args, self._items(value.keywords), self._items(vars(value))))  # type: ignore[attr-defined]
            return part
        if isinstance(value, dict):
            made = self.made[id(value)] = copy.copy(value)
            made.update(self._items(value))
            return made
        if isinstance(value, list):
            items = self.made[id(value)] = copy.copy(value)
            items[:] = map(self.bound, value)
            return items
        if isinstance(value, (set, frozenset)):
            return type(value)(map(self.bound, value))
        if isinstance(value, tuple):
            return _tuple_like(value, [self.bound(item) for item in value])
        kind: Any = type(value)
        made = self.made[id(value)] = kind.__new__(kind)
        vars(made).update(self._items(vars(value)))
        return made

    def _items(self, items: dict[Any, Any]) -> dict[Any, Any]:
        return {key: self.bound(value) for key, value in items.items()}

    def _function(self, function: types.FunctionType) -> types.FunctionType:
        named = {name: found for name, found in _globals(function) if self._reaches(found)}
        scope = dict(function.__globals__) if named else function.__globals__
        cells = tuple(types.CellType() for _ in function.__closure__ or ())
        made = types.FunctionType(function.__code__, scope, function.__name__, None, cells or None)
        self.made[id(function)] = made  # before its contents: a function may refer to itself
        for old, new in zip(function.__closure__ or (), cells, strict=True):
            try:
                new.cell_contents = self.bound(old.cell_contents)
            except ValueError:  # an empty cell
                continue
        scope.update(self._items(named))
        made.__defaults__ = self.bound(function.__defaults__)
        made.__kwdefaults__ = self.bound(function.__kwdefaults__)
        made.__qualname__, made.__module__, made.__doc__ = function.__qualname__, function.__module__, function.__doc__
        vars(made).update(self._items(vars(function)))
        return made

    def _reaches(self, value: Any) -> bool:
        """Whether a part of the original can be found behind a value."""
        return any(id(found) in self.parts for found in _reached(value))


def _tuple_like(value: tuple[Any, ...], items: list[Any]) -> tuple[Any, ...]:
    if all(new is old for new, old in zip(items, value, strict=True)):
        return value
    return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)


def _attributes(value: Any) -> dict[Any, Any]:
    """The attributes of an object whose state is its `__dict__`."""
    return getattr(value, "__dict__", None) or {}


def _reached(value: Any, most: int = MOST_OBJECTS) -> Iterator[Any]:
    """A value and what it refers to, directly or not, the nearest first; the first `most` of it."""
    queue, seen = deque([value]), {id(value)}
    while queue:
        found = queue.popleft()
        yield found
        for item in behind(found):
            if len(seen) >= most:
                break
            if id(item) not in seen:
                seen.add(id(item))
                queue.append(item)


def behind(value: Any) -> Iterator[Any]:
    """What a value refers to directly, as far as a forward pass may use it."""
    if isinstance(value, types.FunctionType):
        yield from _cells(value)
        yield from (value.__defaults__ or ())
        yield from (value.__kwdefaults__ or {}).values()
        yield from vars(value).values()
        yield from (found for _, found in _globals(value))
    elif isinstance(value, types.MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, weakref.ReferenceType):
        yield value()
    elif isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values(), *vars(value).values())
    elif isinstance(value, dict):
        yield from value.values()
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from value
    elif not isinstance(value, (type, types.ModuleType, Tensor)) and _can_be_rebuilt(value):
        yield from _attributes(value).values()


def _cells(function: types.FunctionType) -> Iterator[Any]:
    """What a function has in its closure."""
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # empty
            continue


def _can_be_rebuilt(value: Any) -> bool:
    """Whether an object is its class and its attributes, nothing else."""
    kind = type(value)
    if kind is types.SimpleNamespace:
        return True
    return (
        kind.__flags__ & (1 << 9) != 0  # a class written in Python
        and all(base is object or "__new__" not in vars(base) for base in kind.__mro__)
        and not any(vars(base).get("__slots__") for base in kind.__mro__)
        and hasattr(value, "__dict__")
    )


def _globals(function: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """The global functions, modules, tensors and containers that a function names, and objects of its own module's classes.

    A library's own are not the user's.
    """
    if (function.__module__ or "").partition(".")[0] == torch.__name__:
        return
    kinds = (types.FunctionType, types.MethodType, functools.partial, nn.Module, Tensor, dict, list, tuple)
    for name in _names(function.__code__):
        found = function.__globals__.get(name)
        if isinstance(found, kinds) or type(found).__module__ == function.__module__:
            yield name, found


def _names(code: types.CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _names(constant)
