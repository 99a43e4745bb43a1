"""The figure of a report: panels by family, each on a scale of its own, and the spectrum where it was measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from landscope.core.display import ACCENT, GRID, INK, MUTED, NEGATIVE
from landscope.core.estimate import Estimate, Status
from landscope.core.json import Plain
from landscope.measures.base import MEASURES
from landscope.measures.reading.rows import Row, Rows
from landscope.spectra import Spectrum

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PANEL, ROW = 3.4, 0.26
"""Inches: the width of a panel's axes, and the height of a row."""
DECADES = 30.0
"""Values further apart than this factor are drawn by their size on a logarithmic axis."""
WIDE = 100.0
"""Factor over which a logarithmic axis is named at powers of ten only."""
NOWHERE = 1e-12


def plot_report(estimates: Mapping[str, Estimate], about: Mapping[str, Plain]) -> Figure:
    """Every value with two standard errors either way: wide those over the data, thin the estimator's own."""
    from matplotlib.figure import Figure

    families = dict(_panels(Rows.of(estimates).families))
    spectra = {name: e for name, e in estimates.items() if "offdiagonal" in e.details}
    spectrum = "hessian_spectrum" if "hessian_spectrum" in spectra else next(iter(spectra), "")
    panels: list[tuple[str, list[Row]]] = [*families.items(), *([(spectrum, [])] if spectrum else [])]
    columns = min(2, max(len(panels), 1))
    lines = [panels[start : start + columns] for start in range(0, len(panels), columns)]
    heights = [max([0.35 + ROW * len(rows) if rows else 2.0 for _, rows in line]) for line in lines] or [1.0]
    size = (columns * (PANEL + 2.3), sum(heights) + 0.55 * len(heights) + 0.5)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(len(heights), columns, squeeze=False, height_ratios=heights)
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, (title, rows) in zip(grid.flat, panels, strict=False):
        if rows:
            _family(axes, rows)
        else:
            Spectrum.from_dict(spectra[spectrum].details).plot(ax=axes)
            axes.set_xlabel("eigenvalue", fontsize=8)
            axes.set_ylabel("density", fontsize=8)
            title = MEASURES[spectrum].title if spectrum in MEASURES else spectrum
        axes.set_title(title, loc="left", fontsize=9, fontweight="bold", color=INK)
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(colors=INK, labelsize=8)
    told = [str(about[key]) for key in ("model", "parameters", "samples", "loss") if key in about]
    figure.suptitle(" · ".join(told), x=0.01, ha="left", fontsize=10, color=INK)
    figure.supxlabel(
        "two standard errors either way: wide over the data, thin of the estimator; arrows: at least, at most",
        fontsize=7,
        color=MUTED,
    )
    return figure


def _panels(families: Mapping[str, Sequence[Row]]) -> Iterator[tuple[str, list[Row]]]:
    """What has a value, family by family; of sharpness, a number without a unit (a log volume) has an axis of its own."""
    for family, rows in families.items():
        drawn = [row for row in rows if row.estimate.status.has_value]
        known = [(row, MEASURES[row.name]) for row in drawn if row.name in MEASURES]
        bare = [row for row, facts in known if facts.family.is_of_sharpness and not facts.unit]
        measured = [row for row in drawn if row not in bare]
        if measured:
            yield family, measured
        if bare:
            yield f"{family}, without a unit" if measured else family, bare


def _family(axes: Axes, rows: Sequence[Row]) -> None:
    """A row for each measure; by size on a logarithmic axis where the values are far apart."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    values = [row.estimate.value for row in rows]
    sizes = [abs(value) for value in values if value]
    log = bool(sizes) and max(sizes) > DECADES * min(sizes)
    for place, row in enumerate(rows):
        _value(axes, place, row.estimate, log=log)
        axes.text(1.02, place, row.value, transform=axes.get_yaxis_transform(), va="center", fontsize=7, color=MUTED)
    axes.set_yticks(range(len(rows)), [MEASURES[row.name].title if row.name in MEASURES else row.name for row in rows])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.grid(axis="x", color=GRID, lw=0.7)
    axes.set_axisbelow(True)
    if log:
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        within_one = high < WIDE * low  # a decade has at most one label of its own: name some in between
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if within_one else (1.0,), numticks=6))
        axes.xaxis.set_minor_formatter(NullFormatter())
    else:
        axes.axvline(0, color=MUTED, lw=0.6)
        axes.xaxis.set_major_locator(MaxNLocator(4))
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, 0.0), max(high, 0.0) if high > NOWHERE else 1.0)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value + 0.0:g}"))
    units = list(dict.fromkeys(MEASURES[row.name].unit for row in rows if row.name in MEASURES))
    sign = "size, orange where negative" if log and min(values) < 0 else ""
    axes.set_xlabel(", ".join(filter(None, [units[0] if len(units) == 1 else "", sign])), fontsize=7, color=MUTED)


def _value(axes: Axes, place: int, estimate: Estimate, *, log: bool) -> None:
    colour = NEGATIVE if estimate.value < 0 else ACCENT
    at = abs(estimate.value) if log else estimate.value
    if log and at == 0:
        return
    for error, width, shade in ((estimate.data_stderr, 6.0, 0.25), (estimate.stderr, 1.6, 1.0)):
        if error:
            low = max(at - 2 * error, at / 10) if log else at - 2 * error
            axes.plot([low, at + 2 * error], [place, place], lw=width, color=colour, alpha=shade, solid_capstyle="butt")
    marker = {Status.LOWER_BOUND: ">", Status.UPPER_BOUND: "<"}.get(estimate.status, "o")
    if math.isfinite(at):
        axes.plot(at, place, marker, ms=4.5, color=colour)
