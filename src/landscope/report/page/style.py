"""What the figures for papers have in common: how conditions look, bare axes, text that is not mathematics.

There are eight colours. From the ninth condition on lines are dashed, from the seventeenth dotted; points are hollow, then half
filled: up to `NAMED` conditions no two look the same, and a legend names them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from landscope.report.data.cohorts import Cohorts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["ACCENT", "FAINT", "INK", "bare", "colour", "legend", "line", "literal", "point", "tick"]

INK, FAINT, ACCENT = "#1d2126", "#8d959e", "#0b5d8f"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#c2589b", "#d99000", "#46a5dc", "#6f4e9c", "#6d7278")
"""As in the light theme of the page."""
SYMBOLS = "osD^PvhX"
DASHES = ("-", (0, (4, 1.5)), (0, (1, 1.2)))
FILLS = ("full", "none", "left")
NAMED = 24
"""Conditions that a legend holds: each colour with each dash."""
WIDEST = 1e300
"""Matplotlib finds no ticks for an axis that reaches further."""
COLUMNS = 5
HANDLE, LETTER, ROW = 0.5, 0.053, 0.14
"""Inches in a legend, of which the first row has its place in every figure."""


def colour(condition: int) -> str:
    """The colour of a condition."""
    return COLOURS[condition % 8]


def line(condition: int) -> dict[str, Any]:
    """Colour and dashes of a condition's curves."""
    return {"color": colour(condition), "ls": DASHES[condition // 8 % len(DASHES)]}


def point(condition: int) -> dict[str, Any]:
    """Colour, symbol and filling of a condition's points."""
    fill = FILLS[condition // 8 % len(FILLS)]
    edge = {"mec": "white", "mew": 0.3} if fill == "full" else {"mec": colour(condition), "mew": 0.7}
    return {"color": colour(condition), "marker": SYMBOLS[condition % 8], "fillstyle": fill, "mfcalt": "white", **edge}


def literal(text: str) -> str:
    r"""Text as it stands: matplotlib would take what is between dollars for mathematics.

    >>> literal("5 $ or 6 $")
    '5 \\$ or 6 \\$'
    """
    return text.replace("$", r"\$")


def tick(value: float) -> str:
    """A number beside an axis.

    >>> tick(6e-07), tick(0.1 + 0.2), tick(-1500.0)
    ('6e−7', '0.3', '−1500')
    """
    digits, _, power = f"{value:.8g}".partition("e")
    return (f"{digits}e{int(power)}" if power else digits).replace("-", "−")


def bare(axes: Axes) -> None:
    """No frame above and to the right, a light grid behind, every tick with its own power of ten: one for all lies on labels."""
    from matplotlib.ticker import FuncFormatter, ScalarFormatter

    for axis in (axes.xaxis, axes.yaxis):
        if max(map(abs, axis.get_view_interval())) > WIDEST:
            low, high = np.clip(axis.get_view_interval(), -WIDEST, WIDEST)
            if low == high:
                low, high = sorted((low, low / 10))
            axis.set_view_interval(low, high, ignore=True)
        if type(axis.get_major_formatter()) is ScalarFormatter:
            axis.set_major_formatter(FuncFormatter(lambda value, _: tick(value)))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color="#e9eae5", lw=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=7)


def legend(figure: Figure, study: Cohorts, look: Callable[[int], dict[str, Any]]) -> None:
    """The conditions as `line` or `point` draws them, above all panels, for which the figure grows; none where they are more
    than it holds: some names would stand for all.
    """
    from matplotlib.lines import Line2D

    if not 1 < len(study.conditions) <= NAMED:
        return
    marks = [Line2D([], [], **{"ls": "", **look(i)}, label=literal(name)) for i, name in enumerate(study.conditions)]
    entry = HANDLE + LETTER * max(map(len, study.conditions))
    columns = max(1, min(len(marks), COLUMNS, int(figure.get_figwidth() / entry)))
    rows = math.ceil(len(marks) / columns)
    figure.set_figheight(figure.get_figheight() + ROW * (rows - 1))
    figure.legend(handles=marks, loc="outside upper left", ncols=columns, frameon=False, fontsize=7)
