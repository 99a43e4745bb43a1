"""An effect with how it is written: what a question is answered by."""

from __future__ import annotations

import math
from dataclasses import dataclass

from landscope.analysis import Effect, Mean
from landscope.core.text import significant

__all__ = ["RATIO", "TAU", "Answer", "Counted", "Unit"]

DECIMALS, LARGE, WIDE = 5, 1000.0, 4.0
"""Beyond which numbers have three digits, whatever their errors; ratios of which the interval is wider have two."""


@dataclass(frozen=True)
class Unit:
    """How an effect is written: times `scale`, with a word behind it; a ratio as what it multiplies by.

    >>> from landscope.analysis import mean
    >>> Unit("points", 100).written(mean([0.01, 0.02, 0.03]), 0.05)
    '2.0 points [−0.5, 4.5]'
    >>> RATIO.written(mean([0.0, 1.0, 2.5]), 0.05), RATIO.written(mean([3.0, 3.1, 3.2]), 0.05)
    ('× 3.2 [0.14, 73]', '× 22.2 [17.3, 28.5]')
    """

    word: str = ""
    scale: float = 1.0
    ratio: bool = False
    symbol: str = ""

    def written(self, effect: Effect, alpha: float) -> str:
        """The value and its interval, to two digits of its width."""
        value = self.number(effect.value)
        low, high = sorted(map(self.number, effect.interval(1 - alpha)))
        if self.ratio and high > WIDE * low:
            texts = [_two_digits(each) for each in (value, low, high)]
        else:
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

    def size(self, value: float) -> str:
        """A size by itself.

        >>> Unit("points", 100).size(0.023), RATIO.size(0.5), TAU.size(0.31)
        ('2.3 points', '× 1.65', 'τ = 0.31')
        """
        return f"{self.symbol}{self.number(value):.3g} {self.word}".strip().replace("-", "−")

    def number(self, value: float) -> float:
        """A value in this unit."""
        return self.scale * (math.exp(min(value, 100.0)) if self.ratio else value)


@dataclass(frozen=True)
class Counted(Unit):
    """An effect that is counted from a bound is written as the number itself."""

    bound: float = 0.0
    turned: bool = False

    def written(self, effect: Effect, alpha: float) -> str:
        assert isinstance(effect, Mean)
        own = -effect if self.turned else effect
        return super().written(own.shifted(math.log(self.bound) if self.ratio else self.bound), alpha)


def _two_digits(ratio: float) -> str:
    """Two digits, or as many as show on which side of 1 it lies.

    >>> _two_digits(0.00939), _two_digits(2481.0), _two_digits(1.04), _two_digits(0.9996)
    ('0.0094', '2500', '1.04', '0.9996')
    """
    texts = [significant(ratio, digits) for digits in range(2, 6)]
    return next((text for text in texts if float(text) != 1.0), texts[0]) if 0.5 < ratio < 2 else texts[0]


RATIO, TAU = Unit(ratio=True, symbol="× "), Unit(symbol="τ = ")


@dataclass(frozen=True)
class Answer:
    """An effect, positive where the claim goes, with the paper's beside it where that is known."""

    label: str
    ours: Effect
    theirs: Effect | None = None
    unit: Unit = Unit()
    margin: float | None = None
    n: str = ""
    """How many of what it rests on: "3 and 3", "24 conditions"."""

    @property
    def name(self) -> str:
        """What is told, and of how many."""
        return f"{self.label} (n = {self.n})" if self.n else self.label
