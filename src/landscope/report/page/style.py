"""How conditions look on paper, and text that is not mathematics.

There are eight colours. From the ninth condition on lines are dashed, from the seventeenth dotted; points are hollow, then half
filled: up to `NAMED` conditions no two look the same, and a legend names them.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Literal

from landscope.core.display import ACCENT, COLOURS, GRID, INK, MUTED

Theme = Literal["paper", "light", "dark"]
PAGES = (
    {"@ink": INK, "@muted": MUTED, "@faint": "#8d959e", "@accent": ACCENT, "@grid": GRID},
    {"@ink": "#e7e9ea", "@muted": "#a0a8b0", "@faint": "#7a828a", "@accent": "#74b9e6", "@grid": "#272c31"},
)
GROUNDS = {"paper": "#ffffff", "light": "#fcfcfa", "dark": "#14171a"}
"""Behind a figure."""
PALETTES = (
    COLOURS,
    ("#4da6e0", "#ff8b4a", "#2cc79b", "#e79bc6", "#f5be4b", "#8fd0f7", "#b39ae0", "#b0b5ba"),
)
"""Light and dark, as in the themes of the page."""
_THEME: ContextVar[Theme] = ContextVar("theme", default="paper")
SYMBOLS = "osD^PvhX"
DASHES: dict[str, Any] = {"solid": "-", "dash": (0, (4, 1.5)), "dot": (0, (1, 1.2))}
FILLS = ("full", "none", "left")
NAMED = 24
"""Conditions that a legend holds: each colour with each dash."""
DIVERGING = ((0.0, "#b2540b"), (0.25, "#e9b27c"), (0.5, "#f4f4f1"), (0.75, "#86b9dc"), (1.0, "#0b5d8f"))
"""Orange for negative, blue for positive: distinguished by every kind of colour vision."""
SETTINGS = {
    "svg.fonttype": "none",
    "pdf.fonttype": 42,
    "svg.hashsalt": "landscope",
    "font.size": 8,
    "axes.titlesize": 7,
}
INKS = ("text.color", "axes.labelcolor", "axes.edgecolor", "axes.titlecolor", "xtick.color", "ytick.color")
BEHIND = ("figure.facecolor", "axes.facecolor", "savefig.facecolor")
"""Settings of matplotlib: always the same, and those that are the colour of ink or of the ground."""


@contextmanager
def themed(theme: Theme) -> Iterator[None]:
    """Inside, matplotlib draws in this theme."""
    import matplotlib as mpl

    token = _THEME.set(theme)
    look = {**SETTINGS, **dict.fromkeys(INKS, shade("@ink")), **dict.fromkeys(BEHIND, ground())}
    try:
        with mpl.rc_context(look):  # type: ignore[arg-type]
            yield
    finally:
        _THEME.reset(token)


def _dark() -> bool:
    return _THEME.get() == "dark"


def ground() -> str:
    """What is behind a figure."""
    return GROUNDS[_THEME.get()]


def colour(condition: int) -> str:
    """The colour of a condition."""
    return PALETTES[_dark()][condition % 8]


def shade(token: str) -> str:
    """The colour that a token stands for.

    >>> shade("@c8"), shade("@ink")
    ('#0072b2', '#1d2126')
    """
    page = PAGES[_dark()]
    return page[token] if token in page else colour(int(token.removeprefix("@c")))


def line(condition: int) -> dict[str, Any]:
    """Colour and dashes of a condition's curves."""
    return {"color": colour(condition), "ls": [*DASHES.values()][condition // 8 % len(DASHES)]}


def point(condition: int) -> dict[str, Any]:
    """Colour, symbol and filling of a condition's points."""
    fill = FILLS[condition // 8 % len(FILLS)]
    edge = {"mec": ground(), "mew": 0.3} if fill == "full" else {"mec": colour(condition), "mew": 0.7}
    return {"color": colour(condition), "marker": SYMBOLS[condition % 8], "fillstyle": fill, "mfcalt": ground(), **edge}


def literal(text: str) -> str:
    r"""Literal text: matplotlib would take what is between dollars for mathematics.

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
