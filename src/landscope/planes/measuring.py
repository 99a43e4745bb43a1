"""From a slice and axes to values on the grid: for a probe, and for others at the same points."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TypeVar

import numpy as np

from landscope.core.errors import NotApplicableError, OperandError, UnknownNameError
from landscope.core.estimate import Cost, Plain, Status
from landscope.core.probe import Probe
from landscope.planes.cut import FIRST, Cut, Floats, Values
from landscope.planes.evaluation import PointValues
from landscope.planes.progress import points_display
from landscope.planes.right_answers import why_no_accuracy
from landscope.planes.slices import Slice
from landscope.planes.states import check_same_point
from landscope.planes.sweep import Deadline, sweep

__all__ = ["Span", "axis", "measure_grid"]

Span = float | tuple[float, float]
"""±span, or from … to."""
METRICS = ("loss", "accuracy")

C = TypeVar("C", bound=Cut)


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
        advance = stack.enter_context(points_display(progress, math.prod(map(len, axes))))
        kept, grids = sweep(evaluators, axes, deadline, advance)
    values = {
        name: Values(grid[..., 0], grid[..., 1] if evaluator.accuracy else None, evaluator.probe.n_samples)
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
        reason="" if whole else f"{deadline.seconds:g} seconds sufficed for {sizes[0]} of {sizes[1]} points",
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
    why_not = why_no_accuracy(probe)
    if why_not and metrics is not None:
        raise NotApplicableError(f"metrics=… asks for accuracy. {why_not}")
    return not why_not
