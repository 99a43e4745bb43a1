"""Whose gradients a step finds, and whether a backward pass adds to them.

Sharpness-aware steps use two gradients, each of one point only. Closures come in two kinds, those that begin with `zero_grad`
and those that leave clearing to others, and may find gradients that somebody computed before. PyTorch counts how often a
tensor was written to, so whether a gradient is still the one that was seen before needs no copy and no waiting for a device;
only where it was written to are its entries looked at.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

__all__ = ["Adding", "Noted", "Slots", "empty_slots", "filled", "same_gradients"]

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

    def __init__(self, params: Iterable[Tensor]) -> None:
        self._held = [param for param in params if param.grad is not None and param.requires_grad]
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
        self._found[id(param)] = self._remains(param)
        if self._found[id(param)] and param.grad is not None and param.grad.layout == grad.layout == torch.strided:
            total = param.grad.detach() + grad.detach()
            if not torch.equal(total, grad):
                self._sums[id(param)] = total

    def _after(self, param: Tensor) -> None:
        """Called when it was."""
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
        """Stop watching."""
        for hook in self._hooks:
            hook.remove()


@contextmanager
def empty_slots(params: Iterable[Tensor]) -> Iterator[None]:
    """Inside, the gradients of these parameters begin at nothing, whoever clears them there, in whichever way, or does not.

    What had a gradient begins with zeros, so that `zero_grad(set_to_none=False)` leaves zeros as ever; zeros that nobody
    touched are taken away at the end.

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
