"""One evaluation of a loss with its gradients (a sharpness-aware step needs two), and whose gradients a step finds."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler, OptState
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_, get_total_norm
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT

from landscope.core.errors import StepOrderError


def accumulate_gradients(
    closure: Callable[[], Tensor], params: Sequence[Tensor], scaler: GradScaler | None = None, share: float = 1.0
) -> Tensor:
    """Add the gradients of `share` times the loss, scaled where there is a scaler; the plain loss is returned.

    The closure may clear gradients, which does not lose those it is to add to, but not call `backward`.

    >>> w = torch.tensor(3.0, requires_grad=True)
    >>> accumulate_gradients(lambda: w * w, [w], share=0.5), w.grad
    (tensor(9.), tensor(3.))
    """
    so_far = [param.grad for param in params]
    for param in params:
        param.grad = None
    try:
        with torch.enable_grad():
            loss = closure()
        called_backward = any(param.grad is not None for param in params)
    finally:
        for param, grad in zip(params, so_far, strict=True):
            param.grad = grad
    if called_backward or not isinstance(loss, Tensor) or not loss.requires_grad:
        found = "called backward itself" if called_backward else f"returned {_told(loss)}"
        raise StepOrderError(
            f"expected a closure that returns the loss as a tensor with its graph and leaves backward to this step, which "
            f"weighs and scales the loss first; the closure {found}. Leave out its backward call and return the loss; "
            f"closures that call backward are for `step`."
        )
    with torch.enable_grad():
        weighted = share * loss
        (weighted if scaler is None else scaler.scale(weighted)).backward()
    return loss.detach()


def _told(loss: object) -> str:
    return "a tensor without a graph" if isinstance(loss, Tensor) else f"a {type(loss).__name__}"


def shares(count: int, sizes: Sequence[float] | None) -> list[float]:
    """What each of `count` micro-batches weighs: its part of the sum of `sizes`, which are equal if not given.

    >>> shares(2, [1, 3]), shares(2, None)
    ([0.25, 0.75], [0.5, 0.5])
    """
    weights = [1.0] * count if sizes is None else [float(size) for size in sizes]
    total = sum(weights)
    if not count or len(weights) != count or min(weights) < 0 or total == 0 or not math.isfinite(total):
        raise ValueError(
            f"expected one closure per micro-batch and as many sizes, finite, not negative and not all 0; got {count} "
            f"closures and sizes {weights}. Pass the number of samples in each micro-batch."
        )
    return [weight / total for weight in weights]


def clip_gradients(params: Sequence[Tensor], max_norm: float) -> None:
    """Shorten the gradients, all together, to a length of at most `max_norm`."""
    if not max_norm >= 0:
        raise ValueError(f"max_norm must be a number of at least 0, got {max_norm}; leave it out for no clipping")
    clip_grad_norm_(params, max_norm)


def unscaled_since(scaler: GradScaler, optimizer: Optimizer, first: Tensor) -> bool:
    """Whether the scaler unscaled the gradients that the optimizer has now under its name, and not those of length `first`.

    It remembers that it did, not when: either the first gradients were longer by its scale, or those now are.
    """
    if not scaler.is_enabled() or scaler._per_optimizer_states[id(optimizer)]["stage"] is not OptState.UNSCALED:
        return False
    grads = [param.grad for group in optimizer.param_groups for param in group["params"] if param.grad is not None]
    now, then = float(get_total_norm(grads)), float(first)
    return 0 < now < then < float("inf") if scaler.get_scale() > 1 else 0 < then < now < float("inf")


def without_averaging(model: nn.Module | None) -> AbstractContextManager[None]:
    """Inside, each process of a `DistributedDataParallel` keeps its gradients to itself."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()


# An optimizer around another one: they share parameter groups, state and defaults.
#
# Changing a learning rate here (as schedulers do) changes it there, and a state dict taken here holds the state of the wrapped
# one. The wrapper's own settings lie in the same parameter groups, so that each group may have its own.


NAMED = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


class Around(Optimizer):
    """What a wrapper of `base_optimizer` needs apart from its step, which subclasses define.

    `settings` are the wrapper's own options with their defaults, `base_options` those of the base optimizer. A state dict of
    the base alone can be loaded: its groups get the wrapper's defaults.
    """

    base_optimizer: Optimizer

    def __init__(
        self,
        params: ParamsT,
        base_optimizer: Callable[..., Optimizer],
        settings: Mapping[str, object],
        base_options: Mapping[str, object],
    ) -> None:
        if not callable(base_optimizer):
            raise TypeError(
                f"base_optimizer must be a class of optimizers or a function that makes one from parameters, got "
                f"{type(base_optimizer).__name__}. Write {type(self).__name__}(params, torch.optim.SGD, lr=0.1)."
            )
        base = base_optimizer(params, **base_options)
        if not isinstance(base, Optimizer):
            raise TypeError(f"base_optimizer must make a torch.optim.Optimizer, but made a {type(base).__name__}")
        if any(
            option.default is option.empty
            for option in signature(base.step).parameters.values()
            if option.kind in NAMED
        ):
            raise TypeError(
                f"{type(base).__name__} cannot step without a closure: it evaluates the loss itself, which "
                f"{type(self).__name__} has to do. Choose a base optimizer that steps by the gradients it is given."
            )
        if clash := sorted(set(settings) & set(base.defaults)):
            raise ValueError(
                f"{type(base).__name__} has options of its own called {', '.join(clash)}, which {type(self).__name__} could "
                f"not tell from its own in the parameter groups. Choose another base optimizer."
            )
        self.setting_names = tuple(settings)
        base.defaults.update(settings)
        super().__init__(base.param_groups, base.defaults)
        self.base_optimizer = base
        self.param_groups, self.state = base.param_groups, base.state

    def settings(self, group: Mapping[str, Any]) -> dict[str, Any]:
        """The wrapper's own options in a group, by default where the group does not name them."""
        return {name: group.get(name, self.defaults[name]) for name in self.setting_names}

    def __getstate__(self) -> dict[str, Any]:
        own = {"base_optimizer": self.base_optimizer, "setting_names": self.setting_names}
        return {**super().__getstate__(), **own}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            group.update(self.settings(group))
        # `load_state_dict` ends here with new groups and state: the base shares them
        self.base_optimizer.__setstate__({"state": self.state, "param_groups": self.param_groups})


# Whose gradients a step finds, and whether a backward pass adds to them.
#
# Sharpness-aware steps use two gradients, each of one point only. Closures come in two kinds, those that begin with `zero_grad`
# and those that leave clearing to others, and may find gradients that somebody computed before. PyTorch counts how often a
# tensor was written to, so whether a gradient is still the one that was seen before needs no copy and no waiting for a device;
# only where it was written to are its entries looked at.


Slots = list[Tensor | None]
"""The gradients of some parameters, in their order."""

ROUNDINGS = 64
"""How many roundings of their type two gradients may be apart, relative to their length, and still be called the same. The same
pass again has the same bits, or those of another order of summation; other samples are further away by their noise."""


class Noted:
    """Gradients as they were at one moment: `holds` says whether a tensor is one of them, not written to since.

    >>> w = torch.ones(1, requires_grad=True)
    >>> w.square().backward()
    >>> noted = Noted([w])
    >>> before = noted.holds(w.grad)
    >>> w.square().backward()
    >>> before, noted.holds(w.grad), noted.holds(None)
    (True, False, False)
    """

    def __init__(self, params: Iterable[Tensor] = ()) -> None:
        grads = [param.grad for param in params]
        self._seen = {id(grad): (weakref.ref(grad), grad._version) for grad in grads if grad is not None}

    def holds(self, grad: Tensor | None) -> bool:
        """Whether this is a gradient that was noted, untouched."""
        return grad is not None and self.knows(grad) and self._seen[id(grad)][1] == grad._version

    def knows(self, grad: Tensor) -> bool:
        """Whether this is a gradient that was noted, written to since or not."""
        return id(grad) in self._seen and self._seen[id(grad)][0]() is grad


class Adding:
    """Watches backward passes until `close`: do they add to gradients that are there now, or were they cleared first?

    `torch.autograd.grad` adds to nothing, but its caller may: a gradient that became the sum, bit for bit, counts.

    >>> w = torch.ones(1, requires_grad=True)
    >>> w.grad = torch.ones(1)
    >>> adding = Adding([w])
    >>> w.square().backward()
    >>> adding.added, adding.cleared
    (True, False)
    """

    def __init__(self, params: Iterable[Tensor], empty: bool = False) -> None:
        self._held = [param for param in params if param.grad is not None and param.requires_grad]
        self._empty = empty
        """Whether the gradients that are there are zeros (`empty_slots`)."""
        self._noted = {id(param): Noted([param]) for param in self._held}
        """The gradients that were there, or the sums that began with them."""
        self._sums: dict[int, Tensor] = {}
        """What they would be, had the last gradient that was computed been added."""
        self._found: dict[int, bool] = {}
        self._added: set[int] = set()
        self._hooks = [
            hook
            for param in self._held
            for hook in (
                param.register_hook(partial(self._before, param)),
                param.register_post_accumulate_grad_hook(self._after),
            )
        ]

    @property
    def added(self) -> bool:
        """Whether a parameter's gradient is a sum with the one that was there."""
        for param in self._held:
            self._add_by_hand(param)
        return any(id(param) in self._added and self._remains(param) for param in self._held)

    @property
    def cleared(self) -> bool:
        """Whether every gradient that was there was cleared: before the passes that reach it, or for good."""
        watched = [(param.grad, self._noted[id(param)]) for param in self._held if id(param) in self._noted]
        return not any(noted.holds(grad) or filled([grad]) for grad, noted in watched)

    def _remains(self, param: Tensor) -> bool:
        """Whether the parameter's gradient is the one that was there, or a sum with it; written to, but not with zeros."""
        grad, noted = param.grad, self._noted.get(id(param))
        return grad is not None and noted is not None and noted.knows(grad) and (noted.holds(grad) or filled([grad]))

    def _before(self, param: Tensor, grad: Tensor) -> None:
        """Called with a gradient that may be about to be added to the parameter's."""
        self._add_by_hand(param)
        found = self._remains(param)
        if found and param.grad is not None and param.grad.layout == grad.layout == torch.strided:
            total = param.grad.detach() + grad.detach()
            if not torch.equal(total, grad):
                self._sums[id(param)] = total
            else:  # zeros: those it began with, or written without being counted (`param.grad.data.zero_()`)
                found = self._empty
        self._found[id(param)] = found

    def _after(self, param: Tensor) -> None:
        self._sums.pop(id(param), None)
        if self._found[id(param)]:
            self._add(param)
        else:
            self._noted.pop(id(param), None)

    def _add_by_hand(self, param: Tensor) -> None:
        total = self._sums.pop(id(param), None)
        if total is not None and param.grad is not None and torch.equal(param.grad, total):
            self._add(param)

    def _add(self, param: Tensor) -> None:
        self._noted[id(param)] = Noted([param])
        self._added.add(id(param))

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()


@contextmanager
def empty_slots(params: Iterable[Tensor]) -> Iterator[None]:
    """Inside, the gradients of these parameters start empty, whether and however they are cleared there.

    What had a gradient starts with zeros, so that `zero_grad(set_to_none=False)` leaves zeros as usual; zeros that nobody
    touched are removed at the end.

    >>> w = torch.ones(1, requires_grad=True)
    >>> w.grad = torch.full((1,), 5.0)
    >>> with empty_slots([w]):
    ...     w.square().backward()
    >>> w.grad
    tensor([2.])
    """
    emptied = []
    for param in params:
        if param.grad is not None:
            param.grad = torch.zeros_like(param.grad)
            emptied.append(param)
    zeros = Noted(emptied)
    yield
    for param in emptied:
        if zeros.holds(param.grad):
            param.grad = None


def filled(grads: Sequence[Tensor | None]) -> bool:
    """Whether any entry is not zero."""
    counts = [
        torch.count_nonzero(g) if g.layout == torch.strided else torch.tensor(g._nnz()) for g in grads if g is not None
    ]
    return bool(counts) and bool(torch.stack([count.to(counts[0].device) for count in counts]).any())


def same_gradients(first: Sequence[Tensor | None], second: Sequence[Tensor | None]) -> bool:
    """Whether the two are equal up to the rounding of their types, or float32's where that is coarser; None is zero.

    >>> same_gradients([torch.ones(2), None], [torch.ones(2), torch.zeros(1)]), same_gradients([torch.ones(1)], [None])
    (True, False)
    """
    differences = [_roundings(a, b) for a, b in zip(first, second, strict=True)]
    return _length(differences) <= ROUNDINGS * min(_length(first), _length(second)) < math.inf


def _roundings(first: Tensor | None, second: Tensor | None) -> Tensor | None:
    """The difference, in units of the type's rounding.

    Half precision would round away how gradients of large micro-batches differ, so almost all of its bits have to agree.
    """
    terms = [
        sign * grad.to(torch.promote_types(grad.dtype, torch.float64))
        for grad, sign in ((first, 1), (second, -1))
        if grad is not None
    ]
    rounding = min(torch.finfo(grad.dtype).eps for grad in (first, second, torch.empty(0)) if grad is not None)
    return sum(terms[1:], start=terms[0]) / rounding if terms else None


def _length(grads: Sequence[Tensor | None]) -> float:
    squares = [
        torch.linalg.vector_norm(grad, dtype=torch.promote_types(grad.dtype, torch.float64)).square()
        for grad in grads
        if grad is not None
    ]
    return math.sqrt(float(sum(square.to(squares[0].device) for square in squares))) if squares else 0.0
