"""Figures on paper: PNG, SVG and PDF by matplotlib, text kept as text.

All panels of a figure are in one file, with one legend of the conditions where a panel holds several of them.
"""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from landscope.core.files import writing
from landscope.report.page.blocks import Picture
from landscope.report.page.figure import (
    Axis,
    Band,
    Bars,
    Contour,
    Curve,
    Errors,
    Figure,
    Floats,
    Heat,
    Mark,
    Marker,
    Panel,
    Points,
    Rule,
)
from landscope.report.page.style import (
    DASHES,
    DIVERGING,
    NAMED,
    colour,
    ground,
    line,
    literal,
    point,
    shade,
    themed,
    tick,
)

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawn
    from matplotlib.transforms import Bbox

FORMATS = ("png", "svg", "pdf")
SCREEN = 110
"""Dots per inch of figures inside a page."""
MARGIN = 0.1
"""Inches around a figure."""
PALETTE = 256
WIDTH, HEIGHT = 2.3, 1.75
"""Size of a panel in inches."""
THIN, SMALL = 0.6, 0.55
"""Points on paper for a pixel of the browser: of lines and of markers."""
LEVELS = 21
"""Number of contour levels."""
NARROW, TICKS = 2.0, 3
"""Panels narrower than this many inches have about this many numbers below them."""
WIDEST = 1e300
"""Matplotlib finds no ticks for an axis that reaches further."""
COLUMNS = 5
HANDLE, LETTER, ROW = 0.5, 0.053, 0.14
"""Inches in a legend."""
HATCHES = ("", "////", "....")
"""Of bars, for the first eight conditions, the second and the third."""


def save(figure: Figure, conditions: Sequence[str], folder: Path, formats: Sequence[str]) -> list[Path]:
    """Write a figure under its name, in every format; the same study gives the same file."""
    written = []
    with themed("paper"):
        drawn, frame = _laid_out(figure, conditions)
        for suffix in formats:
            path = folder / f"{figure.name}.{suffix}"
            undated = {"png": {"Software": "Landscope"}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[suffix]
            with writing(path, flush=False) as aside:
                drawn.savefig(aside, format=suffix, dpi=200, metadata=undated, bbox_inches=frame)
            written.append(path)
    return written


def as_picture(figure: Figure, conditions: Sequence[str]) -> Picture:
    """A figure as a small PNG inside a page, in light and in dark, with one caption for all of it."""
    with themed("light"):
        drawn, frame = _laid_out(figure, conditions)
        light = _as_data(drawn, frame)
    with themed("dark"):
        again = on_paper(figure, conditions)
        again.set_layout_engine(None)
        for axes, there in zip(again.axes, drawn.axes, strict=True):
            axes.set_position(there.get_position(original=True))
        dark = _as_data(again, frame)
    return Picture(light, figure.caption or figure.panels[0].caption, dark)


def _as_data(drawn: Drawn, frame: Bbox) -> str:
    content = io.BytesIO()
    drawn.savefig(content, format="png", dpi=SCREEN, bbox_inches=frame)
    return f"data:image/png;base64,{base64.b64encode(_with_palette(content)).decode()}"


def _with_palette(content: io.BytesIO) -> bytes:
    """The PNG with its 256 commonest colours: a third of the bytes, and to the eye the same."""
    from PIL import Image  # Pillow comes with matplotlib

    few = Image.open(content).convert("RGB").quantize(PALETTE, dither=Image.Dither.NONE)
    smaller = io.BytesIO()
    few.save(smaller, "png", optimize=True)
    return smaller.getvalue()


def _laid_out(figure: Figure, conditions: Sequence[str]) -> tuple[Drawn, Bbox]:
    """A figure whose parts have their places, and the frame around them: to find both takes longer than to draw."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    drawn = on_paper(figure, conditions)
    renderer = FigureCanvasAgg(drawn).get_renderer()
    if (engine := drawn.get_layout_engine()) is not None:
        engine.execute(drawn)
    drawn.set_layout_engine(None)  # with any other, every format would be drawn twice
    return drawn, drawn.get_tightbbox(renderer).padded(MARGIN)


def on_paper(figure: Figure, conditions: Sequence[str]) -> Drawn:
    """The panels of a figure in rows, below a legend of the conditions."""
    from matplotlib.figure import Figure as Drawn

    panels = figure.paper_panels
    forest = figure.kind == "forest"
    columns = len(panels) if forest else min(figure.across, len(panels))
    rows = math.ceil(len(panels) / columns)
    sizes = [_size(panel) for panel in panels]
    widths = [max(width for width, _ in sizes[place::columns]) for place in range(columns)]
    heights = [max(height for _, height in sizes[row * columns : (row + 1) * columns]) for row in range(rows)]
    bar = 0.8 * any(isinstance(mark, Contour) for panel in panels for mark in panel.marks)
    size = (0.4 + sum(widths) + _margin(panels, columns, forest) + bar, 0.3 + sum(heights) + 0.55 * rows)
    layout: Literal["compressed", "constrained"] = "compressed" if any(p.square for p in panels) else "constrained"
    drawn = Drawn(figsize=size, dpi=SCREEN, layout=layout)
    _legend(drawn, panels, conditions)
    grid = drawn.subplots(
        rows, columns, squeeze=False, sharey="row" if forest else False, width_ratios=widths, height_ratios=heights
    )
    for place, (axes, panel) in enumerate(zip(grid.flat, panels, strict=False)):
        _draw(axes, panel, sizes[place])
        if panel.x.title and not forest:
            axes.set_xlabel(literal(_wrapped(panel.x.title, 15 * sizes[place][0])), fontsize=7)
        before = panels[place - 1].y.title if place % columns else None
        if panel.y.title and panel.y.title != before:
            axes.set_ylabel(literal(_wrapped(panel.y.title, 14 * sizes[place][1])), fontsize=7)
    for axes in list(grid.flat)[len(panels) :]:
        axes.set_visible(False)
    _colour_bar(drawn, panels, grid)
    if forest:
        drawn.supxlabel(literal(_wrapped(panels[0].x.title, 18 * size[0])), fontsize=7)
    return drawn


def _size(panel: Panel) -> tuple[float, float]:
    """Size of a panel's axes in inches."""
    if panel.size is not None:
        return panel.size
    if panel.square:
        return 1.75, 1.75
    for mark in panel.marks:
        if isinstance(mark, Heat):
            wide, high = (0.48, 0.2) if mark.texts else (0.15, 0.15)
            return max(1.2, wide * len(mark.columns)), max(0.8, high * len(mark.rows))
        if isinstance(mark, Bars):
            bars = len(mark.categories) * sum(isinstance(each, Bars) for each in panel.marks)
            return max(WIDTH, min(6.0, 0.12 * bars)), HEIGHT
    return WIDTH, HEIGHT


def _margin(panels: Sequence[Panel], columns: int, forest: bool) -> float:
    """Inches for the numbers and names left of the panels of a row."""
    names = [_names(panel) for panel in panels]
    longest = [
        max((len(name) for each in names[place::columns] for name in each), default=0) for place in range(columns)
    ]
    letters = longest[:1] if forest else longest
    return sum(max(0.55, 0.07 * each) if each else 0.55 for each in letters) + (0.1 * columns if forest else 0.0)


def _names(panel: Panel) -> Sequence[str]:
    heats = [mark.rows for mark in panel.marks if isinstance(mark, Heat)]
    return heats[0] if heats else () if panel.y.ticks is None else panel.y.ticks[1]


def _draw(axes: Axes, panel: Panel, size: tuple[float, float]) -> None:
    for mark in panel.marks:
        _mark(axes, mark, panel)
    heading = ", ".join(text for text in (panel.title, panel.note) if text)
    axes.set_title(literal(_wrapped(heading, 18 * size[0])), loc="left", fontsize=7)
    if any(isinstance(mark, Heat) for mark in panel.marks):
        return
    _scale(axes, "x", panel.x)
    _scale(axes, "y", panel.y)
    if panel.square:
        axes.set_aspect("equal")
    if any(isinstance(mark, Curve | Points) and mark.legend for mark in panel.marks):
        axes.legend(frameon=False, fontsize=6)
    _bare(axes, narrow=size[0] < NARROW and panel.x.ticks is None)


def _wrapped(text: str, letters: float) -> str:
    return "\n".join(fill(line, int(letters)) for line in text.split("\n"))


def _mark(axes: Axes, mark: Mark, panel: Panel) -> None:
    if isinstance(mark, Curve):
        _line(axes, mark)
    elif isinstance(mark, Points):
        _points(axes, mark)
    elif isinstance(mark, Band):
        axes.fill_between(mark.x, mark.low, mark.high, color=shade(mark.colour), alpha=0.14, lw=0)
    elif isinstance(mark, Bars):
        _bars(axes, mark, [each for each in panel.marks if isinstance(each, Bars)])
    elif isinstance(mark, Heat):
        _heat(axes, mark, panel.x)
    elif isinstance(mark, Contour):
        _contour(axes, mark)
    elif isinstance(mark, Rule):
        axes.axvline(mark.x, color=shade("@muted"), lw=THIN, ls=":")


def _line(axes: Axes, mark: Curve) -> None:
    known = np.isfinite(mark.x) & np.isfinite(mark.y) if mark.over_gaps else np.full(len(mark.x), True)
    x, y = mark.x[known], mark.y[known]
    if mark.y_error is not None:
        _error_bars(axes, x, y, mark.colour, y_error=mark.y_error)
    look = {"color": shade(mark.colour), "lw": THIN * mark.width, "ls": DASHES[mark.dash], "alpha": mark.opacity}
    _series(axes, x, y, mark.colour, mark.marker, look | {"label": literal(mark.legend)})


def _points(axes: Axes, mark: Points) -> None:
    _error_bars(axes, mark.x, mark.y, mark.colour, mark.x_error, mark.y_error)
    look = {"ls": "", "alpha": mark.marker.opacity, "label": literal(mark.legend)}
    _series(axes, mark.x, mark.y, mark.colour, mark.marker, look)


def _series(axes: Axes, x: Floats, y: Floats, token: str, marker: Marker | None, look: dict[str, Any]) -> None:
    """A line, points or both; points that are larger than the smallest are drawn over it once more."""
    if marker is None:
        axes.plot(x, y, **look)
        return
    sizes = np.broadcast_to(np.asarray(marker.size, dtype=np.float64), x.shape)
    least, *others = np.unique(sizes) if len(sizes) else [4.0]
    axes.plot(x, y, **{**_symbol(token, marker), **look}, ms=SMALL * least)
    for size in others:
        axes.plot(x[sizes == size], y[sizes == size], **{**_symbol(token, marker), "ls": ""}, ms=SMALL * size)


def _symbol(token: str, marker: Marker) -> dict[str, Any]:
    if not marker.symbol and token.startswith("@c"):
        return point(int(token.removeprefix("@c")))
    symbol = {"": "o", "circle": "o", "square": "s", "diamond": "D"}[marker.symbol]
    return {"color": shade(token), "marker": symbol, "mfc": ground() if marker.hollow else shade(token), "mew": 0.8}


def _error_bars(
    axes: Axes, x: Floats, y: Floats, token: str, x_error: Errors | None = None, y_error: Errors | None = None
) -> None:
    for name, errors in (("xerr", x_error), ("yerr", y_error)):
        if errors is not None:
            sides = np.nan_to_num([errors.plus if errors.minus is None else errors.minus, errors.plus])
            look: dict[str, Any] = {"ecolor": shade(errors.colour or token), "elinewidth": THIN * errors.thickness}
            axes.errorbar(x, y, ls="", **{name: sides}, **look, capsize=THIN * errors.cap, zorder=1.5)


def _bars(axes: Axes, mark: Bars, beside: Sequence[Bars]) -> None:
    width = 0.75 / len(beside)
    places = np.arange(float(len(mark.categories))) + width * (beside.index(mark) - (len(beside) - 1) / 2)
    look = {"hatch": HATCHES[mark.condition // 8 % 3], "edgecolor": ground(), "lw": 0}
    axes.bar(places, np.nan_to_num(mark.values), width, color=colour(mark.condition), **look)  # type: ignore[arg-type]
    _error_bars(axes, places, mark.values, "@muted", y_error=mark.error)
    leaning = {"rotation": 45, "ha": "right"} if len(mark.categories) > 6 else {}
    axes.set_xticks(range(len(mark.categories)), [literal(name) for name in mark.categories], **leaning)  # type: ignore[arg-type]


def _heat(axes: Axes, mark: Heat, x: Axis) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    diverging = mark.scale == "diverging"
    shades: Any = LinearSegmentedColormap.from_list("diverging", list(DIVERGING)) if diverging else "cividis"
    ends = (-1, 1) if diverging else (None, None)
    image = axes.imshow(np.ma.masked_invalid(mark.values), vmin=ends[0], vmax=ends[1], cmap=shades, aspect="auto")
    for row, column in np.argwhere(np.isfinite(mark.values)) if mark.texts else ():
        red, green, blue, _ = image.cmap(image.norm(mark.values[row, column]))
        ink = "white" if 0.3 * red + 0.59 * green + 0.11 * blue < 0.5 else "black"
        text = mark.texts[row][column]
        axes.text(column, row, text, ha="center", va="center", fontsize=6, color=ink)
    names = [literal(name) for name in mark.columns]
    axes.set_xticks(range(len(names)), names, rotation=-x.angle if x.angle else 40, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(mark.rows)), [literal(name) for name in mark.rows])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labelsize=7)
    if mark.bar:
        axes.figure.colorbar(image, ax=axes, label=literal(mark.bar), fraction=0.05)


def _contour(axes: Axes, mark: Contour) -> None:
    spaced = np.geomspace if mark.scale.logarithmic else np.linspace
    levels = spaced(mark.scale.low, mark.scale.high, LEVELS)
    norm = "log" if mark.scale.logarithmic else "linear"
    axes.contourf(mark.x, mark.y, np.ma.masked_invalid(mark.heights), levels=levels, norm=norm, cmap="viridis")
    if mark.path is not None:
        axes.plot(*mark.path.T, "-o", color="white", lw=0.8, ms=2)
    axes.plot(0, 0, "+", color="white", ms=7)


def _scale(axes: Axes, along: Literal["x", "y"], axis: Axis) -> None:
    drawn, zero_line = (axes.xaxis, axes.axvline) if along == "x" else (axes.yaxis, axes.axhline)
    if axis.scale == "log":
        axes.set(**{f"{along}scale": "log"})
    if axis.ticks is not None:
        places, texts = axis.ticks
        leaning: dict[str, Any] = {"rotation": 45, "ha": "right"} if axis.angle else {}
        drawn.set_ticks(places, [literal(text) for text in texts], **leaning)
        drawn.set_ticks([], minor=True)
    if axis.range is not None:
        axes.set(**{f"{along}lim": axis.range})
    if axis.zero:
        zero_line(0, color=shade("@faint"), lw=0.7, zorder=1)


def _bare(axes: Axes, narrow: bool) -> None:
    """No frame above and to the right, a light grid behind, every tick with its own power of ten: one for all lies on labels."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, ScalarFormatter

    for axis in (axes.xaxis, axes.yaxis):
        if max(map(abs, axis.get_view_interval())) > WIDEST:
            low, high = np.clip(axis.get_view_interval(), -WIDEST, WIDEST)
            if low == high:
                low, high = sorted((low, low / 10))
            axis.set_view_interval(low, high, ignore=True)
        if type(axis.get_major_formatter()) is ScalarFormatter:
            axis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    if narrow and axes.get_xscale() == "linear":
        axes.xaxis.set_major_locator(MaxNLocator(TICKS))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color=shade("@grid"), lw=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=7)


def _colour_bar(drawn: Drawn, panels: Sequence[Panel], grid: Any) -> None:
    """One bar for the contours of all panels."""
    contours = [mark for panel in panels for mark in panel.marks if isinstance(mark, Contour)]
    if contours:
        rows = grid.shape[0]
        image = grid.flat[0].collections[0]
        look = {"fraction": 0.05, "shrink": min(1, 2 / rows), "format": "%.2g", "ticks": image.levels[::4]}
        drawn.colorbar(image, ax=grid, label=contours[0].scale.title, **look)


def _legend(drawn: Drawn, panels: Sequence[Panel], conditions: Sequence[str]) -> None:
    """The conditions above all panels, for which the figure grows. None where every panel is of one condition, which its title
    names, and none where there are more than look different: some names would stand for all.
    """
    held = [{_condition(mark) for mark in panel.marks} - {None} for panel in panels]
    if not 1 < len(conditions) <= NAMED or all(len(each) < 2 for each in held):
        return
    marks = [_handle(panels, number, literal(name)) for number, name in enumerate(conditions)]
    entry = HANDLE + LETTER * max(map(len, conditions))
    columns = max(1, min(len(marks), COLUMNS, int(drawn.get_figwidth() / entry)))
    drawn.set_figheight(drawn.get_figheight() + ROW * math.ceil(len(marks) / columns))
    drawn.legend(handles=marks, loc="outside upper left", ncols=columns, frameon=False, fontsize=7)


def _condition(mark: Mark) -> int | None:
    return mark.condition if isinstance(mark, Curve | Points | Bars) else None


def _handle(panels: Sequence[Panel], number: int, name: str) -> Artist:
    """What stands for a condition: a line, a point, both or a bar, as the panels have them."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    marks = [mark for panel in panels for mark in panel.marks if _condition(mark) is not None]
    if any(isinstance(mark, Bars) for mark in marks):
        return Patch(facecolor=colour(number), hatch=HATCHES[number // 8 % 3], edgecolor=ground(), lw=0, label=name)
    curves = [mark for mark in marks if isinstance(mark, Curve)]
    look = line(number) if curves else {"ls": ""}
    if any(isinstance(mark, Points) for mark in marks) or any(mark.marker is not None for mark in curves):
        look = {**point(number), **look, "ms": 4}
    return Line2D([], [], **look, label=name)
