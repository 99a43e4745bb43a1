"""Figures of single models and conditions for papers: axes, reliability, spectra, landscapes."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from landscope.report.data.cohorts import Cohorts
from landscope.report.data.columns import label
from landscope.report.data.extras import gather, read_landscape, spread_over_conditions
from landscope.report.page.plotly import spans_decades
from landscope.report.page.style import FAINT, bare, colour, legend, line, literal, point
from landscope.report.sections.axes import axis_figures
from landscope.report.sections.calibration import both_times, calibrations, pooled
from landscope.report.sections.landscapes import loss_scale
from landscope.report.sections.spectra import densities

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["draw_axes", "draw_landscapes", "draw_reliability", "draw_spectra"]

CONDITIONS = 12
ACROSS = 4
LANDSCAPES = 6
LEVELS = 21
"""Of the loss."""


def draw_axes(study: Cohorts) -> Figure | None:
    """A panel for each kind of outcome along each axis of numbers, a line for each setting of the other axes."""
    from matplotlib.figure import Figure

    every = axis_figures(study)
    if not every:
        return None
    columns = min(2, len(every))
    rows = math.ceil(len(every) / columns)
    figure = Figure(figsize=(0.5 + 3.2 * columns, 2.9 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes, each in zip(panels.flat, every, strict=False):
        for number, curve in enumerate(each.lines):
            axes.errorbar(
                curve.x, curve.mean, curve.spread, **line(number) | point(number), ms=3.5, lw=1, capsize=2,
                label=literal(curve.name),
            )  # fmt: skip
        if each.logarithmic:
            axes.set_xscale("log")
        if spans_decades(each.values):
            axes.set_yscale("log")
        axes.set_xticks(each.settings, [f"{value:g}" for value in each.settings])
        axes.set_xticks([], minor=True)
        axes.set(xlabel=literal(each.axis), ylabel=literal(label(each.outcome)))
        rest = f", {each.left_out} more lines left out" if each.left_out else ""
        axes.set_title(f"n = {each.n}{rest}", loc="left", fontsize=7)
        if any(curve.name for curve in each.lines):
            axes.legend(frameon=False, fontsize=6)
        bare(axes)
    for axes in list(panels.flat)[len(every) :]:
        axes.set_visible(False)
    return figure


def draw_reliability(study: Cohorts) -> Figure | None:
    """A panel for each condition: all its models together, before and after temperature scaling where there are both."""
    from matplotlib.figure import Figure

    found, _ = calibrations(study)
    both = both_times(found)
    shown = [
        number for number in range(len(study.conditions)) if any(study.condition_of[run] == number for run in found)
    ]
    if not shown:
        return None
    shown = shown[:CONDITIONS]
    rows, columns = math.ceil(len(shown) / ACROSS), min(ACROSS, len(shown))
    figure = Figure(figsize=(0.5 + 1.75 * columns, 0.5 + 1.85 * rows), layout="constrained")
    panels = figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False)
    for axes, number in zip(panels.flat, shown, strict=False):
        members = [tables for run, tables in found.items() if study.condition_of[run] == number]
        axes.plot([0, 1], [0, 1], ":", color=FAINT, lw=0.8)
        for when, dash, mark in (("before", "--", "o"), ("after", "-", "s")):
            tables = [by_time[when] for by_time in members if when in by_time]
            pool = pooled(tables) if tables else None
            if pool is not None:
                table, low, high = pool
                error = float(np.mean([each.ece for each in tables]))
                held = table.counts > 0
                axes.vlines(table.confidence[held], low[held], high[held], color=colour(number), lw=0.6)
                axes.plot(
                    table.confidence[held], table.accuracy[held], dash, marker=mark, ms=2.5, lw=1, color=colour(number),
                    mfc="white" if when == "before" else colour(number),
                    label=f"{when}: {error:.3f}" if both else f"{error:.3f}",
                )  # fmt: skip
        axes.set_title(f"{literal(study.conditions[number])}, n = {len(members)}", loc="left", fontsize=7)
        axes.legend(frameon=False, fontsize=6, title="calibration error", title_fontsize=6)
        axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
        bare(axes)
    for axes in list(panels.flat)[len(shown) :]:
        axes.set_visible(False)
    figure.supxlabel("confidence", fontsize=7)
    figure.supylabel("accuracy", fontsize=7)
    return figure


def draw_spectra(study: Cohorts) -> Figure | None:
    """The density of the eigenvalues of every model, a panel for each matrix."""
    from matplotlib.figure import Figure

    every = densities(study)
    if not every:
        return None
    figure = Figure(figsize=(0.5 + 3.2 * len(every), 2.8), layout="constrained")
    legend(figure, study, line)
    for axes, (name, curves) in zip(figure.subplots(1, len(every), squeeze=False)[0], every.items(), strict=True):
        for run, (grid, density) in curves.items():
            axes.plot(grid, density, lw=0.8, alpha=0.8, **line(study.condition_of[run]))
        axes.set(yscale="log", xlabel="eigenvalue", ylabel="density")
        axes.set_title(f"{name}, n = {len(curves)}", loc="left", fontsize=7)
        bare(axes)
    return figure


def draw_landscapes(study: Cohorts) -> Figure | None:
    """Lines of equal loss: a row for each model, a column for each split, one scale for all of them."""
    from matplotlib.figure import Figure

    found, _ = gather(study, "landscape", read_landscape)
    shown = spread_over_conditions(study, found, LANDSCAPES)
    if not shown:
        return None
    scale = loss_scale(shown.values())
    spaced = np.geomspace if scale.logarithmic else np.linspace
    levels = spaced(scale.low, scale.high, LEVELS)
    columns = max(map(len, shown.values()))
    figure = Figure(figsize=(0.8 + 2.3 * columns, 0.3 + 2.1 * len(shown)), layout="constrained")
    panels = figure.subplots(len(shown), columns, squeeze=False)
    for row, (run, landscapes) in zip(panels, shown.items(), strict=True):
        for axes, (split, each) in zip(row, landscapes.items(), strict=False):
            drawn = axes.contourf(
                each.a,
                each.b,
                np.ma.masked_invalid(each.loss),
                levels=levels,
                norm="log" if scale.logarithmic else "linear",
                cmap="viridis",
            )
            axes.plot(0, 0, "+", color="white", ms=7)
            axes.set_title(f"{literal(study.run_name(run))}, {literal(split)}", loc="left", fontsize=7)
            axes.set(aspect="equal")
            axes.tick_params(labelsize=6)
        for axes in row[len(landscapes) :]:
            axes.set_visible(False)
    figure.colorbar(
        drawn,
        ax=panels,
        label=scale.title,
        fraction=0.05,
        shrink=min(1, 2 / len(shown)),
        format="%.2g",
        ticks=levels[::4],
    )
    return figure
