"""Training curves for papers: a panel for each column of the histories."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from landscope.report.data.cohorts import Cohorts
from landscope.report.page.plotly import spans_decades
from landscope.report.page.style import bare, colour, legend, line, literal
from landscope.report.sections.histories import BANDS, History, histories, mean_curves

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_training"]

ACROSS = 3


def draw_training(study: Cohorts) -> Figure | None:
    """A line for every model, or mean and spread of each condition where there are many."""
    from matplotlib.figure import Figure

    every = histories(study)
    if not every:
        return None
    columns = min(ACROSS, len(every))
    rows = math.ceil(len(every) / columns)
    figure = Figure(figsize=(0.5 + 2.4 * columns, 0.6 + 2.1 * rows), layout="constrained")
    legend(figure, study, line)
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes, each in zip(panels.flat, every, strict=False):
        _draw(axes, study, each)
        axes.set_title(f"{literal(each.name)}, n = {len(each.curves)}", loc="left", fontsize=7)
        axes.set_xlabel(literal(each.time), fontsize=7)
        if spans_decades(each.values):
            axes.set_yscale("log")
        bare(axes)
    for axes in list(panels.flat)[len(every) :]:
        axes.set_visible(False)
    return figure


def _draw(axes: Axes, study: Cohorts, history: History) -> None:
    if not history.by_condition:
        for run, (x, y) in history.curves.items():
            axes.plot(x, y, lw=0.8, alpha=0.8, **line(study.condition_of[run]))
        return
    for curve in mean_curves(study, history):
        axes.plot(curve.time, curve.mean, lw=1, **line(curve.condition))
        if len(study.conditions) <= BANDS:
            low, high = curve.mean - curve.spread, curve.mean + curve.spread
            axes.fill_between(curve.time, low, high, color=colour(curve.condition), alpha=0.15, lw=0)
