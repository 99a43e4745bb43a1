"""What holds between the conditions, and what inside them: coefficients, slopes of a mixed model, and the models themselves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from landscope.analysis import Correlation, Mean, slopes
from landscope.analysis.coefficients import mean_and_deviation, scaled
from landscope.analysis.verdicts import ALPHA
from landscope.core.text import decimal, p_value, significant
from landscope.report.data.associations import Associations
from landscope.report.data.cohorts import Cohorts
from landscope.report.page.blocks import Block, Cell, Heading, Prose, Section, Table, words
from landscope.report.page.figure import (
    Axis,
    Curve,
    Dash,
    Errors,
    Figure,
    Floats,
    Mark,
    Marker,
    Panel,
    Points,
    spans_decades,
    value_axis,
)

PAIRS = 6
DRAWN = 3
POINTS = 1500
LEAST = 3
"""The fewest models of a condition that gets its own line."""
FEW = 12
"""Conditions up to which each has a bold line."""


def within_between_section(study: Cohorts, found: Associations | None) -> Section:
    """One figure of coefficients, and scatter plots with a line for each condition."""
    nothing = Section("simpson", "Within and between conditions", [])
    if found is None or len(study.conditions) < 2:
        return nothing
    pairs = _pairs(found)
    known = [pair for pair in pairs if _inside(found, pair).value is not None]
    if not known:
        alone = len(found.used) == found.used.frame["condition"].nunique()
        why = "each has one model" if alone else next((_inside(found, pair).reason for pair in pairs), "")
        text = f"Nothing is known inside conditions: {why}. More seeds per condition would help." if why else ""
        return Section(nothing.key, nothing.title, [Prose(text, tone="note")] if text else [])
    blocks: list[Block] = [
        Prose(
            "A measure can go with an outcome between conditions, because these differ in both, and not inside them, among "
            "models that were trained alike; or the other way round. Between conditions each counts once, however many models "
            "it has. The strongest pairs:"
        ),
        _coefficients(found, known),
        _table(found, known),
        Figure("within", [_drawing(study, found, pair) for pair in known[:DRAWN]]),
    ]
    return Section(nothing.key, nothing.title, blocks, _so_what(found, known))


def _so_what(found: Associations, pairs: Iterable[tuple[str, str]]) -> str:
    """Whether what holds between conditions holds among models that were trained alike."""
    pairs = list(pairs)
    inside = sum(found.sure_inside(*pair) for pair in pairs)
    turned = sum(found.paradox(*pair) for pair in pairs)
    if turned:
        return (
            f"In {turned} of these {len(pairs)} pairs the sign turns inside conditions (Simpson's paradox): there, the measure "
            f"orders models that were trained alike the other way round than it orders conditions."
        )
    if inside:
        return f"{inside} of these {len(pairs)} pairs also hold among models that were trained alike."
    return (
        "None of these pairs is shown among models that were trained alike: these measures do not tell which seed "
        "is better."
    )


def _inside(found: Associations, pair: tuple[str, str]) -> Correlation:
    within = found.finding(*pair).within
    assert within is not None  # there are several conditions
    return within


def _table(found: Associations, pairs: Sequence[tuple[str, str]]) -> Table:
    symbol = _inside(found, pairs[0]).symbol
    rows = []
    for measure, outcome in pairs:
        f = found.finding(measure, outcome)
        across, inside = _slopes(found, (measure, outcome))
        rows.append(
            [
                Cell(found.titles[measure], title=measure),
                Cell(found.titles[outcome], title=outcome),
                _cell(f.correlation, f.adjusted_p),
                _cell(_inside(found, (measure, outcome)), f.within_adjusted_p, turned=found.paradox(measure, outcome)),
                Cell(across),
                Cell(inside),
            ]
        )
    heads = [f"{symbol} between", f"{symbol} inside", "slope between", "slope inside"]
    caption = (
        f"A star: significant after adjusting for all pairs; shaded: both are, with opposite signs. Slopes, with 95% intervals, "
        f"are those of a mixed model with an intercept for each condition: by how much (×: by which factor) the outcome differs "
        f"between conditions, and between models of one condition, where the measure is twice as large; "
        f"verdicts are those of {symbol}. n = {found.units}."
    )
    return Table([*words("measure", "outcome"), *map(Heading, heads)], rows, caption, key="within-between-table")


def _cell(c: Correlation, adjusted: float | None, *, turned: bool = False) -> Cell:
    if c.value is None:
        return Cell("–", title=c.reason)
    star = "*" * (adjusted is not None and adjusted <= ALPHA)
    return Cell(
        decimal(c.value) + star,
        mark="bad" if turned else "",
        title=f"{c}; adjusted p {p_value(adjusted)}",
    )


def _slopes(found: Associations, pair: tuple[str, str]) -> tuple[str, str]:
    """How much the outcome differs, between and inside conditions, per doubling of a positive measure, or per unit."""
    frame = found.used.frame[[*pair, "condition"]].dropna()
    x, y = (frame[column].astype(float) for column in pair)
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        return "–", "–"
    doubling, ratio = bool((x > 0).all()), spans_decades(y)
    both = slopes(np.log2(x) if doubling else x, np.log2(y) if ratio else y, frame["condition"])
    unit = "" if doubling else " per unit"
    return _slope(both.between, ratio, unit), _slope(both.within, ratio, unit)


def _slope(side: Mean | None, ratio: bool, unit: str) -> str:
    if side is None:
        return "–"
    ends = [float(np.exp2(np.clip(each, -1000, 1000))) if ratio else each for each in (side.value, *side.interval())]
    value, low, high = (significant(each, 2) for each in ends)
    return f"{'× ' * ratio}{value} [{low}, {high}]{unit}"


def _pairs(found: Associations) -> list[tuple[str, str]]:
    """The strongest of the first outcomes, then those whose sign turns inside conditions, then the strongest left."""
    ranked = sorted(
        ((m, o) for o in found.outcomes for m in found.strongest(o)),
        key=lambda pair: -abs(found.shown(*pair).value or 0.0),
    )
    first = [next((pair for pair in ranked if pair[1] == o), None) for o in found.outcomes]
    turned = [pair for pair in ranked if found.paradox(*pair)]
    chosen = dict.fromkeys([pair for pair in first if pair is not None][: PAIRS // 2] + turned + ranked)
    return list(chosen)[:PAIRS]


def _coefficients(found: Associations, pairs: Sequence[tuple[str, str]]) -> Figure:
    names = [f"{found.titles[m]},\n{found.titles[o]}" for m, o in pairs]
    kinds = (
        ("between conditions", "@c0", Marker(8, "square"), [found.finding(*pair).correlation for pair in pairs]),
        ("inside conditions", "@c1", Marker(8, "diamond"), [_inside(found, pair) for pair in pairs]),
    )
    marks = []
    for place, (name, colour, marker, correlations) in enumerate(kinds):
        kept = [(row, c) for row, c in enumerate(correlations) if c.value is not None]
        marks.append(
            Points(
                np.array([c.value for _, c in kept], dtype=np.float64),
                np.array([row + 0.24 * (place - 0.5) for row, _ in kept]),
                colour,
                marker,
                x_error=_intervals([c for _, c in kept], colour),
                legend=name,
                hover=[f"{name}: {c}" for _, c in kept],
            )
        )
    symbol = _inside(found, pairs[0]).symbol
    used = found.units
    panel = Panel(
        "simpson",
        marks,
        Axis(range=(-1.08, 1.08), zero=True),
        Axis(ticks=(np.arange(float(len(names))), names), range=(len(names) - 0.4, -0.6)),
        f"Correlation of the conditions' means, and of models of the same condition with each other, with 95% intervals; "
        f"n = {used}.",
        note=f"{symbol} with 95% interval, n = {used}",
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
    frame = found.used.frame[[measure, outcome]].astype(float)
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
        if len(x) >= LEAST and np.ptp(x) > 0:
            width = 2.0 if len(study.conditions) <= FEW else 0.7
            marks.append(_line(_fitted(x, y), logs, colour, width))
    lines = (
        f"A line for each condition of {LEAST} models or more. "
        if any(isinstance(each, Curve) for each in marks)
        else ""
    )
    order = np.array(sorted(means))
    if len(order) >= 3 and np.ptp(order[:, 0]) > 0:
        marks.append(_line(_fitted(*order.T), logs, "@ink", 2.0, "dash"))
    return Panel(
        f"within-{measure}-{outcome}",
        marks,
        value_axis(found.titles[measure], kept[measure]),
        value_axis(found.titles[outcome], kept[outcome]),
        f"{lines}Dashed: the line through the means of conditions; n = {len(means)} conditions, {len(kept)} models.",
        note=f"n = {len(means)} conditions, {len(kept)} models",
    )


def _line(ends: tuple[Floats, Floats], logs: Sequence[bool], colour: str, width: float, dash: Dash = "solid") -> Curve:
    x, y = map(_back, ends, logs)
    return Curve(x, y, colour, width, dash)


def _fitted(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Both ends of the straight line through the points."""
    (x, wide), (y, high) = scaled(x), scaled(y)
    slope, level = np.polyfit(x, y, 1)
    ends = np.array([x.min(), x.max()])
    return np.ldexp(ends, wide), np.ldexp(slope * ends + level, high)


def _back(values: Floats, log: bool) -> Floats:
    return 10.0**values if log else values
