"""Whose gradients a step finds, and whether a backward pass adds to them.

Sharpness-aware steps use two gradients, each of one point only. Closures come in two kinds, those that begin with `zero_grad`
and those that leave clearing to others, and may find gradients that somebody computed before. PyTorch counts how often a
tensor was written to, so whether a gradient is still the one that was seen before needs no copy and no waiting for a device.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor

__all__ = ["Adding", "Noted", "Slots", "empty_slots", "filled", "same_direction"]

Slots = list[Tensor | None]
"""The gradients of some parameters, in their order."""

SAME = 1e-2
"""How far apart two unit vectors are called one. The same pass again in another order of summation differs by less than a
rounding to bfloat16 (2⁻⁸), gradients of different samples by their noise."""


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
        if grad is None or id(grad) not in self._seen:
            return False
        alive, version = self._seen[id(grad)]
        return alive() is grad and version == grad._version


class Adding:
    """Watches the next backward pass until `close`: does it add to gradients that are there now, or were they cleared first?

    >>> w = torch.ones(1, requires_grad=True)
    >>> w.grad = torch.ones(1)
    >>> adding = Adding([w])
    >>> w.square().backward()
    >>> adding.added, adding.cleared
    (True, False)
    """

    def __init__(self, params: Iterable[Tensor]) -> None:
        self.added = self.cleared = False
        held = [param for param in params if param.grad is not None and param.requires_grad]
        noted = Noted(held)
        self._unseen = {id(param) for param in held}
        self._hooks = [param.register_hook(partial(self._look, param, noted)) for param in held]

    def _look(self, param: Tensor, noted: Noted, _: Tensor) -> None:
        """Called just before a gradient is added to the parameter's."""
        if id(param) in self._unseen:
            self._unseen.discard(id(param))
            if noted.holds(param.grad):
                self.added = True
            else:
                self.cleared = True

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


def same_direction(first: Sequence[Tensor | None], second: Sequence[Tensor | None]) -> bool:
    """Whether one is a positive multiple of the other, as clipping and scaling make them; None is zero.

    >>> same_direction([torch.ones(2), None], [torch.full((2,), 3.0), torch.zeros(1)]), same_direction([torch.ones(1)], [None])
    (True, False)
    """
    lengths = [_length(grads) for grads in (first, second)]
    if not all(math.isfinite(length) and length > 0 for length in lengths):
        return False
    return _length([_difference(a, b, lengths) for a, b in zip(first, second, strict=True)]) <= SAME


def _difference(first: Tensor | None, second: Tensor | None, lengths: Sequence[float]) -> Tensor | None:
    units = [
        grad.to(torch.promote_types(grad.dtype, torch.float64)) * (sign / length)
        for grad, length, sign in zip((first, second), lengths, (1, -1), strict=True)
        if grad is not None
    ]
    return sum(units[1:], start=units[0]) if units else None


def _length(grads: Sequence[Tensor | None]) -> float:
    squares = [
        torch.linalg.vector_norm(grad, dtype=torch.promote_types(grad.dtype, torch.float64)).square()
        for grad in grads
        if grad is not None
    ]
    return math.sqrt(float(sum(square.to(squares[0].device) for square in squares))) if squares else 0.0
