"""Dropout in a pool: every member draws the masks that it would draw alone.

A pool runs as one vmapped program, in which torch would draw one stream of random numbers for all members. So the masks
are made outside and handed in: a forward pass of one member tells which `dropout` calls happen, in which order and of
which shape (`recorded`); each member's masks are drawn from its own seed in that order (`drawn`); and the program
multiplies with them where the network calls `dropout` (`Replay`). Calls are caught as torch functions, so layers, and code
that calls `torch.nn.functional.dropout` itself (attention of graph networks), are treated alike.

On the CPU torch makes a mask as bernoulli(1 − p) / (1 − p) from its generator, and so do we: the masks are equal bit for bit. On
a GPU the masks of all members are one draw: same statistics, other numbers.
Other random operations (`dropout2d`, noise in a forward pass) stay in the program, where `vmap` draws differently for each
member: same statistics as alone, not the same numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from landscope.core.seeding import preserved_rng

__all__ = ["Draw", "drawn", "recorded", "replayed"]


@dataclass(frozen=True)
class Draw:
    """One call of dropout: the mask's shape and layout for one member, and the chance p of a zero."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    p: float


def _active(p: float, training: bool, size: int) -> bool:
    """Whether torch draws anything: not for p = 0 and p = 1."""
    return training and 0 < p < 1 and size > 0


class _Dropouts(TorchFunctionMode):
    """Hands calls of dropout that draw to `meet`; everything else runs as it would."""

    def __init__(self, meet: Callable[[Tensor, float], Tensor]) -> None:
        super().__init__()
        self.meet = meet

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is F.dropout:
            return self._dropout(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

    def _dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if _active(p, training, input.numel()):
            kept = self.meet(input, p)
            return input.copy_(kept) if inplace else kept
        return F.dropout(input, p, training, inplace)


@torch.no_grad()
def recorded(forward: Callable[[], object]) -> tuple[Draw, ...]:
    """The draws of dropout that a forward pass makes, in order.

    >>> recorded(lambda: torch.nn.Dropout(0.5)(torch.ones(2, 3)))
    (Draw(shape=(2, 3), stride=(3, 1), dtype=torch.float32, p=0.5),)
    """
    draws: list[Draw] = []

    def note(input: Tensor, p: float) -> Tensor:
        like = torch.empty_like(input)  # torch makes its mask so, in the layout of the input
        draws.append(Draw(tuple(like.shape), like.stride(), like.dtype, p))
        return input

    with preserved_rng(), _Dropouts(note):
        forward()
    return tuple(draws)


def drawn(
    draws: Sequence[Draw], members: int, device: torch.device, seeds: Sequence[int] | None = None
) -> list[Tensor]:
    """The masks (n, …) of each draw, divided by 1 − p; with `seeds`, member i's are those after `torch.manual_seed(seeds[i])`.

    Without, they come from the device's global generator.

    >>> x = torch.ones(2, 3)
    >>> mask = drawn(recorded(lambda: F.dropout(x, 0.5)), 1, torch.device("cpu"), seeds=[7])[0]
    >>> with preserved_rng():
    ...     _ = torch.manual_seed(7)
    ...     bool((F.dropout(x, 0.5) == x * mask[0]).all())
    True
    """
    masks = [_empty(draw, members, device) for draw in draws]
    rng = torch.Generator("cpu")
    for member, seed in enumerate(seeds or ()):
        rng.manual_seed(seed)
        for mask, draw in zip(masks, draws, strict=True):
            mask[member].bernoulli_(1 - draw.p, generator=rng)
    for mask, draw in zip(masks, draws, strict=True):
        if seeds is None:
            mask.bernoulli_(1 - draw.p)
        mask.div_(1 - draw.p)
    return masks


def _empty(draw: Draw, members: int, device: torch.device) -> Tensor:
    size = 1 + sum((n - 1) * s for n, s in zip(draw.shape, draw.stride, strict=True))
    return torch.empty_strided((members, *draw.shape), (size, *draw.stride), dtype=draw.dtype, device=device)


@contextmanager
def replayed(masks: Sequence[Tensor]) -> Iterator[None]:
    """Inside, the k-th call of dropout that draws multiplies its input with `masks[k]` instead.

    >>> with replayed([torch.tensor([0.0, 2.0])]):
    ...     F.dropout(torch.ones(2))
    tensor([0., 2.])
    """
    if not masks:
        yield
        return
    rest = iter(masks)
    with _Dropouts(lambda input, p: input * next(rest)):
        yield
