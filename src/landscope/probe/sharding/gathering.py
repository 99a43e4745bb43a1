"""Whole weights from the parts that processes hold, and back: two linear maps that are each other's derivative.

G: parts ↦ whole weights on every process,    Gᵀ: a gradient on every process ↦ the part of their sum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.graph import saved_tensors_hooks

from landscope.core.distributed import processes
from landscope.probe.copying import place


@dataclass(frozen=True)
class Part:
    """How one parameter of a shape is shared out: process r holds the numbers from `ends[r]` to `ends[r + 1]` of it."""

    shape: torch.Size
    ends: tuple[int, ...]

    @property
    def sizes(self) -> list[int]:
        """How many numbers each process holds."""
        return [stop - start for start, stop in pairwise(self.ends)]

    def row(self, number: int, rank: int) -> slice:
        """Where a row of the parameter lies in what a process holds of it.

        >>> Part(torch.Size([3, 2]), (0, 4, 6)).row(2, 1), Part(torch.Size([3, 2]), (0, 4, 6)).row(2, 0)
        (slice(0, 2, None), slice(4, 4, None))
        """
        width, (first, last) = self.shape[1:].numel(), self.ends[rank : rank + 2]
        start, stop = (min(max(edge * width, first), last) - first for edge in (number, number + 1))
        return slice(start, stop)


_GATHER = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # before torch 2.13
_SCATTER = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

_SLICE, _SUM, _NOTHING = "slice", "sum", "nothing"
_gives = _SLICE
"""What a process adds where gradients are summed: its own, or nothing; where all look at the same rows nothing is summed."""


@contextmanager
def summing(idle: bool = False) -> Iterator[None]:
    """Inside, every process works on rows of its own, or, where `idle`, only takes part in the others' work."""
    global _gives  # backward passes on a GPU run in threads of torch's, which see no context of this one
    before, _gives = _gives, _NOTHING if idle else _SUM
    try:
        yield
    finally:
        _gives = before


def gathered(parts: Sequence[Part], held: Sequence[Tensor]) -> list[Tensor]:
    """Whole parameters from what this process holds of each; those without derivatives by themselves."""
    wholes: dict[int, Tensor] = {}
    for moving in (True, False):
        some = [i for i, tensor in enumerate(held) if _moves(tensor) is moving]
        if some:
            layout, values = tuple(parts[i] for i in some), [held[i] for i in some]
            found = _Gather.apply(layout, *values)
            _remember(found, _Again(layout, [_plain(value) for value in values]))
            wholes |= dict(zip(some, found, strict=True))
    return [wholes[i] for i in range(len(held))]


def _moves(tensor: Tensor) -> bool:
    """Whether a derivative may be asked for."""
    wrapped: bool = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
    return wrapped or tensor.requires_grad or forward_ad.unpack_dual(tensor).tangent is not None


def _plain(tensor: Tensor) -> Tensor:
    """The values alone."""
    while torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        tensor = torch._C._functorch.get_unwrapped(tensor)
    return tensor.detach()


def _all_gather(parts: Sequence[Part], held: Sequence[Tensor]) -> tuple[Tensor, ...]:
    width = max(map(sum, zip(*(part.sizes for part in parts), strict=True)))
    mine = held[0].new_zeros(width)
    torch.cat([tensor.reshape(-1) for tensor in held], out=mine[: sum(tensor.numel() for tensor in held)])
    everything = mine.new_empty(processes() * width)
    _GATHER(everything, mine)
    rows = [
        row.split([*sizes, width - sum(sizes)])
        for row, sizes in zip(everything.view(-1, width), zip(*(p.sizes for p in parts), strict=True), strict=True)
    ]
    return tuple(torch.cat([row[i] for row in rows]).view(part.shape) for i, part in enumerate(parts))


def _reduce_scatter(parts: Sequence[Part], wholes: Sequence[Tensor]) -> tuple[Tensor, ...]:
    rank, flat = dist.get_rank(), [whole.reshape(-1) for whole in wholes]
    if _gives == _SLICE:
        return tuple(t[p.ends[rank] : p.ends[rank + 1]].clone() for p, t in zip(parts, flat, strict=True))
    width = max(map(sum, zip(*(part.sizes for part in parts), strict=True)))
    given, mine = flat[0].new_zeros(processes(), width), flat[0].new_empty(width)
    if _gives == _SUM:
        for r, row in enumerate(given):
            some = [t[p.ends[r] : p.ends[r + 1]] for p, t in zip(parts, flat, strict=True)]
            torch.cat(some, out=row[: sum(t.numel() for t in some)])
    _SCATTER(mine, given.view(-1))
    sizes = [part.sizes[rank] for part in parts]
    return tuple(part.clone() for part in mine.split([*sizes, width - sum(sizes)])[:-1])


class _Gather(torch.autograd.Function):
    """Parts ↦ whole parameters; the derivative is the same map, its transpose adds up over processes."""

    @staticmethod
    def forward(layout: tuple[Part, ...], *held: Tensor) -> tuple[Tensor, ...]:
        return _all_gather(layout, held)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: object) -> None:
        ctx.layout = inputs[0]
        ctx.like = [(t.shape, t.dtype, t.device) for t in inputs[1:]]

    @staticmethod
    def backward(ctx: Any, *wholes: Tensor) -> tuple[Any, ...]:
        return None, *_Scatter.apply(ctx.layout, *wholes)

    @staticmethod
    def jvp(ctx: Any, _: None, *held: Tensor | None) -> tuple[Tensor, ...]:
        return _Gather.apply(ctx.layout, *_zeros_for_none(ctx, held))


class _Scatter(torch.autograd.Function):
    """A gradient of whole parameters on every process ↦ the part of their sum."""

    @staticmethod
    def forward(layout: tuple[Part, ...], *wholes: Tensor) -> tuple[Tensor, ...]:
        return _reduce_scatter(layout, wholes)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: object) -> None:
        ctx.layout = inputs[0]
        ctx.like = [(t.shape, t.dtype, t.device) for t in inputs[1:]]

    @staticmethod
    def backward(ctx: Any, *held: Tensor) -> tuple[Any, ...]:
        return None, *_Gather.apply(ctx.layout, *held)

    @staticmethod
    def jvp(ctx: Any, _: None, *wholes: Tensor | None) -> tuple[Tensor, ...]:
        return _Scatter.apply(ctx.layout, *_zeros_for_none(ctx, wholes))


def _zeros_for_none(ctx: Any, given: Sequence[Tensor | None]) -> list[Tensor]:
    return [
        torch.zeros(shape, dtype=dtype, device=device) if tensor is None else tensor
        for tensor, (shape, dtype, device) in zip(given, ctx.like, strict=True)
    ]


# Weights that a forward pass keeps for its backward pass are dropped, and gathered again.


@dataclass(frozen=True, eq=False)
class _Again:
    """What whole parameters can be made of once more."""

    layout: tuple[Part, ...]
    held: list[Tensor]


@dataclass(frozen=True)
class _Dropped:
    """A whole parameter, or a view of one, that is not kept."""

    of: _Again
    index: int
    view: tuple[torch.Size, tuple[int, ...], int]


_whole: dict[int, tuple[_Again, int]] = {}
"""Where the whole parameters that exist now lie."""
_latest: list[tuple[_Again, tuple[Tensor, ...]]] = []
"""Those that a backward pass has gathered last."""


def _remember(wholes: Sequence[Tensor], of: _Again) -> None:
    for index, whole in enumerate(wholes):
        if (at := place(_plain(whole))) is not None:
            _whole[at] = of, index


def forget(wholes: Sequence[Any]) -> None:
    """Whole parameters that are no longer put in."""
    for whole in wholes:
        _whole.pop(place(_plain(whole)) or 0, None)


def is_gathered(tensor: Tensor) -> bool:
    """Whether a tensor lies in weights that were gathered, which a backward pass gathers again."""
    return place(tensor) in _whole


def _pack(tensor: Tensor) -> Tensor | _Dropped:
    found = _whole.get(place(tensor) or 0)
    if found is None:
        return tensor.detach()
    return _Dropped(*found, (tensor.shape, tensor.stride(), int(tensor.storage_offset())))


def _unpack(kept: Tensor | _Dropped) -> Tensor:
    if isinstance(kept, Tensor):
        return kept
    if not _latest or _latest[0][0] is not kept.of:
        _let_go()
        with torch.no_grad():
            wholes = _all_gather(kept.of.layout, kept.of.held)
        _remember(wholes, kept.of)
        _latest.append((kept.of, wholes))
    return _latest[0][1][kept.index].as_strided(*kept.view)


def _let_go() -> None:
    while _latest:
        forget(_latest.pop()[1])


_dropping = False


@contextmanager
def dropping_weights() -> Iterator[None]:
    """Inside, derivatives keep no whole weights."""
    global _dropping
    try:
        with saved_tensors_hooks(_pack, _unpack):
            _dropping = True
            yield
    finally:
        _dropping = False
        _let_go()


@contextmanager
def keeping_weights() -> Iterator[None]:
    """Inside, derivatives keep what they need: `torch.func` takes no hooks around what is kept."""
    if not _dropping:
        yield
        return
    torch._C._autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        torch._C._autograd._push_saved_tensors_default_hooks(_pack, _unpack)
