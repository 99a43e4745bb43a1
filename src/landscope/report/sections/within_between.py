"""Simpson's paradox, shown: what holds over all models, inside the conditions, and between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from landscope.analysis import Correlation, Simpson
from landscope.analysis.coefficients import mean_and_deviation, scaled
from landscope.report.data.associations import Associations, models_used
from landscope.report.data.cohorts import Cohorts
from landscope.report.page.blocks import Block, Prose, Section
from landscope.report.page.figure import (
    Axis,
    Dash,
    Errors,
    Figure,
    Floats,
    Line,
    Mark,
    Marker,
    Panel,
    Points,
    spans_decades,
    value_axis,
)

__all__ = ["within_between_section"]

PAIRS = 6
DRAWN = 3
POINTS = 1500
FEW = 12
"""Conditions up to which each has a bold line."""


def within_between_section(study: Cohorts, found: Associations | None) -> Section:
    """One figure of coefficients, and scatter plots with a line for each condition."""
    nothing = Section("simpson", "Within and between conditions", [])
    if found is None or len(study.conditions) < 2:
        return nothing
    pairs = _pairs(found)
    views = {pair: found.simpson(*pair) for pair in pairs}
    known = {
        pair: view for pair, view in views.items() if view.pooled.value is not None and view.overall.value is not None
    }
    if not known:
        why = next((view.pooled.reason for view in views.values() if view.pooled.value is None), "")
        text = f"Nothing is known inside conditions: {why}. More seeds per condition would help." if why else ""
        return Section(nothing.key, nothing.title, [Prose(text, tone="note")] if text else [])
    blocks: list[Block] = [
        Prose(
            "A measure can correlate with an outcome only because conditions differ in both, and say nothing about models "
            "trained alike. The strongest pairs:"
        ),
        _coefficients(found, known),
        Prose(items=[_words(found, pair, view) for pair, view in known.items()]),
        Figure("within", [_drawing(study, found, pair) for pair in list(known)[:DRAWN]]),
    ]
    return Section(nothing.key, nothing.title, blocks)


def _words(found: Associations, pair: tuple[str, str], view: Simpson) -> str:
    names = f"{found.titles[pair[0]]} and {found.titles[pair[1]]}"
    return f"{names[:1].upper()}{names[1:]}. {view.sentence}".replace("= -", "= −")


def _pairs(found: Associations) -> list[tuple[str, str]]:
    """The strongest of the first outcomes, then those whose sign turns inside conditions, then the strongest left."""
    ranked = sorted(
        ((m, o) for o in found.outcomes for m in found.strongest(o)),
        key=lambda pair: -abs(found.finding(*pair).correlation.value or 0.0),
    )
    first = [next((pair for pair in ranked if pair[1] == o), None) for o in found.outcomes]
    turned = [pair for pair in ranked if found.finding(*pair).paradox and found.sure(*pair)]
    chosen = dict.fromkeys([pair for pair in first if pair is not None][: PAIRS // 2] + turned + ranked)
    return list(chosen)[:PAIRS]


def _coefficients(found: Associations, views: dict[tuple[str, str], Simpson]) -> Figure:
    names = [f"{found.titles[m]}, {found.titles[o]}" for m, o in views]
    kinds = (
        ("all models", "@ink", Marker(8, "circle"), [view.overall for view in views.values()]),
        ("inside conditions", "@c1", Marker(8, "diamond"), [view.pooled for view in views.values()]),
        ("between conditions", "@c0", Marker(8, "square", hollow=True), [view.between for view in views.values()]),
    )
    marks = []
    for place, (name, colour, marker, correlations) in enumerate(kinds):
        kept = [(row, c) for row, c in enumerate(correlations) if c.value is not None]
        marks.append(
            Points(
                np.array([c.value for _, c in kept], dtype=np.float64),
                np.array([row + 0.22 * (place - 1) for row, _ in kept]),
                colour,
                marker,
                x_error=_intervals([c for _, c in kept], colour),
                legend=name,
                hover=[f"{name}: {c}" for _, c in kept],
            )
        )
    used = models_used([view.overall.n for view in views.values()], len(found.cohort))
    panel = Panel(
        "simpson",
        marks,
        Axis(range=(-1.08, 1.08), zero=True),
        Axis(ticks=(np.arange(float(len(names))), names), range=(len(names) - 0.4, -0.6)),
        f"Correlation of all models, of models of the same condition with each other, and of the conditions' means, with 95% "
        f"intervals where they are known; n = {used}.",
        note=f"{next(iter(views.values())).overall.symbol} with 95% interval, n = {used}",
        height=110 + 52 * len(names),
        size=(3.2, 0.4 * len(names)),
        fixed=True,
    )
    return Figure("within-between", [panel], kind="wide")


def _intervals(correlations: Sequence[Correlation], colour: str) -> Errors:
    ends = np.array([(c.value, c.low, c.high) for c in correlations], dtype=np.float64).reshape(-1, 3)
    value, low, high = ends.T
    plus, minus = (np.nan_to_num(np.maximum(side, 0)) for side in (high - value, value - low))
    return Errors(plus, minus, colour, thickness=1.3)


def _drawing(study: Cohorts, found: Associations, pair: tuple[str, str]) -> Panel:
    """Points in their conditions' colours, a line for each condition, a dashed one through the means."""
    measure, outcome = pair
    frame = found.cohort.frame[[measure, outcome]].astype(float)
    kept = frame[np.isfinite(frame).all(axis=1)]
    logs = [spans_decades(kept[column]) for column in pair]
    values = [np.log10(kept[column]) if log else kept[column] for column, log in zip(pair, logs, strict=True)]
    condition = np.array([study.condition_of[run] for run in kept.index])
    step = -(-len(kept) // POINTS)
    marks: list[Mark] = []
    means = []
    for number in np.unique(condition):
        x, y = (column.to_numpy()[condition == number] for column in values)
        runs = [int(run) for run in kept.index[condition == number]][::step]
        means.append((mean_and_deviation(x)[0], mean_and_deviation(y)[0]))
        colour = f"@c{number}"
        marks.append(
            Points(
                _back(x[::step], logs[0]),
                _back(y[::step], logs[1]),
                colour,
                Marker(6, opacity=0.55),
                hover=[study.run_name(run) for run in runs],
                runs=runs,
                condition=int(number),
            )
        )
        if len(x) >= 3 and np.ptp(x) > 0:
            width = 2.0 if len(study.conditions) <= FEW else 0.7
            marks.append(_line(_fitted(x, y), logs, colour, width))
    order = np.array(sorted(means))
    if len(order) >= 3 and np.ptp(order[:, 0]) > 0:
        marks.append(_line(_fitted(*order.T), logs, "@ink", 2.0, "dash"))
    return Panel(
        f"within-{measure}-{outcome}",
        marks,
        value_axis(found.titles[measure], kept[measure]),
        value_axis(found.titles[outcome], kept[outcome]),
        f"A line for each condition, dashed the line through their means; n = {len(kept)}.",
        note=f"n = {len(kept)}",
    )


def _line(ends: tuple[Floats, Floats], logs: Sequence[bool], colour: str, width: float, dash: Dash = "solid") -> Line:
    x, y = map(_back, ends, logs)
    return Line(x, y, colour, width, dash)


def _fitted(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Both ends of the straight line through the points."""
    (x, wide), (y, high) = scaled(x), scaled(y)
    slope, level = np.polyfit(x, y, 1)
    ends = np.array([x.min(), x.max()])
    return np.ldexp(ends, wide), np.ldexp(slope * ends + level, high)


def _back(values: Floats, log: bool) -> Floats:
    return 10.0**values if log else values
