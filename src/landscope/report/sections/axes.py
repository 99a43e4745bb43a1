"""Outcomes along an axis of numbers, such as a learning rate or the size of a layer: a line for every setting of the others.

Outcomes whose names share their first parts (`train.trace.exact`, `train.trace.hutchinson`) are kinds of one thing and share a
figure, as lines of it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from landscope.analysis.coefficients import mean_and_deviation
from landscope.core.text import capital
from landscope.report.data.cohorts import Cohorts
from landscope.report.data.columns import Column, label
from landscope.report.page.blocks import Section
from landscope.report.page.figure import (
    Axis,
    Curve,
    Errors,
    Figure,
    Floats,
    Marker,
    Panel,
    condition_dash,
    spans_decades,
    value_axis,
)

VALUES = 3
"""Fewer of them make no curve."""
STEPPED = 5.0
"""An axis whose largest number is more than this many times the smallest is logarithmic."""
LINES = 12
PANELS = 8


@dataclass(frozen=True, eq=False)
class AxisLine:
    """Mean and standard deviation over the models at each value of the axis."""

    name: str
    x: Floats
    mean: Floats
    spread: Floats


@dataclass(frozen=True, eq=False)
class AxisCurves:
    """Some lines along one axis."""

    axis: str
    outcome: str
    lines: Sequence[AxisLine]
    n: int
    left_out: int = 0
    """Lines beyond what a figure can hold."""

    @property
    def values(self) -> list[float]:
        return [float(value) for line in self.lines for value in line.mean]

    @property
    def settings(self) -> list[float]:
        return sorted({float(value) for line in self.lines for value in line.x})

    @property
    def logarithmic(self) -> bool:
        """Whether the axis was stepped by factors: its numbers are spread far wider than evenly."""
        return spans_decades(self.settings, STEPPED)


def leading_number(value: object) -> float | None:
    """The number that an axis value is or begins with.

    >>> leading_number(0.02), leading_number("64 units"), leading_number("64-64"), leading_number(True)
    (0.02, 64.0, None, None)
    """
    if isinstance(value, str):
        found = re.fullmatch(r"([-+]?\d+(?:\.\d+)?(?:e[-+]?\d+)?)(?: \D*)?", value)
        return float(found[1]) if found else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def axis_curves(study: Cohorts) -> list[AxisCurves]:
    """A figure for each kind of outcome along each axis of three numbers or more."""
    names = list(dict.fromkeys(name for record in study.records for name in record.axes))
    frame = study.main.frame
    found = []
    for name in names:
        numbers = [leading_number(study.records[run].axes.get(name)) for run in frame.index]
        if None in numbers or len(set(numbers)) < VALUES:
            continue
        others = [
            " · ".join(str(value) for axis_name, value in study.records[run].axes.items() if axis_name != name)
            for run in frame.index
        ]
        for outcome, columns in _kinds(study.outcomes).items():
            lines = _lines(frame[columns], np.array(numbers, dtype=np.float64), others, alone=outcome in columns)
            if lines:
                found.append(AxisCurves(name, outcome, lines[:LINES], len(frame), max(0, len(lines) - LINES)))
    return found[:PANELS]


def _kinds(outcomes: Sequence[str]) -> dict[str, list[str]]:
    """Columns by what they are kinds of; one that has no kinds stands alone.

    >>> _kinds(["test.error", "train.trace.exact", "train.trace.one_probe"])
    {'test.error': ['test.error'], 'train.trace': ['train.trace.exact', 'train.trace.one_probe']}
    >>> _kinds(["train.random_sharpness_0.05"])
    {'train.random_sharpness_0.05': ['train.random_sharpness_0.05']}
    """
    found: dict[str, list[str]] = {}
    for column in outcomes:
        parts = Column.of(column)
        found.setdefault(column.removesuffix(f".{parts.name}") if parts.variants else column, []).append(column)
    return found


def _lines(frame: pd.DataFrame, x: Floats, others: Sequence[str], *, alone: bool) -> list[AxisLine]:
    """A line for each column at each setting of the other axes, which a row of the frame has under its number."""
    found = []
    finite = frame.astype(np.float64).replace([np.inf, -np.inf], np.nan)
    for setting in dict.fromkeys(others):
        here = np.array([other == setting for other in others])
        for column in finite:
            kind = "" if alone else Column.of(str(column)).name.replace("_", " ")
            by = pd.Series(finite[column].to_numpy()[here], index=x[here]).dropna().groupby(level=0)
            moments = {float(place): mean_and_deviation(values.to_numpy()) for place, values in by}
            if len(moments) > 1:
                name = " · ".join(part for part in (setting, kind) if part)
                mean, spread = np.array([*moments.values()]).T
                found.append(AxisLine(name, np.array([*moments]), mean, np.nan_to_num(spread)))
    return found


def axis_section(study: Cohorts) -> Section:
    """A panel for each outcome along each axis."""
    panels = [_panel(curves) for curves in axis_curves(study)]
    caption = "Outcomes along an axis: mean and standard deviation over models."
    return Section("axes", "Along an axis", [Figure("axes", panels, caption, across=2)] if panels else [])


def _panel(curves: AxisCurves) -> Panel:
    settings = np.array(curves.settings)
    lines = [
        Curve(
            line.x,
            line.mean,
            f"@c{number}",
            width=1.6,
            dash=condition_dash(number),
            marker=Marker(6),
            y_error=Errors(line.spread, cap=3),
            legend=line.name,
            hover=line.name or label(curves.outcome),
        )
        for number, line in enumerate(curves.lines)
    ]
    name = label(curves.outcome)
    rest = f" {curves.left_out} more lines are left out." if curves.left_out else ""
    return Panel(
        f"along-{curves.axis}-{curves.outcome}",
        lines,
        Axis(
            curves.axis,
            scale="log" if curves.logarithmic else "linear",
            ticks=(settings, [f"{value:g}" for value in settings]),
        ),
        value_axis(name, curves.values),
        f"{capital(name)} along {curves.axis}: mean and standard deviation, n = {curves.n} models.{rest}",
        note=f"n = {curves.n}" + (f", {curves.left_out} more lines left out" if curves.left_out else ""),
        height=380,
        size=(2.8, 2.3),
    )
