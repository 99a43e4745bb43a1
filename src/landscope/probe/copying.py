"""A copy of a model whose functions belong to the copy too.

`copy.deepcopy` takes functions as they are. A `forward` that was replaced on the instance, a hook or an activation kept as
a lambda keeps calling the layers of the model that it was made for, through its closure, its defaults or a global name:
the copy would compute with weights that are not its own. Here such functions are made again, with every reference to a part
of the original replaced by its copy. What refers to no part of the model is shared, not copied.

A loss is treated the same way: it may read the model that it was written for (an auxiliary term that a forward pass keeps, a
fixed reference), and modules of its own may have a state that changes from call to call.
"""

from __future__ import annotations

import copy
import functools
import types
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from landscope.core.memory import available_bytes

__all__ = ["behind", "copied", "copied_with"]

MOST_OBJECTS = 20_000
"""How far references are followed from one function: what lies further is not part of a forward pass."""


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
    twin = copy.deepcopy(model, memo)
    known = set(map(id, own))
    for found in _reached(loss):
        if isinstance(found, nn.Module) and id(found) not in known:
            known.update(map(id, found.modules()))
            if _copy_too(found, memo):
                own += found.modules()
    parts = {id(part) for module in own for part in (module, *_own_tensors(module))}
    rebinding = _Rebinding(memo, parts)
    rebinding.walk(twin)
    return twin, rebinding.bound(loss)


def _copy_too(module: nn.Module, memo: dict[int, Any]) -> bool:
    """Add a copy of a module to the memo; whether there is one now."""
    held = [tensor for part in module.modules() for tensor in _own_tensors(part) if id(tensor) not in memo]
    if held and sum(t.numel() * t.element_size() for t in held) > available_bytes(held[0].device) // 4:
        return False
    trial = dict(memo)
    trial.pop(id(memo), None)
    try:
        with torch.enable_grad():
            for part in module.modules():
                for value in vars(part).values():  # with the graph behind it, which shows what it was computed from
                    if isinstance(value, Tensor) and not value.is_leaf:
                        trial.setdefault(id(value), value.clone())
        copy.deepcopy(module, trial)
    except Exception:  # it is shared, and later checks see whether it changes
        return False
    memo.setdefault(id(memo), []).append(trial.pop(id(trial), None))
    memo.update(trial)
    return True


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
        self.fresh = {id(value) for key, value in memo.items() if key != id(memo)}
        self.made: dict[int, Any] = {}
        self.walked: set[int] = set()

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
            eager = vars(value).get(
                "_torchdynamo_orig_callable"
            )  # a compiled function has guards on what it closed over
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


def _reached(value: Any) -> Iterator[Any]:
    """A value and what it refers to, directly or not, the nearest first; the first `MOST_OBJECTS` of it."""
    queue, seen = deque([value]), {id(value)}
    while queue:
        found = queue.popleft()
        yield found
        for item in behind(found):
            if len(seen) >= MOST_OBJECTS:
                break
            if id(item) not in seen:
                seen.add(id(item))
                queue.append(item)


def behind(value: Any) -> Iterator[Any]:
    """What a value refers to directly, as far as a forward pass may use it."""
    if isinstance(value, types.FunctionType):
        for cell in value.__closure__ or ():
            try:
                yield cell.cell_contents
            except ValueError:
                continue
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
    elif not isinstance(value, (type, types.ModuleType, Tensor)) and _can_be_made_anew(value):
        yield from _attributes(value).values()


def _can_be_made_anew(value: Any) -> bool:
    """Whether an object is its class and its attributes, nothing else."""
    kind = type(value)
    if kind is types.SimpleNamespace:
        return True
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
