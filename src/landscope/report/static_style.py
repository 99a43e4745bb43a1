"""What the figures for papers have in common: colours and symbols of conditions, bare axes, text that is not mathematics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from landscope.report.cohorts import Study

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["ACCENT", "FAINT", "INK", "bare", "colour", "legend", "literal", "symbol"]

INK, FAINT, ACCENT = "#1d2126", "#8d959e", "#0b5d8f"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#c2589b", "#d99000", "#46a5dc", "#6f4e9c", "#6d7278")
"""As in the light theme of the page."""
SYMBOLS = "osD^PvhX"
NAMED = 16
"""Conditions that a legend holds."""


def colour(condition: int) -> str:
    """The colour of a condition."""
    return COLOURS[condition % 8]


def symbol(condition: int) -> str:
    """Its symbol, which differs where colours repeat."""
    return SYMBOLS[(condition + condition // 8) % 8]


def literal(text: str) -> str:
    r"""Text as it stands: matplotlib would take what is between dollars for mathematics.

    >>> literal("5 $ or 6 $")
    '5 \\$ or 6 \\$'
    """
    return text.replace("$", r"\$")


def bare(axes: Axes) -> None:
    """No frame above and to the right, a light grid behind."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(True, color="#e9eae5", lw=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=7)


def legend(figure: Figure, study: Study) -> None:
    """The conditions, above all panels; none where they are more than it holds: some names would stand for all."""
    from matplotlib.lines import Line2D

    if 1 < len(study.conditions) <= NAMED:
        marks = [
            Line2D([], [], ls="", marker=symbol(i), color=colour(i), label=literal(name))
            for i, name in enumerate(study.conditions)
        ]
        figure.legend(handles=marks, loc="outside upper left", ncols=min(len(marks), 5), frameon=False, fontsize=7)
