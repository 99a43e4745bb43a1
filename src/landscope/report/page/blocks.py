"""What the page is made of: sections of prose, figures and tables. Plain text throughout; the template escapes all of it.

A section holds figures as they are described; `page/plotly` turns them into plots, `page/matplotlib` into pictures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from landscope.core.json import Plain
from landscope.report.page.figure import Figure

Mark = Literal["", "best", "worst", "good", "bad", "muted"]


@dataclass(frozen=True)
class Prose:
    """A paragraph, or a list of short ones."""

    text: str = ""
    items: Sequence[str] = ()
    tone: Literal["", "lead", "note", "heading"] = ""
    scripted: bool = False
    """Whether it is about what only the script can do."""


@dataclass(frozen=True)
class Plot:
    """A figure that the page's script draws when it comes into view.

    `kind` names a drawing function of the script; "plain" is a complete Plotly figure. `spec` may hold colours as
    tokens ("@c0" … for conditions, "@ink", "@muted", "@grid", "@accent"), which follow the theme.
    """

    key: str
    spec: Mapping[str, Plain]
    caption: str
    kind: Literal["plain", "scatter", "explorer", "forest", "landscape"] = "plain"
    title: str = ""
    height: int = 360


@dataclass(frozen=True)
class Picture:
    """A static figure, for pages without scripts."""

    source: str
    """A data address."""
    caption: str
    dark: str = ""
    """The same for a dark page."""


@dataclass(frozen=True)
class Panels:
    """Plots side by side, as many in a row as fit."""

    plots: Sequence[Plot]
    least: int = 0
    """The least width of a plot in pixels; 0 for the usual one."""

    @property
    def width(self) -> int:
        """The least width of a plot in pixels: three in a row where there is room, two where that leaves none alone."""
        return self.least or (420 if len(self.plots) in (1, 2, 4) else 300)


@dataclass(frozen=True)
class Heading:
    """The head of a column of a table."""

    text: str
    unit: str = ""
    numeric: bool = True
    title: str = ""
    condition: int | None = None
    """A swatch of that condition's colour."""


def words(*texts: str) -> list[Heading]:
    """Heads of columns that hold no numbers."""
    return [Heading(text, numeric=False) for text in texts]


@dataclass(frozen=True)
class Cell:
    """A cell: a number and its error are aligned apart; `condition` gives a swatch of that condition's colour."""

    text: str
    error: str = ""
    mark: Mark = ""
    title: str = ""
    condition: int | None = None
    interval: bool = False
    """Whether what stands in `error` is an interval, and not to be added and subtracted."""


@dataclass(frozen=True)
class Table:
    """A table that scrolls inside its box; `key` names it for the script, which adds what only it can."""

    head: Sequence[Heading]
    rows: Sequence[Sequence[Cell]]
    caption: str
    key: str = ""


@dataclass(frozen=True)
class Source:
    """Text as it was written, folded away."""

    title: str
    text: str


@dataclass(frozen=True)
class Downloads:
    """Files that the page holds: name → what it is."""

    files: Mapping[str, str]


Block = Prose | Figure | Plot | Picture | Panels | Table | Source | Downloads


@dataclass(frozen=True)
class Section:
    """A part of the report; one without blocks is left out."""

    key: str
    title: str
    blocks: Sequence[Block]
    so_what: str = ""
    """What a reader may take from it, at its end."""
    link: str = ""
    """The address of the whole report, where this is a part of one."""


@dataclass(frozen=True)
class Claim:
    """What is claimed (by a paper, or by the study itself), what was found, why, and the runs that show it."""

    text: str
    verdict: str
    why: str = ""
    runs: Sequence[str] = ()
