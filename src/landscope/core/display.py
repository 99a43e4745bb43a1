"""How results look: colours of figures; small tables and pictures as HTML in the notebook's own colours, light or dark."""

from __future__ import annotations

import base64
import io
from collections.abc import Collection, Iterable, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, MUTED, GRID, ACCENT, NEGATIVE = "#1d2126", "#646c76", "#e9eae5", "#0b5d8f", "#d55e00"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#c2589b", "#d99000", "#46a5dc", "#6f4e9c", "#6d7278")
"""Of figures: of text, lines and what is set against each other."""
LINE = "border-bottom:1px solid rgba(128,128,128,.35)"
CELL = "padding:.15em .7em .15em 0;vertical-align:top;background:none;white-space:nowrap"
SMALL = "font-size:90%;opacity:.75;max-width:60em;margin:.3em 0"


def table(head: Sequence[str], rows: Iterable[Sequence[object]], title: str = "", left: Collection[int] = (0,)) -> str:
    """Columns in `left` are flush left, the others flush right. Text is escaped.

    >>> table(["a"], [["<b>"]])[-44:]
    'text-align:left">&lt;b&gt;</td></tr></table>'
    """

    def cell(tag: str, place: int, content: object, more: str = "") -> str:
        side = "left" if place in left else "right"
        return f'<{tag} style="{CELL};text-align:{side}{more}">{escape(str(content))}</{tag}>'

    heads = "".join(cell("th", place, text, f";{LINE}") for place, text in enumerate(head))
    body = "".join(
        "<tr>" + "".join(cell("td", place, content) for place, content in enumerate(row)) + "</tr>" for row in rows
    )
    shown = f"<div><b>{escape(title)}</b></div>" if title else ""
    top = f"<tr>{heads}</tr>" if any(head) else ""
    return f'{shown}<table style="border-collapse:collapse;margin:.3em 0">{top}{body}</table>'


def as_text(shown: object, width: int) -> str:
    """What rich shows, as plain text of a width."""
    from rich.console import Console

    console = Console(width=width, color_system=None, force_terminal=False, highlight=False, markup=False)
    with console.capture() as capture:
        console.print(shown)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()).strip("\n")


def definitions(entries: Mapping[str, object]) -> str:
    """Names, each with its text; long texts wrap.

    >>> "<b>a</b>" in definitions({"a": 1})
    True
    """
    return "".join(
        f'<div style="margin:.2em 0;max-width:60em"><b>{escape(name)}</b> {escape(str(text))}</div>'
        for name, text in entries.items()
    )


def paragraph(text: str) -> str:
    """A note in smaller letters."""
    return f'<div style="{SMALL}">{escape(text)}</div>'


def picture(figure: Figure, title: str = "") -> str:
    """A figure of matplotlib's, on white in light and dark notebooks alike."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110, facecolor="white")
    data = base64.b64encode(content.getvalue()).decode()
    shown = f"<div><b>{escape(title)}</b></div>" if title else ""
    return f'{shown}<img alt="{escape(title)}" style="max-width:100%" src="data:image/png;base64,{data}">'
