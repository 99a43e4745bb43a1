"""Curves through training for papers: every column over the steps, and the measures over the training loss."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from landscope.report.data.cohorts import Cohorts
from landscope.report.data.columns import label
from landscope.report.page.plotly import spans_decades
from landscope.report.page.style import bare, colour, legend, line, literal, point
from landscope.report.sections.through_training import BANDS, LOSS, PANELS, courses, losses_of, step_axis

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["draw_over_loss", "draw_through_training"]

ACROSS = 3


def draw_through_training(study: Cohorts) -> Figure | None:
    """Medians of each condition over the steps, from the smallest to the largest model."""
    found = courses(study)[:PANELS]
    if not found:
        return None
    figure, panels = _panels(study, len(found))
    for axes, course in zip(panels, found, strict=False):
        places, texts, logarithmic = step_axis(course.steps)
        for number, (middle, low, high) in course.by_condition.items():
            known = np.isfinite(middle)
            axes.plot(places[known], middle[known], **line(number) | point(number), lw=1, ms=3)
            if len(course.by_condition) <= BANDS:
                axes.fill_between(places[known], low[known], high[known], color=colour(number), alpha=0.13, lw=0)
        axes.set_xscale("log" if logarithmic else "linear")
        axes.set_xticks(places, texts)
        axes.set_xticks([], minor=True)
        _finish(axes, "step", label(course.column), course.shown, len(course.values))
    return figure


def draw_over_loss(study: Cohorts) -> Figure | None:
    """The measures of the training rows over the training loss, a point for each step, the last one larger."""
    found = courses(study)[:PANELS]
    pairs = [(course, loss) for course in found if (loss := losses_of(found, course)) is not None]
    if not pairs:
        return None
    figure, panels = _panels(study, len(pairs))
    for axes, (course, loss) in zip(panels, pairs, strict=False):
        for number, (middle, _, _) in course.by_condition.items():
            x = loss.by_condition[number][0]
            known = np.isfinite(x) & np.isfinite(middle)
            axes.plot(x[known], middle[known], **line(number) | point(number), lw=1, ms=3)
            axes.plot(x[known][-1:], middle[known][-1:], **point(number), ms=5.5)
        if spans_decades(v for middle, _, _ in loss.by_condition.values() for v in middle):
            axes.set_xscale("log")
        medians = [float(v) for middle, _, _ in course.by_condition.values() for v in middle]
        _finish(axes, label(LOSS), label(course.column), medians, len(course.values))
    return figure


def _panels(study: Cohorts, count: int) -> tuple[Figure, list[Axes]]:
    from matplotlib.figure import Figure

    columns = min(ACROSS, count)
    rows = math.ceil(count / columns)
    figure = Figure(figsize=(0.5 + 2.4 * columns, 0.6 + 2.1 * rows), layout="constrained")
    legend(figure, study, lambda number: line(number) | point(number))
    panels = list(figure.subplots(rows, columns, squeeze=False).flat)
    for axes in panels[count:]:
        axes.set_visible(False)
    return figure, panels[:count]


def _finish(axes: Axes, along: str, name: str, values: list[float], n: int) -> None:
    if spans_decades(values):
        axes.set_yscale("log")
    axes.set_xlabel(literal(along), fontsize=7)
    axes.set_title(f"{literal(name)}, n = {n}", loc="left", fontsize=7)
    bare(axes)
