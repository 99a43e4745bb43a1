"""Two kinds of figures as SVG text, the same bytes for the same numbers: a forest of claims, and a scatter of models.

They follow the theme of the page that shows them: text and lines have the colour of its text where it says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

__all__ = ["ForestRow", "forest", "scatter"]

COLOURS = ("#2f6fb0", "#c2571a", "#3a8f5c", "#8a4fa3", "#b08a1e", "#5b6770", "#c04668", "#1f8a8a")
VERDICTS = {
    "replicates": "#2c7a4b",
    "excluded": "#b3402a",
    "undecided": "#6b7280",
    "explained": "#8a5a00",
    "not tested": "#c4c8ce",
}
STYLE = (
    "<style>text{font:13px system-ui,sans-serif;fill:#1f2430}.s{font-size:11.5px;fill:#5b6270}"
    "@media (prefers-color-scheme:dark){text{fill:#e6e8ec}.s{fill:#a7adb8}}</style>"
)


@dataclass(frozen=True)
class ForestRow:
    """A claim on the scale of concordance: ours with its interval, the paper's as a hollow mark; or neither."""

    label: str
    verdict: str
    ours: tuple[float, float, float] | None = None
    theirs: float | None = None
    value: str = ""
    """In its natural unit."""


def forest(rows: Sequence[ForestRow], margin: float) -> str:
    """The claims from top to bottom; to the right is where the paper's claim goes, the band is the margin."""
    left, middle, step, top = 400, 330, 25, 46
    width, height = left + middle + 330, top + step * len(rows) + 40

    def x(d: float) -> float:
        return left + middle * (d + 1) / 2

    base = top + step * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        'aria-label="Claims on one scale: ours with intervals, the papers as hollow marks">',
        STYLE,
        f'<rect x="{x(-margin):.1f}" y="{top - 14}" width="{x(margin) - x(-margin):.1f}" height="{base - top + 14}" '
        'fill="#8a94a6" fill-opacity="0.13"/>',
    ]
    for tick in (-1.0, -0.5, 0.0, 0.5, 1.0):
        dash = "" if tick == 0 else ' stroke-dasharray="2 4"'
        parts.append(
            f'<line x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="{top - 14}" y2="{base}" stroke="#8a94a6" stroke-width="1"{dash}/>'
            f'<text class="s" x="{x(tick):.1f}" y="{base + 16}" text-anchor="middle">{_number(tick)}</text>'
        )
    parts += [
        f'<text class="s" x="{x(-1):.1f}" y="{top - 22}">against the claim</text>',
        f'<text class="s" x="{x(1):.1f}" y="{top - 22}" text-anchor="end">as claimed</text>',
        f'<text class="s" x="{x(0):.1f}" y="{base + 32}" text-anchor="middle">concordance D; hollow: the paper</text>',
    ]
    for number, row in enumerate(rows):
        y = top + step * number + 6
        colour = VERDICTS.get(row.verdict, "#6b7280")
        parts.append(f'<text x="{left - 14}" y="{y + 4}" text-anchor="end">{escape(row.label)}</text>')
        if row.ours is not None:
            value, low, high = row.ours
            parts.append(
                f'<line x1="{x(low):.1f}" x2="{x(high):.1f}" y1="{y}" y2="{y}" stroke="{colour}" stroke-width="2"/>'
                f'<circle cx="{x(value):.1f}" cy="{y}" r="4.5" fill="{colour}"/>'
            )
        if row.theirs is not None:
            parts.append(
                f'<circle cx="{x(row.theirs):.1f}" cy="{y}" r="5.5" fill="none" stroke="{colour}" stroke-width="1.6"/>'
            )
        right = left + middle + 16
        parts.append(
            f'<circle cx="{right + 4}" cy="{y}" r="4" fill="{colour}"/>'
            f'<text x="{right + 14}" y="{y + 4}">{row.verdict}</text>'
            f'<text class="s" x="{right + 96}" y="{y + 4}">{escape(row.value)}</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


def scatter(
    points: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x: str,
    y: str,
    title: str,
    log_x: bool = False,
    log_y: bool = False,
) -> str:
    """Models by condition, one colour each; axes from the smallest to the largest value."""
    kept = {
        name: [
            (a, b)
            for a, b in own
            if math.isfinite(a) and math.isfinite(b) and (a > 0 or not log_x) and (b > 0 or not log_y)
        ]
        for name, own in points.items()
    }
    kept = {name: own for name, own in kept.items() if own}
    left, top, wide, high = 76, 34, 420, 270
    width, height = left + wide + 220, top + high + 54
    across = _Axis.of([a for own in kept.values() for a, _ in own], log_x)
    upward = _Axis.of([b for own in kept.values() for _, b in own], log_y)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" '
        f'aria-label="{escape(title)}">',
        STYLE,
        f'<text x="{left}" y="18">{escape(title)}</text>',
        f'<rect x="{left}" y="{top}" width="{wide}" height="{high}" fill="none" stroke="#8a94a6"/>',
    ]
    for tick in across.ticks:
        place = left + wide * across.at(tick)
        parts.append(
            f'<line x1="{place:.1f}" x2="{place:.1f}" y1="{top + high}" y2="{top + high + 4}" stroke="#8a94a6"/>'
            f'<text class="s" x="{place:.1f}" y="{top + high + 18}" text-anchor="middle">{_number(tick)}</text>'
        )
    for tick in upward.ticks:
        place = top + high * (1 - upward.at(tick))
        parts.append(
            f'<line x1="{left - 4}" x2="{left}" y1="{place:.1f}" y2="{place:.1f}" stroke="#8a94a6"/>'
            f'<text class="s" x="{left - 8}" y="{place + 4:.1f}" text-anchor="end">{_number(tick)}</text>'
        )
    parts += [
        f'<text class="s" x="{left + wide / 2}" y="{top + high + 40}" text-anchor="middle">{escape(x)}</text>',
        f'<text class="s" transform="translate(16 {top + high / 2}) rotate(-90)" text-anchor="middle">{escape(y)}</text>',
    ]
    for number, (name, own) in enumerate(kept.items()):
        colour = COLOURS[number % len(COLOURS)]
        parts += [
            f'<circle cx="{left + wide * across.at(a):.1f}" cy="{top + high * (1 - upward.at(b)):.1f}" r="3.6" fill="{colour}" '
            'fill-opacity="0.72"/>'
            for a, b in own
        ]
        place = top + 12 + 18 * number
        parts.append(
            f'<circle cx="{left + wide + 18}" cy="{place}" r="4" fill="{colour}"/>'
            f'<text class="s" x="{left + wide + 28}" y="{place + 4}">{escape(name)} (n = {len(own)})</text>'
        )
    return "\n".join([*parts, "</svg>"]) + "\n"


@dataclass(frozen=True)
class _Axis:
    low: float
    high: float
    log: bool

    @classmethod
    def of(cls, values: Sequence[float], log: bool) -> _Axis:
        """From the smallest to the largest, with a little room."""
        scaled = [math.log10(value) for value in values] if log else list(values)
        low, high = min(scaled, default=0.0), max(scaled, default=1.0)
        room = 0.05 * (high - low) or 0.5
        return cls(low - room, high + room, log)

    def at(self, value: float) -> float:
        """Where a value lies, from 0 to 1."""
        return ((math.log10(value) if self.log else value) - self.low) / (self.high - self.low)

    @property
    def ticks(self) -> list[float]:
        """Round numbers.

        >>> _Axis.of([0.12, 0.52], log=False).ticks
        [0.1, 0.2, 0.3, 0.4, 0.5]
        >>> _Axis.of([0.002, 3.0], log=True).ticks
        [0.01, 0.1, 1.0]
        """
        if self.log and self.high - self.low > 1.2:
            return [10.0**power for power in range(math.ceil(self.low), math.floor(self.high) + 1)]
        low, high = (10**self.low, 10**self.high) if self.log else (self.low, self.high)
        size = 10 ** math.floor(math.log10(high - low))
        step = next(size * part for part in (0.1, 0.2, 0.5, 1, 2) if (high - low) / (size * part) <= 6)
        first = math.ceil(low / step - 1e-9)
        return [round(step * number, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def _number(value: float) -> str:
    return f"{value:g}".replace("-", "−")
