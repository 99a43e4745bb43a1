"""From a slice and axes to values on the grid: for a probe, and for others at the same points."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import TypeVar

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor

from landscope.core.distributed import processes, sum_over_processes
from landscope.core.errors import BudgetSpentError, NotApplicableError, OperandError, UnknownNameError
from landscope.core.estimate import Cost, Status
from landscope.core.json import Plain
from landscope.core.progress import progress_display
from landscope.planes.result import FIRST, Floats, GridValues, SliceValues
from landscope.planes.slices import Slice, check_same_point
from landscope.probe.batches import Batch
from landscope.probe.loss.answers import right_answers
from landscope.probe.points import at_points
from landscope.probe.probe import Probe
from landscope.probe.totals import checked_limit


class PointValues:
    """Loss and accuracy of one probe at points (n, 1 or 2) of a slice, as means over all samples. The model is never touched.

    >>> from landscope.planes.slices import given_slice
    >>> probe = Probe(torch.nn.Linear(1, 1, bias=False), (torch.ones(4, 1), torch.zeros(4, 1)), "mse")   # L = w²
    >>> w = probe.vector()
    >>> values = PointValues(probe, given_slice(probe, [w]), accuracy=False)
    >>> bool(torch.allclose(values(torch.tensor([[-1.0], [0.0], [1.0]]))[:, 0], torch.tensor([0, 1, 4]) * w.double() ** 2))
    True
    """

    def __init__(self, probe: Probe, cut: Slice, accuracy: bool) -> None:
        self.probe, self.accuracy = probe, accuracy
        moves = [name for name in cut.origin if any(bool(d[name].any()) for d in cut.directions)]
        self._origin, *self._directions = ({name: d[name] for name in moves} for d in (cut.origin, *cut.directions))

    def __call__(self, points: Tensor) -> Tensor:
        """(n, 2) in float64 on the CPU: mean loss, and accuracy (0 where it is not asked for). n forward passes."""
        return at_points(self.probe, self._origin, self._directions, points, self._sums)

    def _sums(self, probe: Probe, params: Mapping[str, Tensor], batch: Batch) -> Tensor:
        """(2,): the sums of the loss and of right answers over the samples of a batch."""
        outputs = probe.outputs(params, batch)
        loss = probe.loss_of(outputs, batch).double().reshape(())
        if not self.accuracy:
            return torch.stack([loss, torch.zeros_like(loss)])
        return torch.stack([loss, right_answers(probe.loss, outputs, probe.targets(batch), batch.size).sum()])


# Many points in groups, coarse grids before fine ones, until all are done or the time is spent.
#
# A grid with a limit of time is refined: first every 2ᵐ-th line of it, counted from the origin, then every 2ᵐ⁻¹-th, …,
# then all. What is returned is the finest of these grids that was completed, never one with holes. Processes that share
# the data stop together.


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
        return time.monotonic() - self._start

    def passed(self) -> bool:
        """Whether any process has used up the time; all of them must ask together."""
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
    evaluators: Sequence[PointValues], axes: Sequence[Floats], deadline: Deadline, report: Callable[[int], None]
) -> tuple[list[Floats], list[Floats]]:
    """(axes, values (…, 2) of every evaluator) on the grid, or on the finest grid within it that time allowed.

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
            report(done)
        if len(new):
            break
        finished = chosen
    if finished is None:
        raise BudgetSpentError(f"{done} points fit into {deadline.seconds:g} seconds, fewer than a coarse grid has")
    cells = np.ix_(*reversed(finished))
    return [axis[i] for axis, i in zip(axes, finished, strict=True)], [array[cells] for array in values]


def _settled(values: Tensor) -> Floats:
    """Losses that overflowed or are undefined become +∞."""
    out: Floats = values.numpy().copy()
    out[~np.isfinite(out[:, 0]), 0] = np.inf
    return out


Span = float | tuple[float, float]
"""±span, or from … to."""
METRICS = ("loss", "accuracy")

C = TypeVar("C", bound=SliceValues)


def axis(span: Span, resolution: int) -> Floats:
    """Equally spaced coordinates; one that should be 0 is exactly 0.

    >>> axis(0.3, 7).tolist()[3], axis((0.0, 1.0), 3).tolist()
    (0.0, [0.0, 0.5, 1.0])
    """
    low, high = (-abs(span), abs(span)) if isinstance(span, (int, float)) else span
    if not (np.isfinite([low, high]).all() and low < high):
        raise OperandError(f"span must be a positive number, or a pair (low, high) with low < high; got {span!r}")
    if resolution < 3:
        raise OperandError(f"resolution must be at least 3 points along an axis, got {resolution}")
    values: Floats = np.linspace(low, high, resolution)
    values[np.abs(values) < 1e-12 * (high - low)] = 0.0
    return values


def measure_grid(
    kind: type[C],
    probe: Probe,
    cut: Slice,
    axes: Sequence[Floats],
    *,
    metrics: Sequence[str] | None,
    others: Mapping[str, Probe] | None,
    deadline: Deadline,
    progress: bool | None,
    settings: Mapping[str, Plain],
    spent: float = 0.0,
) -> C:
    """Evaluate the grid for all probes; one forward pass per point and probe, after the passes `spent` on directions."""
    others = others or {}
    if FIRST in others:
        raise OperandError(f"the name {FIRST!r} is taken by the first probe; give the other one another name")
    for name, other in others.items():
        check_same_point(cut.origin, other, f"the probe {name!r}")
    probes = {FIRST: probe, **others}
    evaluators = [PointValues(each, cut, _with_accuracy(each, metrics)) for each in probes.values()]
    ledgers = {id(each.ledger): each.ledger for each in probes.values()}.values()
    with ExitStack() as stack:
        meters = [stack.enter_context(ledger.metered()) for ledger in ledgers]
        total = math.prod(map(len, axes))
        display = stack.enter_context(progress_display(progress, total))
        kept, grids = sweep(evaluators, axes, deadline, lambda done: display.count(done, total, "points"))
    values = {
        name: GridValues(grid[..., 0], grid[..., 1] if evaluator.accuracy else None, evaluator.probe.n_samples)
        for name, grid, evaluator in zip(probes, grids, evaluators, strict=True)
    }
    whole = list(map(len, kept)) == list(map(len, axes))
    sizes = [" × ".join(str(len(a)) for a in grid) for grid in (kept, axes)]
    return kind(
        axes=tuple(kept),
        values=values.pop(FIRST),
        others=values,
        directions=cut.about(),
        status=Status.EXACT if whole else Status.BUDGET_SPENT,
        reason="" if whole else f"{sizes[0]} of {sizes[1]} points fit into {deadline.seconds:g} seconds",
        cost=Cost(passes=spent + sum(meter.cost.passes for meter in meters), seconds=deadline.elapsed),
        settings={
            "loss": probe.loss.name,
            "mode": probe.mode,
            "temperature": probe.temperature,
            "dtype": str(probe.dtype).removeprefix("torch."),
            "seconds": deadline.seconds,
            **settings,
        },
    )


def _with_accuracy(probe: Probe, metrics: Sequence[str] | None) -> bool:
    """Whether accuracy is measured: where it applies, unless it is asked for or left out."""
    for name in metrics or ():
        if name not in METRICS:
            raise UnknownNameError.among("metric", str(name), METRICS)
    if metrics is not None and "accuracy" not in metrics:
        return False
    why_not = _why_no_accuracy(probe)
    if why_not and metrics is not None:
        raise NotApplicableError(f"metrics=… asks for accuracy. {why_not}")
    return not why_not


def _why_no_accuracy(probe: Probe) -> str:
    """Why there is no accuracy at a probe; empty where there is one."""
    few = probe.few
    with probe.measuring(), torch.no_grad():
        try:
            right_answers(probe.loss, probe.outputs(probe.params, few), probe.targets(few), few.size)
        except NotApplicableError as error:
            return str(error)
    return ""
