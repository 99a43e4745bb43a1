"""Figures of correlations for papers: the forest, the heat map and the scatter plots."""

from __future__ import annotations

from textwrap import fill
from typing import TYPE_CHECKING, cast

import numpy as np

from landscope.core.json import Plain
from landscope.core.text import counted
from landscope.report.data.associations import Associations, models_used
from landscope.report.data.cohorts import Cohorts
from landscope.report.page.plotly import spans_decades
from landscope.report.page.style import ACCENT, FAINT, INK, bare, legend, literal, point
from landscope.report.sections.correlations import DIVERGING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_correlations", "draw_forest", "draw_scatter"]

OUTCOMES, MEASURES = 4, 4
"""Rows and columns of scatter plots."""
ACROSS, ABOVE, TICKS = 26, 20, 3
"""Letters for which there is room under a scatter plot, beside it and above a panel of intervals, and numbers under the first."""
ERROR_BARS = 300
"""Points up to which they are legible."""


def draw_forest(found: Associations) -> Figure:
    """A panel for each outcome, a row for each measure; filled where significant after adjustment."""
    from matplotlib.figure import Figure

    outcomes = found.outcomes
    order = sorted(
        found.measures, key=lambda m: sum(abs(found.finding(m, o).correlation.value or 0.0) for o in outcomes)
    )
    titles = [fill(found.titles[outcome], ABOVE) for outcome in outcomes]
    height = 0.9 + 0.2 * len(order) + 0.12 * max(title.count("\n") for title in titles)
    figure = Figure(figsize=(1.8 + 1.45 * len(outcomes), height), layout="constrained")
    panels = figure.subplots(1, len(outcomes), sharey=True, squeeze=False)[0]
    for axes, outcome, title in zip(panels, outcomes, titles, strict=True):
        axes.axvline(0, color=FAINT, lw=0.8)
        for row, measure in enumerate(order):
            c = found.finding(measure, outcome).correlation
            if c.value is None:
                continue
            sure = found.sure(measure, outcome)
            shade = ACCENT if sure else FAINT
            if c.low is not None and c.high is not None:
                axes.plot([c.low, c.high], [row, row], color=shade, lw=1.2)
            axes.plot(c.value, row, "o", ms=4, color=shade, mfc=shade if sure else "white")
        axes.set(xlim=(-1.05, 1.05), xticks=[-1, 0, 1])
        axes.set_title(literal(title), fontsize=8)
        bare(axes)
    panels[0].set_yticks(range(len(order)), [literal(found.titles[m]) for m in order])
    symbol_of = found.table.findings[0].correlation.symbol
    figure.supxlabel(
        f"{symbol_of} with 95% interval, n = {models_used(found.sizes, len(found.cohort))}; filled: significant after "
        f"adjusting for {counted(found.tests, 'test')}",
        fontsize=7,
    )
    return figure


def draw_correlations(found: Associations) -> Figure:
    """Measures in rows, outcomes in columns; a star where significant after adjustment."""
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

    values = np.array(
        [[found.finding(m, o).correlation.value for o in found.outcomes] for m in found.measures], dtype=float
    )
    figure = Figure(figsize=(2.2 + 0.62 * len(found.outcomes), 1.2 + 0.23 * len(found.measures)), layout="constrained")
    axes = figure.subplots()
    stops = [(cast(float, stop[0]), cast(str, stop[1])) for stop in cast("list[list[Plain]]", DIVERGING)]
    image = axes.imshow(
        values, vmin=-1, vmax=1, cmap=LinearSegmentedColormap.from_list("diverging", stops), aspect="auto"
    )
    for row, measure in enumerate(found.measures):
        for column, outcome in enumerate(found.outcomes):
            if np.isfinite(values[row, column]):
                star = "*" if found.sure(measure, outcome) else ""
                shade = "white" if abs(values[row, column]) > 0.6 else INK
                axes.text(
                    column, row, f"{values[row, column]:.2f}{star}", ha="center", va="center", fontsize=6, color=shade
                )
    axes.set_xticks(
        range(len(found.outcomes)), [literal(found.titles[o]) for o in found.outcomes], rotation=40, ha="right"
    )
    axes.set_yticks(range(len(found.measures)), [literal(found.titles[m]) for m in found.measures])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=7)
    figure.colorbar(image, ax=axes, label=found.table.findings[0].correlation.symbol, fraction=0.05)
    return figure


def draw_scatter(study: Cohorts, found: Associations) -> Figure:
    """The measures that go with each outcome most, with error bars of one standard error."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import MaxNLocator

    outcomes = [o for o in found.outcomes[:OUTCOMES] if found.strongest(o)]
    width = min(MEASURES, max((len(found.strongest(o)) for o in outcomes), default=0))
    figure = Figure(figsize=(0.6 + 1.75 * max(width, 1), 0.7 + 1.6 * max(len(outcomes), 1)), layout="constrained")
    legend(figure, study, point)
    frame, errors = found.cohort.frame, found.cohort.errors
    condition = np.array([study.condition_of[run] for run in frame.index])
    panels = figure.subplots(max(len(outcomes), 1), max(width, 1), squeeze=False)
    for row, outcome in enumerate(outcomes):
        for axes, measure in zip(panels[row], found.strongest(outcome), strict=False):
            x, y = (frame[c].to_numpy(dtype=np.float64) for c in (measure, outcome))
            ex, ey = (errors[c].fillna(0.0).to_numpy(dtype=np.float64) for c in (measure, outcome))
            for number in np.unique(condition):
                at = (condition == number) & np.isfinite(x) & np.isfinite(y)
                bars = {"xerr": ex[at], "yerr": ey[at]} if len(frame) <= ERROR_BARS else {}
                axes.errorbar(
                    x[at],
                    y[at],
                    ls="",
                    ms=3.5,
                    elinewidth=0.5,
                    **point(number),
                    **bars,
                )
            axes.set_xscale("log" if spans_decades(x) else "linear")
            axes.set_yscale("log" if spans_decades(y) else "linear")
            c = found.finding(measure, outcome).correlation
            axes.set_xlabel(literal(fill(found.titles[measure], ACROSS)), fontsize=7)
            axes.set_title(f"{c.symbol} = {c.value:.2f}, n = {c.n}".replace("-", "−"), loc="left", fontsize=6)
            bare(axes)
            if axes.get_xscale() == "linear":
                axes.xaxis.set_major_locator(MaxNLocator(TICKS))
        panels[row, 0].set_ylabel(literal(fill(found.titles[outcome], ABOVE)), fontsize=7)
    for axes in panels.flat:
        axes.set_visible(bool(axes.has_data()))
    return figure
