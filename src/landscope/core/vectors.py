"""How long vectors are, and what of them lies in this process.

A vector of P numbers lies here as a whole, or, where parameters are sharded, in parts: every process holds some intervals of
[0, P) and nothing else. Sums along a vector are then partial, and `add_up` makes them whole; random vectors are the same
numbers whatever the number of processes. Everything that takes an inner product or a norm of such vectors asks here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from landscope.core.distributed import least, sum_over_processes
from landscope.core.seeding import normal, rademacher

__all__ = ["Vectors"]

AT_ONCE = 2**20
"""Random numbers that are drawn together. A multiple of 16: torch's normal numbers are those of one long draw then."""


@dataclass(frozen=True)
class Vectors:
    """Vectors of `size` numbers, of which this process holds those in `held`, or all of them (`None`).

    >>> Vectors(4).length, Vectors(4, ((0, 1), (2, 4))).length
    (4, 3)
    """

    size: int
    held: tuple[tuple[int, int], ...] | None = None

    @property
    def length(self) -> int:
        """How many numbers of a vector lie here."""
        return self.size if self.held is None else sum(stop - start for start, stop in self.held)

    def add_up(self, partial: Tensor) -> Tensor:
        """The whole of sums along vectors: over all processes, where each holds a part of every vector."""
        if self.held is None or not partial.numel():
            return partial
        return sum_over_processes(partial.contiguous())

    def norms(self, rows: Tensor) -> Tensor:
        """‖v‖ of every row (…, length).

        >>> Vectors(2).norms(torch.tensor([[3.0, 4.0]]))
        tensor([5.])
        """
        if self.held is None:
            return torch.linalg.vector_norm(rows, dim=-1)
        return self.add_up(torch.linalg.vector_norm(rows, dim=-1).double().square()).sqrt().to(rows.dtype)

    def least(self, number: float) -> float:
        """The smallest of the numbers that the processes hold: what all of them can do."""
        return number if self.held is None else least(number)

    def normal(self, rng: torch.Generator, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Independent standard normal numbers (length,), those of one vector that is drawn as a whole."""
        return self._drawn(lambda count: normal((count,), rng, dtype)).to(device)

    def signs(self, count: int, rng: torch.Generator, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Rows (count, length) of independent ±1, those of whole vectors that are drawn one after the other."""
        rows = [self._drawn(lambda count: rademacher((count,), rng, dtype)) for _ in range(count)]
        return torch.stack(rows).to(device)

    def _drawn(self, draw: Callable[[int], Tensor]) -> Tensor:
        """What this process holds of a vector that is drawn: every process draws all of it, a stretch at a time."""
        if self.held is None:
            return draw(self.size)
        ends = [*range(AT_ONCE, self.size - 15, AT_ONCE), self.size]
        kept: list[list[Tensor]] = [[] for _ in self.held]
        for at, end in pairwise([0, *ends]):
            stretch = draw(end - at)
            for parts, (start, stop) in zip(kept, self.held, strict=True):
                parts.append(stretch[max(start, at) - at : max(min(stop, end) - at, 0)].clone())
        return torch.cat([part for parts in kept for part in parts])

    def units(self, start: int, stop: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """The unit vectors e_start … e_(stop−1), as rows.

        >>> Vectors(4, ((0, 1), (2, 4))).units(2, 4, torch.float32, torch.device("cpu"))
        tensor([[0., 1., 0.],
                [0., 0., 1.]])
        """
        numbers = torch.cat([torch.arange(a, b) for a, b in self.held or ((0, self.size),)])
        return (numbers == torch.arange(start, stop)[:, None]).to(device, dtype)
