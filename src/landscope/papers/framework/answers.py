"""An effect with how it is written: what a question is answered by."""

from __future__ import annotations

import math
from dataclasses import dataclass

from landscope.analysis import Effect
from landscope.core.text import significant

__all__ = ["RATIO", "TAU", "Answer", "Unit"]

DECIMALS, LARGE = 5, 1000.0
"""Beyond which numbers have three digits, whatever their errors."""


@dataclass(frozen=True)
class Unit:
    """How an effect is written: times `scale`, with a word behind it; a ratio as what it multiplies by.

    >>> from landscope.analysis import mean
    >>> Unit("points", 100).written(mean([0.01, 0.02, 0.03]), 0.05)
    '2.0 points [−0.5, 4.5]'
    """

    word: str = ""
    scale: float = 1.0
    ratio: bool = False
    symbol: str = ""

    def written(self, effect: Effect, alpha: float) -> str:
        """The value and its interval, to two digits of its width."""
        value = self.number(effect.value)
        low, high = sorted(map(self.number, effect.interval(1 - alpha)))
        narrow = min(abs(high - value), abs(value - low)) or abs(value) or 1.0
        decimals = max(0, 1 - math.floor(math.log10(narrow)))
        texts = [
            significant(each)
            if decimals > DECIMALS or abs(each) >= LARGE or (self.ratio and each < 0.1)
            else f"{each:.{decimals}f}"
            for each in (value, low, high)
        ]
        shown = [text.replace("-", "−") if text.strip("-0.") else text.replace("-", "") for text in texts]
        return f"{self.symbol}{shown[0]}{' ' * bool(self.word)}{self.word} [{shown[1]}, {shown[2]}]"

    def number(self, value: float) -> float:
        """A value in this unit."""
        return self.scale * (math.exp(min(value, 100.0)) if self.ratio else value)


RATIO, TAU = Unit(ratio=True, symbol="× "), Unit(symbol="τ = ")


@dataclass(frozen=True)
class Answer:
    """An effect, positive where the claim goes, with the paper's beside it where that is known."""

    label: str
    ours: Effect
    theirs: Effect | None = None
    unit: Unit = Unit()
    margin: float | None = None
