"""A figure, described once: panels of lines, points, bands, bars, heat maps and contours on axes.

`page/plotly` draws any of them in the browser, `page/matplotlib` on paper and in pages without script. A colour is a token that
both understand: "@c3" is the colour of condition 3, "@ink", "@muted" and "@accent" are the page's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from landscope.report.data.cohorts import Cohorts

Floats = NDArray[np.float64]
Dash = Literal["solid", "dash", "dot"]
Symbol = Literal["", "circle", "square", "diamond"]

DASHES: tuple[Dash, ...] = ("solid", "dash", "dot")
"""Of the first eight conditions, the second and the third: there are eight colours."""
SPREAD = 100.0
"""A positive axis whose largest value is more than this many times the smallest is logarithmic."""
POINTS = 200
"""The most points of a curve."""


@dataclass(frozen=True, eq=False)
class Marker:
    """How points look. Without a symbol they have that of their condition on paper, and are circles in the browser."""

    size: float | Floats
    """In browser pixels."""
    symbol: Symbol = ""
    hollow: bool = False
    opacity: float | None = None


@dataclass(frozen=True, eq=False)
class Errors:
    """Bars from `minus` below the points to `plus` above; symmetric without `minus`."""

    plus: Floats
    minus: Floats | None = None
    colour: str = ""
    """Empty for the colour of the points."""
    thickness: float = 1
    cap: float = 0


@dataclass(frozen=True, eq=False)
class Curve:
    """A curve; with a marker, its points are shown too. It belongs to a run, to a condition or to neither."""

    x: Floats
    y: Floats
    colour: str
    width: float = 1.4
    dash: Dash = "solid"
    opacity: float = 1.0
    marker: Marker | None = None
    y_error: Errors | None = None
    legend: str = ""
    """Its name in the panel's own legend."""
    hover: str | Sequence[str] = ""
    """What is read under the pointer: of the line, or of each point. Nothing where it is empty."""
    hover_numbers: Literal["x+y", "y", ""] = "x+y"
    """The coordinates that are read beside it."""
    over_gaps: bool = False
    """Whether the line is drawn across missing values."""
    run: int | None = None
    condition: int | None = None


@dataclass(frozen=True, eq=False)
class Points:
    """Points, each perhaps of a run."""

    x: Floats
    y: Floats
    colour: str
    marker: Marker
    x_error: Errors | None = None
    y_error: Errors | None = None
    legend: str = ""
    hover: Sequence[str] = ()
    runs: Sequence[int] = ()
    condition: int | None = None


@dataclass(frozen=True, eq=False)
class Band:
    """The area between two curves."""

    x: Floats
    low: Floats
    high: Floats
    colour: str
    name: str


@dataclass(frozen=True, eq=False)
class Bars:
    """A bar for each category, beside those of other conditions."""

    categories: Sequence[str]
    values: Floats
    error: Errors
    condition: int
    name: str


@dataclass(frozen=True, eq=False)
class Heat:
    """A cell for each row and column; with `texts`, its number is written into it, otherwise a bar shows the scale."""

    columns: Sequence[str]
    rows: Sequence[str]
    values: Floats
    hover: Sequence[Sequence[str]]
    texts: Sequence[Sequence[str]] = ()
    scale: Literal["diverging", "sequential"] = "diverging"
    """From −1 to 1, or from the smallest value to the largest."""
    bar: str = ""
    """The title of the bar."""


@dataclass(frozen=True)
class ColourScale:
    """The colours that all contours of a figure share, so that they can be compared."""

    low: float
    high: float
    logarithmic: bool
    title: str


@dataclass(frozen=True, eq=False)
class Contour:
    """Lines of equal height over a plane of one model; a cross marks the origin, a path the way that led there."""

    x: Floats
    y: Floats
    heights: Floats
    scale: ColourScale
    run: int
    name: str
    path: Floats | None = None
    bar: bool = True
    """Whether the browser shows the scale beside it."""


@dataclass(frozen=True)
class Rule:
    """A dotted vertical line."""

    x: float


Mark = Curve | Points | Band | Bars | Heat | Contour | Rule


@dataclass(frozen=True, eq=False)
class Axis:
    """One axis; `ticks` are places and what is written there."""

    title: str = ""
    scale: Literal["", "linear", "log", "category"] = ""
    """Found by the browser where it is empty: linear for numbers, categories for words."""
    ticks: tuple[Floats, Sequence[str]] | None = None
    range: tuple[float, float] | None = None
    step: float | None = None
    """Between ticks; in decades on a logarithmic axis."""
    powers: bool = False
    """Whether large numbers are written as powers of ten."""
    zero: bool = False
    """Whether a line marks 0."""
    angle: int | None = None
    """Angle of the tick labels."""
    top: bool = False


@dataclass(frozen=True, eq=False)
class Panel:
    """Marks on a pair of axes. In the browser each panel is a plot of its own, with title and caption."""

    key: str
    marks: Sequence[Mark]
    x: Axis
    y: Axis
    caption: str = ""
    title: str = ""
    note: str = ""
    """What stands beside the title on paper, where panels have no captions: "n = 20"."""
    height: int = 300
    """In browser pixels."""
    size: tuple[float, float] | None = None
    """Of the axes on paper, in inches; by what is in the panel where it is not given."""
    square: bool = False
    """Whether both axes have the same unit."""
    fixed: bool = False
    """Whether its axes stay as they are in the browser."""
    columns: tuple[str, str] | None = None
    """Columns of the table of models that its points are: the browser has them there already."""
    on_paper: bool = True


@dataclass(frozen=True, eq=False)
class Figure:
    """Panels that belong together: one file on paper, a plot each in the browser or, by `kind`, one plot of all of them.

    "grid" panels stand side by side, as many as fit; "wide" ones take the width of the page each. Of a "forest" all panels share
    the vertical axis; of a "landscape" the browser shows the panels of one run at a time. An "explorer" is for the browser alone:
    the reader chooses its columns.
    """

    name: str
    """Name of the file."""
    panels: Sequence[Panel]
    caption: str = ""
    """Under all of them on paper; that of the first panel where it is empty."""
    kind: Literal["grid", "wide", "forest", "landscape", "explorer"] = "grid"
    across: int = 3
    """Panels in a row on paper."""
    least: int = 0
    """The least width of a panel of a grid in the browser, in pixels; 0 for the usual one."""

    @property
    def paper_panels(self) -> list[Panel]:
        return [panel for panel in self.panels if panel.on_paper and self.kind != "explorer"]


def spans_decades(values: Iterable[float], spread: float = SPREAD) -> bool:
    """Whether a logarithmic axis shows more: all values positive, more than two decades apart.

    >>> spans_decades([0.001, 5.0]), spans_decades([0.0, 5.0]), spans_decades([1.0, 5.0])
    (True, False, False)
    """
    known = np.array([v for v in values if np.isfinite(v)], dtype=np.float64)
    return bool(len(known) and known.min() > 0 and known.max() / spread > known.min())


def value_axis(title: str, values: Iterable[float]) -> Axis:
    """An axis that is logarithmic where that shows more, with a tick for every decade."""
    if spans_decades(values):
        return Axis(title, scale="log", step=1, powers=True)
    return Axis(title, powers=True)


def decimated(length: int, most: int = POINTS) -> NDArray[np.intp]:
    """Which points of a curve to keep: the ends and evenly spaced ones between.

    >>> decimated(3), len(decimated(100_000))
    (array([0, 1, 2]), 200)
    """
    return np.unique(np.linspace(0, length - 1, min(length, most)).round().astype(np.intp))


def condition_dash(condition: int) -> Dash:
    """How the curves of a condition are dashed.

    >>> condition_dash(7), condition_dash(9)
    ('solid', 'dash')
    """
    return DASHES[condition // 8 % len(DASHES)]


def model_line(study: Cohorts, run: int, x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> Curve:
    """A curve of one model in its condition's colour, which lights up with the model."""
    kept = decimated(len(x))
    condition = study.condition_of[run]
    return Curve(
        np.asarray(x, dtype=np.float64)[kept],
        np.asarray(y, dtype=np.float64)[kept],
        f"@c{condition}",
        dash=condition_dash(condition),
        opacity=0.75,
        hover=study.run_name(run),
        run=run,
        condition=condition,
    )
