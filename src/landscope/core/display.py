"""How results look: colours of figures; small tables and pictures as HTML in the notebook's own colours, light or dark."""

from __future__ import annotations

import base64
import io
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.table import Table
    from rich.text import Text

INK, MUTED, GRID, ACCENT, NEGATIVE = "#1d2126", "#5f6771", "#e9eae5", "#0b5d8f", "#d55e00"
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


class Grouped:
    """A table for a terminal whose rows belong to groups; each row is its cells, the first of them a name, and a style.

    Groups stand in a column of their own, above their rows where the terminal is too narrow for that, and names above the other
    cells where it is narrower still: no digit is ever cut off.
    """

    def __init__(
        self,
        head: Sequence[str],
        groups: Mapping[str, Sequence[tuple[Sequence[str], str]]],
        words: Collection[int] = (0,),
    ) -> None:
        self.head, self.groups, self.words = head, groups, words

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = self._wide()
        if console.measure(wide, options=options.update(max_width=1000)).maximum <= options.max_width:
            yield wide
        else:
            yield from self._narrow(options.max_width)

    def _wide(self) -> Table:
        from rich import box
        from rich.table import Table

        table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
        table.add_column("")
        for place, name in enumerate(self.head):
            table.add_column(name, justify="left" if place in self.words else "right", no_wrap=True)
        for group, rows in self.groups.items():
            for place, (cells, style) in enumerate(rows):
                table.add_row("" if place else group, *cells, style=style, end_section=place == len(rows) - 1)
        return table

    def _narrow(self, width: int) -> Iterator[Text]:
        from rich.cells import cell_len
        from rich.text import Text

        every = [self.head, *(cells for rows in self.groups.values() for cells, _ in rows)]
        widths = [max(map(cell_len, column)) for column in zip(*every, strict=True)]
        above = sum(widths) + 2 * len(widths) > width

        def line(cells: Sequence[str], style: str) -> Iterator[Text]:
            room = [" " * (whole - cell_len(cell)) for cell, whole in zip(cells, widths, strict=True)]
            padded = [
                cell + space if place in self.words else space + cell
                for place, (cell, space) in enumerate(zip(cells, room, strict=True))
            ]
            if above:
                yield Text(cells[0], style)
            yield Text("  ".join(["", *padded[1:]] if above else padded).rstrip(), style)

        yield from line(self.head, "bold")
        for group, rows in self.groups.items():
            yield Text(f"\n{group}", "italic")
            for cells, style in rows:
                yield from line(cells, style)


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
    return f'{shown}<img alt="{escape(title or words_on(figure))}" style="max-width:100%" src="data:image/png;base64,{data}">'


def words_on(figure: Figure) -> str:
    """What a figure shows, by the words on it.

    >>> from matplotlib.figure import Figure
    >>> axes = Figure().subplots()
    >>> _ = axes.set_title("the line", loc="left"), axes.set_xlabel("t"), axes.set_ylabel("loss")
    >>> words_on(axes.figure)
    'Figure: the line, loss over t'
    """
    panels = []
    for axes in figure.axes:
        title = axes.get_title(loc="left") or axes.get_title()
        across = " over ".join(filter(None, (axes.get_ylabel(), axes.get_xlabel())))
        panels.append(", ".join(" ".join(words.split()) for words in (title, across) if words))
    return ": ".join(filter(None, ("Figure", "; ".join(filter(None, panels)))))
