"""Training curves: a line for every model, or mean and spread over the models of a condition where there are many."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from landscope.analysis.coefficients import scaled
from landscope.core.json import Plain
from landscope.core.text import capital
from landscope.report.data.cohorts import Cohorts
from landscope.report.page.blocks import Section
from landscope.report.page.figure import (
    Axis,
    Band,
    Curve,
    Figure,
    Floats,
    Mark,
    Panel,
    condition_dash,
    decimated,
    model_line,
    value_axis,
)

LINES = 60
"""More runs than these are shown by condition."""
PANELS = 8
BANDS = 12
"""With more conditions than these, the bands of their standard deviations would hide each other."""
LOSSES = ("train_loss", "loss", "training_loss")
FALLING = 0.05
"""Share of the loss that a settled training does not lose in its last tenth."""
TIMES = ("epoch", "step", "iteration")
SCHEDULES = ("lr", "learning_rate")
"""Columns that were set and not measured: shown last."""
NOT_CURVES = (*TIMES, "seconds", "time", "time_s", "samples")

Curves: TypeAlias = dict[int, tuple[list[float], list[float]]]
"""Times and values of each run."""


@dataclass(frozen=True)
class History:
    """One column of the histories, of every run that has it."""

    column: str
    time: str
    """What the values are recorded along: epochs, steps, or rows of the history."""
    curves: Curves

    @property
    def name(self) -> str:
        return "learning rate" if self.column in SCHEDULES else self.column.replace("_", " ")

    @property
    def values(self) -> list[float]:
        return [value for _, y in self.curves.values() for value in y]

    @property
    def by_condition(self) -> bool:
        """Whether the runs are too many for a line each."""
        return len(self.curves) > LINES

    @property
    def caption(self) -> str:
        what = "mean and standard deviation of each condition" if self.by_condition else "a line for every model"
        return f"{capital(self.name)} during training: {what}, n = {len(self.curves)}."


@dataclass(frozen=True)
class MeanCurve:
    """Mean and standard deviation over the runs of a condition."""

    condition: int
    n: int
    time: Floats
    mean: Floats
    spread: Floats


def histories(study: Cohorts) -> list[History]:
    """Every column that is a curve, as many as are shown; what was set and not found out comes last."""
    columns = sorted(
        dict.fromkeys(key for record in study.records for row in record.history for key in row),
        key=SCHEDULES.__contains__,
    )
    time = next((name for name in TIMES if name in columns), "")
    found = [History(column, time or "row", _curves(study, column, time)) for column in columns]
    return [each for each in found if _is_curve(each)][:PANELS]


def _is_curve(history: History) -> bool:
    several = any(len(x) > 1 for x, _ in history.curves.values())
    return history.column not in NOT_CURVES and several and len(set(history.values)) > 1


def mean_curves(study: Cohorts, history: History) -> list[MeanCurve]:
    """The curves of each condition put together, on the times that any of its runs has."""
    found = []
    for number in range(len(study.conditions)):
        members = [curve for run, curve in history.curves.items() if study.condition_of[run] == number]
        if not members:
            continue
        grid = np.unique(np.concatenate([x for x, _ in members]))
        grid = grid[decimated(len(grid))]
        # A run that ended early says nothing about later epochs.
        values, power = scaled(np.array([np.interp(grid, x, y, left=np.nan, right=np.nan) for x, y in members]))
        count = np.isfinite(values).sum(0)
        mean = np.nansum(values, 0) / np.maximum(count, 1)
        spread = np.sqrt(np.nansum((values - mean) ** 2, 0) / np.maximum(count - 1, 1))
        found.append(MeanCurve(number, len(members), grid, np.ldexp(mean, power), np.ldexp(spread, power)))
    return found


def history_section(study: Cohorts) -> Section:
    """One panel for each column of the histories."""
    found = histories(study)
    panels = [_panel(study, each) for each in found]
    caption = "Training curves: a line for every model; with many, mean and standard deviation of each condition."
    blocks = [Figure("training", panels, caption)] if panels else []
    return Section("training", "Training curves", blocks, _so_what(study, found))


def _so_what(study: Cohorts, found: Sequence[History]) -> str:
    """Whether the training loss still fell in the last tenth of the training."""
    loss = next((each for each in found if each.column in LOSSES), None)
    if loss is None:
        return ""
    falling = {}
    for run, (times, values) in loss.curves.items():
        since = times[-1] - 0.1 * (times[-1] - times[0])
        late = [value for time, value in zip(times, values, strict=True) if time >= since]
        falling[run] = len(late) > 1 and late[0] > 0 and (late[0] - late[-1]) > FALLING * late[0]
    still = [name for name, each in study.by_condition(falling).items() if sum(each) > len(each) / 2]
    if not still:
        return "In the last tenth of the training the loss hardly fell: the models are as settled as this schedule leaves them."
    return (
        f"In the last tenth of the training the loss still fell by more than {FALLING:.0%} for most models of "
        f"{', '.join(still)}: their sharpness is that of a point on the way down."
    )


def _curves(study: Cohorts, column: str, time: str) -> Curves:
    found: Curves = {}
    for run, record in enumerate(study.records):
        points = [
            (_number(row, time, float(place)), _number(row, column, np.nan)) for place, row in enumerate(record.history)
        ]
        kept = [(x, y) for x, y in points if np.isfinite(x) and np.isfinite(y)]
        if kept:
            found[run] = ([x for x, _ in kept], [y for _, y in kept])
    return found


def _number(row: Mapping[str, Plain], key: str, otherwise: float) -> float:
    value = row.get(key)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else otherwise


def _panel(study: Cohorts, history: History) -> Panel:
    marks: list[Mark] = []
    if history.by_condition:
        for curve in mean_curves(study, history):
            marks += _marks(study, curve)
    else:
        marks += [model_line(study, run, *curve) for run, curve in history.curves.items()]
    return Panel(
        f"history-{history.column}",
        marks,
        Axis(history.time),
        value_axis(history.name, history.values),
        history.caption,
        note=f"n = {len(history.curves)}",
    )


def _marks(study: Cohorts, curve: MeanCurve) -> list[Mark]:
    number, name = curve.condition, study.conditions[curve.condition]
    line = Curve(
        curve.time,
        curve.mean,
        f"@c{number}",
        width=2,
        dash=condition_dash(number),
        hover=f"{name}, mean of {curve.n}",
        condition=number,
    )
    if len(study.conditions) > BANDS:
        return [line]
    return [Band(curve.time, curve.mean - curve.spread, curve.mean + curve.spread, line.colour, name), line]
