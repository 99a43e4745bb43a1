"""How conditions look on paper, and text that is not mathematics.

There are eight colours. From the ninth condition on lines are dashed, from the seventeenth dotted; points are hollow, then half
filled: up to `NAMED` conditions no two look the same, and a legend names them.
"""

from __future__ import annotations

from typing import Any

__all__ = ["DASHES", "DIVERGING", "NAMED", "colour", "line", "literal", "point", "shade", "tick"]

PAGE = {"@ink": "#1d2126", "@muted": "#646c76", "@faint": "#8d959e", "@accent": "#0b5d8f", "@grid": "#e9eae5"}
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#c2589b", "#d99000", "#46a5dc", "#6f4e9c", "#6d7278")
"""As in the light theme of the page."""
SYMBOLS = "osD^PvhX"
DASHES: dict[str, Any] = {"solid": "-", "dash": (0, (4, 1.5)), "dot": (0, (1, 1.2))}
FILLS = ("full", "none", "left")
NAMED = 24
"""Conditions that a legend holds: each colour with each dash."""
DIVERGING = ((0.0, "#b2540b"), (0.25, "#e9b27c"), (0.5, "#f4f4f1"), (0.75, "#86b9dc"), (1.0, "#0b5d8f"))
"""Orange for negative, blue for positive: told apart by every kind of colour vision."""


def colour(condition: int) -> str:
    """The colour of a condition."""
    return COLOURS[condition % 8]


def shade(token: str) -> str:
    """The colour that a token stands for.

    >>> shade("@c8"), shade("@ink")
    ('#0072b2', '#1d2126')
    """
    return PAGE[token] if token in PAGE else colour(int(token.removeprefix("@c")))


def line(condition: int) -> dict[str, Any]:
    """Colour and dashes of a condition's curves."""
    return {"color": colour(condition), "ls": [*DASHES.values()][condition // 8 % len(DASHES)]}


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
