"""Many points in groups, coarse grids before fine ones, until all are done or the time is spent.

A grid with a limit of time is refined: first every 2ᵐ-th line of it, counted from the origin, then every 2ᵐ⁻¹-th, …,
then all. What is returned is the finest of these grids that was completed, never one with holes. Processes that share
the data stop together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from landscope.core.distributed import processes, sum_over_processes
from landscope.core.errors import BudgetSpentError
from landscope.core.ledger import checked_limit
from landscope.planes.evaluation import PointValues

__all__ = ["Deadline", "nodes", "sweep"]

Floats = NDArray[np.float64]

GROUP_SECONDS = 4.0
"""Time between two looks at the clock."""
FIRST_GROUP, LARGEST_GROUP = 16, 1024
COARSEST = 5
"""Lines per axis that the coarsest grid has at least."""


class Deadline:
    """The end of the allowed time, on which all processes agree."""

    def __init__(self, seconds: float | None, device: torch.device) -> None:
        self.seconds, self._device, self._start = checked_limit("seconds", seconds), device, time.monotonic()

    @property
    def elapsed(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def passed(self) -> bool:
        """Whether the time is spent on any process; to be asked on all of them together."""
        if self.seconds is None:
            return False
        late = torch.tensor(float(self.elapsed > self.seconds), device=self._device)
        return bool(sum_over_processes(late).item() > 0)

    def group(self, points: int, done: int, taken: float) -> int:
        """How many points to evaluate before the next look at the clock: as many on every process."""
        pause = GROUP_SECONDS if self.seconds is None else min(GROUP_SECONDS, self.seconds / 20)
        fitting = FIRST_GROUP if not done else int(pause * done / max(taken, 1e-9))
        least = FIRST_GROUP if self.seconds is None else 1
        size = max(least, min(fitting, LARGEST_GROUP))
        if processes() > 1:
            first = torch.tensor(float(size if dist.get_rank() == 0 else 0), device=self._device)
            size = int(sum_over_processes(first).item())
        return min(size, points)


def nodes(axis: Floats, stride: int) -> NDArray[np.int64]:
    """The indices of every `stride`-th node of an axis, counted from the one nearest to the origin; of three at least.

    >>> nodes(np.linspace(-1, 1, 9), 4).tolist(), nodes(np.linspace(0, 1, 6), 2).tolist()
    ([0, 2, 4, 6, 8], [0, 2, 4])
    """
    while len(axis) < 3 * stride and stride > 1:
        stride //= 2
    return np.arange(int(np.abs(axis).argmin()) % stride, len(axis), stride)


def strides(axes: Sequence[Floats], deadline: Deadline) -> list[int]:
    """The strides of the grids, from coarse to fine; the whole grid at once where there is no limit of time."""
    levels = [1]
    while deadline.seconds is not None and max(map(len, axes)) // (2 * levels[-1]) >= COARSEST:
        levels.append(2 * levels[-1])
    return levels[::-1]


def sweep(
    evaluators: Sequence[PointValues], axes: Sequence[Floats], deadline: Deadline, advance: Callable[[int], None]
) -> tuple[list[Floats], list[Floats]]:
    """(axes, values (…, 2) of every evaluator) on the grid, or on the finest grid within it for which the time sufficed.

    The first axis runs along the last dimension of the grids before the values: rows are lines of constant b.
    """
    shape = tuple(len(axis) for axis in reversed(axes))
    values = [np.full((*shape, 2), np.nan) for _ in evaluators]
    finished: list[NDArray[np.int64]] | None = None
    done, taken = 0, 0.0
    for stride in strides(axes, deadline):
        chosen = [nodes(axis, stride) for axis in axes]
        grid = np.stack(np.meshgrid(*reversed(chosen), indexing="ij"), -1).reshape(-1, len(axes))
        new = grid[np.isnan(values[-1][tuple(grid.T)][:, 1])]
        while len(new):
            if deadline.passed():
                break
            start = deadline.elapsed
            group = new[: deadline.group(len(new), done, taken)]
            points = torch.from_numpy(np.stack([axis[i] for axis, i in zip(axes, group.T[::-1], strict=True)], -1))
            for evaluator, target in zip(evaluators, values, strict=True):
                target[tuple(group.T)] = _settled(evaluator(points))
            done, taken, new = done + len(group), taken + deadline.elapsed - start, new[len(group) :]
            advance(len(group))
        if len(new):
            break
        finished = chosen
    if finished is None:
        raise BudgetSpentError(f"{deadline.seconds:g} seconds sufficed for {done} points: not even for a coarse grid")
    cells = np.ix_(*reversed(finished))
    return [axis[i] for axis, i in zip(axes, finished, strict=True)], [array[cells] for array in values]


def _settled(values: Tensor) -> Floats:
    """Losses that overflowed or are undefined become +∞."""
    out: Floats = values.numpy().copy()
    out[~np.isfinite(out[:, 0]), 0] = np.inf
    return out
