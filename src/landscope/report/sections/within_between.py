"""Simpson's paradox, shown: what holds over all models, inside the conditions, and between them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from landscope.analysis import Correlation, Simpson
from landscope.analysis.coefficients import mean_and_deviation, scaled
from landscope.core.json import Plain
from landscope.report.data.associations import Associations, models_used
from landscope.report.data.cohorts import Cohorts
from landscope.report.page.blocks import Block, Panels, Plot, Prose, Section
from landscope.report.page.embedding import plot_text, rounded
from landscope.report.page.plotly import Floats, axis, spans_decades

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
    told = {
        pair: view for pair, view in views.items() if view.pooled.value is not None and view.overall.value is not None
    }
    if not told:
        why = next((view.pooled.reason for view in views.values() if view.pooled.value is None), "")
        text = f"Inside conditions nothing can be said: {why}. More seeds per condition would tell." if why else ""
        return Section(nothing.key, nothing.title, [Prose(text, tone="note")] if text else [])
    blocks: list[Block] = [
        Prose(
            "A measure can go with an outcome because the conditions differ in both, and say nothing about models trained "
            "alike. For the strongest pairs:"
        ),
        _coefficients(found, told),
        Prose(items=[_words(found, pair, view) for pair, view in told.items()]),
        Panels([_drawing(study, found, pair) for pair in list(told)[:DRAWN]]),
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


def _coefficients(found: Associations, views: dict[tuple[str, str], Simpson]) -> Plot:
    names = [plot_text(f"{found.titles[m]}, {found.titles[o]}") for m, o in views]
    data: list[Plain] = []
    kinds = (
        ("all models", "circle", "@ink", [view.overall for view in views.values()]),
        ("inside conditions", "diamond", "@c1", [view.pooled for view in views.values()]),
        ("between conditions", "square-open", "@c0", [view.between for view in views.values()]),
    )
    for place, (name, symbol, colour, correlations) in enumerate(kinds):
        kept = [(row, c) for row, c in enumerate(correlations) if c.value is not None]
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "name": name,
                "x": [rounded(c.value) for _, c in kept],
                "y": [row + 0.22 * (place - 1) for row, _ in kept],
                "error_x": {
                    "type": "data",
                    "symmetric": False,
                    "array": [_bar(c, upper=True) for _, c in kept],
                    "arrayminus": [_bar(c, upper=False) for _, c in kept],
                    "color": colour,
                    "thickness": 1.3,
                    "width": 0,
                },
                "marker": {"symbol": symbol, "size": 8, "color": colour},
                "hoverinfo": "text",
                "hovertext": [plot_text(f"{name}: {c}") for _, c in kept],
            }
        )
    return Plot(
        "simpson",
        {
            "data": data,
            "layout": {
                "xaxis": {"range": [-1.08, 1.08], "zeroline": True, "fixedrange": True},
                "yaxis": {
                    "tickvals": list(range(len(names))),
                    "ticktext": [*names],
                    "range": [len(names) - 0.4, -0.6],
                    "fixedrange": True,
                },
                "showlegend": True,
                "dragmode": False,
                "margin": {"l": 60, "r": 10, "t": 30, "b": 36},
            },
        },
        f"Correlation of all models, of models of the same condition with each other, and of the conditions' means, with 95% "
        f"intervals where they are known; n = {models_used([view.overall.n for view in views.values()], len(found.cohort))}.",
        height=110 + 52 * len(names),
    )


def _bar(c: Correlation, upper: bool) -> float:
    if c.value is None or c.low is None or c.high is None:
        return 0.0
    return max(0.0, c.high - c.value if upper else c.value - c.low)


def _drawing(study: Cohorts, found: Associations, pair: tuple[str, str]) -> Plot:
    """Points in their conditions' colours, a line for each condition, a dashed one through the means."""
    measure, outcome = pair
    frame = found.cohort.frame[[measure, outcome]].astype(float)
    kept = frame[np.isfinite(frame).all(axis=1)]
    logs = [spans_decades(kept[column]) for column in pair]
    values = [np.log10(kept[column]) if log else kept[column] for column, log in zip(pair, logs, strict=True)]
    condition = np.array([study.condition_of[run] for run in kept.index])
    step = -(-len(kept) // POINTS)
    data: list[Plain] = []
    means = []
    for number in np.unique(condition):
        x, y = (column.to_numpy()[condition == number] for column in values)
        runs = kept.index[condition == number]
        means.append((mean_and_deviation(x)[0], mean_and_deviation(y)[0]))
        colour = f"@c{number}"
        data.append(
            {
                "type": "scatter",
                "mode": "markers",
                "x": _back(x[::step], logs[0]),
                "y": _back(y[::step], logs[1]),
                "marker": {"color": colour, "size": 6, "opacity": 0.55},
                "hoverinfo": "text",
                "hovertext": [plot_text(study.run_name(run)) for run in runs[::step]],
                "selected": {"marker": {"opacity": 1, "size": 11}},
                "unselected": {"marker": {"opacity": 0.1}},
                "meta": {"runs": [int(run) for run in runs[::step]]},
            }
        )
        if len(x) >= 3 and np.ptp(x) > 0:
            width = 2.0 if len(study.conditions) <= FEW else 0.7
            data.append(_line(_fitted(x, y), logs, colour, "solid", width))
    order = np.array(sorted(means))
    if len(order) >= 3 and np.ptp(order[:, 0]) > 0:
        data.append(_line(_fitted(*order.T), logs, "@ink", "dash", 2.0))
    axes = {key: axis(found.titles[column], kept[column]) for key, column in zip(("xaxis", "yaxis"), pair, strict=True)}
    return Plot(
        f"within-{measure}-{outcome}",
        {"data": data, "layout": {**axes}},
        f"A line for each condition, dashed the line through their means; n = {len(kept)}.",
        height=300,
    )


def _fitted(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Both ends of the straight line through the points."""
    (x, wide), (y, high) = scaled(x), scaled(y)
    slope, level = np.polyfit(x, y, 1)
    ends = np.array([x.min(), x.max()])
    return np.ldexp(ends, wide), np.ldexp(slope * ends + level, high)


def _back(values: np.ndarray, log: bool) -> Plain:
    return rounded(10.0**values if log else values)


def _line(ends: tuple[Floats, Floats], logs: Sequence[bool], colour: str, dash: str, width: float) -> dict[str, Plain]:
    x, y = map(_back, ends, logs)
    return {
        "type": "scatter",
        "mode": "lines",
        "x": x,
        "y": y,
        "line": {"color": colour, "width": width, "dash": dash},
        "hoverinfo": "skip",
        "showlegend": False,
    }
