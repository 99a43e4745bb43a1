"""What was measured at several steps of a training: each column over the steps, each measure over the training loss.

The checkpoints "step N" of a run make its curve; its last weights ("final") are the end of it where the histories name their
step and all runs end there. A curve is the median over the models of a condition, its band reaches from the smallest to
the largest: both are the same on a logarithmic axis.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from landscope.core.text import capital, significant
from landscope.report.data.cohorts import Cohort, Cohorts
from landscope.report.data.columns import label
from landscope.report.page.blocks import Block, Cell, Heading, Prose, Section, Table, words
from landscope.report.page.figure import (
    Axis,
    Band,
    Curve,
    Figure,
    Floats,
    Mark,
    Marker,
    Panel,
    condition_dash,
    spans_decades,
    value_axis,
)

STEPS = 3
"""Fewer of them make no curve."""
STEPPED = 5.0
"""Steps whose largest is more than this many times the smallest are on a logarithmic axis."""
TICKS = 8
PANELS = 12
BANDS = 8
"""With more conditions than these, bands would hide each other."""
NAMED = 4
"""Columns of which the answer speaks."""
LOSS = "train.loss"
OVER_STEPS = (
    "Over the steps at which models were measured: median of each condition, and from its smallest to its largest model where "
    "conditions are few."
)
OVER_LOSS = (
    "Measures over the training loss at those steps: medians of each condition, a point for each step, the last larger."
)


@dataclass(frozen=True, eq=False)
class Trend:
    """One column: `values` has a row for each run and a column for each step, NaN where there is none."""

    column: str
    values: pd.DataFrame
    conditions: Sequence[int]
    """The condition of each row."""

    @property
    def steps(self) -> list[int]:
        return [int(step) for step in self.values.columns]

    @cached_property
    def by_condition(self) -> dict[int, tuple[Floats, Floats, Floats]]:
        """Median, smallest and largest at each step."""
        members = {number: self.values[np.equal(self.conditions, number)] for number in sorted(set(self.conditions))}
        return {
            number: (rows.median().to_numpy(), rows.min().to_numpy(), rows.max().to_numpy())
            for number, rows in members.items()
        }

    @property
    def shown(self) -> list[float]:
        return [float(v) for curves in self.by_condition.values() for curve in curves for v in curve if np.isfinite(v)]

    @property
    def ends(self) -> tuple[Floats, Floats]:
        """First and last values of the models that have both."""
        both = self.values.iloc[:, [0, -1]].dropna().to_numpy(dtype=np.float64)
        return both[:, 0], both[:, 1]


def trends(study: Cohorts) -> list[Trend]:
    """The training loss, the measures and the outcomes, as far as they were measured at three steps or more."""
    cohorts = _cohorts_by_step(study)
    found = []
    for column in dict.fromkeys([LOSS, *study.measures, *study.outcomes]):
        known = {step: cohort.frame[column] for step, cohort in cohorts.items() if column in cohort.frame}
        values = pd.DataFrame(known, dtype=np.float64).replace([np.inf, -np.inf], np.nan)
        values = values.dropna(axis="columns", how="all").dropna(axis="index", how="all")
        if values.shape[1] >= STEPS and values.stack().nunique() > 1:
            found.append(Trend(column, values, [study.condition_of[run] for run in values.index]))
    return found


def _cohorts_by_step(study: Cohorts) -> dict[int, Cohort]:
    found: dict[int, Cohort] = {}
    ends = {record.history[-1].get("step") if record.history else None for record in study.records}
    end = ends.pop() if len(ends) == 1 else None
    for cohort in study.cohorts:
        first = next(iter(cohort.members.values()))
        named = re.fullmatch(r"step (\d+)", first.checkpoint)
        step = int(named[1]) if named else end if first.checkpoint == "final" else None
        if isinstance(step, int) and first.temperature == 1.0:
            found.setdefault(step, cohort)
    return dict(sorted(found.items()))


def step_axis(steps: Sequence[int]) -> tuple[Floats, list[str], bool]:
    """Where each step stands, what is written there (nothing where there is no room), and whether the axis is logarithmic.

    Step 0 has no logarithm: it stands as far before the first step as that does before the second.

    >>> step_axis([0, 1, 10, 3520])
    (array([1.00e-01, 1.00e+00, 1.00e+01, 3.52e+03]), ['0', '1', '10', '3.52k'], True)
    """
    places = np.array(steps, dtype=np.float64)
    positive = places[places > 0]
    logarithmic = spans_decades(positive, STEPPED)
    if logarithmic and len(positive) < len(places):
        places[0] = positive[0] ** 2 / positive[1]
    written = _apart(np.log(places) if logarithmic else places)
    return places, [_compact(step) if i in written else "" for i, step in enumerate(steps)], logarithmic


def _apart(places: Floats) -> set[int]:
    """Which of the places have room for a text: the last one, and from there those that are far enough from the next.

    >>> sorted(_apart(np.array([0.0, 1.0, 10.0, 60.0, 61.0])))
    [1, 2, 4]
    """
    kept: list[int] = []
    for i in range(len(places) - 1, -1, -1):
        if not kept or places[kept[-1]] - places[i] >= (places[-1] - places[0]) / TICKS:
            kept.append(i)
    return set(kept)


def _compact(step: int) -> str:
    return (
        f"{step / 1000:.3g}k" if 1000 <= step < 1_000_000 else f"{step / 1e6:.3g}M" if step >= 1_000_000 else str(step)
    )


def losses_of(found: Sequence[Trend], measure: Trend) -> Trend | None:
    """The training loss of the runs and at the steps of a measure; `None` for the loss itself, and off the training rows."""
    loss = next((each for each in found if each.column == LOSS), None)
    if loss is None or measure is loss or not measure.column.startswith("train."):
        return None
    values = loss.values.reindex(index=measure.values.index, columns=measure.values.columns)
    return Trend(LOSS, values, measure.conditions)


def through_sentence(study: Cohorts) -> str:
    """Which way the first columns went in how many models; empty where nothing was measured at several steps."""
    found = trends(study)[:NAMED]
    if not found:
        return ""
    steps = found[0].steps
    changes = [f"{label(each.column)} {_direction(each)}" for each in found if each.steps == steps]
    return f"From step {steps[0]:,} to step {steps[-1]:,}: {', '.join(changes)} models."


def _direction(trend: Trend) -> str:
    first, last = trend.ends
    grew, fell = int((last > first).sum()), int((last < first).sum())
    return f"grew in {grew} of {len(first)}" if grew >= fell else f"fell in {fell} of {len(first)}"


def through_section(study: Cohorts) -> Section:
    """Panels over the steps, panels over the training loss, and both ends in a table."""
    found = trends(study)
    blocks: list[Block] = []
    if found:
        drawn = found[:PANELS]
        blocks = [Figure("checkpoints", [_over_steps(study, each) for each in drawn], OVER_STEPS)]
        over = [_over_loss(study, each, loss) for each in drawn if (loss := losses_of(drawn, each)) is not None]
        blocks += [Figure("over-loss", over, OVER_LOSS)] if over else []
        blocks.append(_table(found))
        if len(found) > PANELS:
            blocks.append(Prose(f"Drawn are the first {PANELS} rows of the table.", tone="note"))
    return Section("through-training", "Through training", blocks)


def _table(found: Sequence[Trend]) -> Table:
    rows = []
    for each in found:
        first, last = each.ends
        medians = [Cell(significant(float(np.median(end)))) if len(end) else Cell("–") for end in (first, last)]
        span = f"{each.steps[0]:,} to {each.steps[-1]:,}"
        grew = f"{int((last > first).sum())} of {len(first)}"
        rows.append([Cell(label(each.column), title=each.column), Cell(span), *medians, Cell(grew)])
    numbers = map(Heading, ("steps", "median at the first", "at the last", "models in which it grew"))
    return Table([*words(""), *numbers], rows, "First and last measured weights of the models that have both.")


def _over_steps(study: Cohorts, trend: Trend) -> Panel:
    places, texts, logarithmic = step_axis(trend.steps)
    marks: list[Mark] = []
    for number, (middle, low, high) in trend.by_condition.items():
        known = np.isfinite(middle)
        if len(trend.by_condition) <= BANDS:
            marks.append(Band(places[known], low[known], high[known], f"@c{number}", study.conditions[number]))
        marks.append(_curve(study, number, places[known], middle[known], trend, known))
    written = [bool(text) for text in texts]
    scale: Literal["log", "linear"] = "log" if logarithmic else "linear"
    name = label(trend.column)
    return Panel(
        f"through-{trend.column}",
        marks,
        Axis("step", scale=scale, ticks=(places[written], [text for text in texts if text])),
        value_axis(name, trend.shown),
        f"{capital(name)}: median of each condition, from its smallest to its largest model; n = {len(trend.values)}.",
        note=f"n = {len(trend.values)}",
    )


def _over_loss(study: Cohorts, trend: Trend, loss: Trend) -> Panel:
    marks: list[Mark] = []
    for number, (middle, _, _) in trend.by_condition.items():
        x = loss.by_condition[number][0]
        known = np.isfinite(middle) & np.isfinite(x)
        marks.append(_curve(study, number, x[known], middle[known], trend, known))
    losses, medians = ((v for middle, _, _ in each.by_condition.values() for v in middle) for each in (loss, trend))
    name = label(trend.column)
    return Panel(
        f"over-loss-{trend.column}",
        marks,
        value_axis(label(LOSS), losses),
        value_axis(name, medians),
        f"{capital(name)} over the training loss: medians of each condition, a point for each step, the last one larger.",
        note=f"n = {len(trend.values)}",
    )


def _curve(study: Cohorts, number: int, x: Floats, y: Floats, trend: Trend, known: NDArray[np.bool_]) -> Curve:
    steps = [step for step, held in zip(trend.steps, known, strict=True) if held]
    return Curve(
        x,
        y,
        f"@c{number}",
        width=1.6,
        dash=condition_dash(number),
        marker=Marker(np.array([*[5.0] * (len(steps) - 1), 9.0][: len(steps)])),
        hover=[f"{study.conditions[number]}, step {step:,}" for step in steps],
        hover_numbers="y",
        condition=number,
    )
