"""How values become heights and colours: a range, the levels worth a line, logarithmic where the range is large."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from landscope.planes.result import Floats

if TYPE_CHECKING:
    from matplotlib.colors import Normalize

LARGE_RANGE = 8.0
"""Largest over smallest value from which levels are logarithmic."""
DECADES = 6.0
"""How far above the smallest value a logarithmic scale goes; what is higher is drawn at its end."""
MOST_LEVELS = 13
FLAT = 1e-9
"""Relative range up to which values count as all the same."""


@dataclass(frozen=True)
class Scale:
    """Values from `low` to `high`, drawn linearly or logarithmically; larger ones are clipped, and `clipped` says so.

    >>> scale = Scale.of([np.array([0.01, 0.1, 5.0, np.inf])])
    >>> scale.logarithmic, scale.clipped, scale.levels.tolist()
    (True, True, [0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0])
    >>> Scale.of([np.array([0.9, 1.0, 1.3])]).levels.tolist()
    [0.9, 0.95, 1.0, 1.05, 1.1, 1.15, 1.2, 1.25, 1.3]
    """

    low: float
    high: float
    logarithmic: bool
    levels: Floats
    clipped: bool

    @classmethod
    def of(cls, grids: Sequence[Floats], linear: bool = False) -> Scale:
        """One scale for all grids together."""
        values = np.concatenate([grid.ravel() for grid in grids])
        finite = values[np.isfinite(values)]
        low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 1.0)
        clipped = len(finite) < len(values)
        logarithmic = not linear and low > 0 and high > LARGE_RANGE * low
        if logarithmic and high > low * 10**DECADES:
            high, clipped = low * 10**DECADES, True
        if high - low <= FLAT * max(abs(low), abs(high)):
            high = low + (abs(low) or 1.0) * 1e3 * FLAT
        return cls(low, high, logarithmic, _log_levels(low, high) if logarithmic else _levels(low, high), clipped)

    def norm(self) -> Normalize:
        from matplotlib.colors import LogNorm, Normalize

        return (LogNorm if self.logarithmic else Normalize)(self.low, self.high)

    def clip(self, values: Floats) -> Floats:
        return np.clip(values, self.low, self.high)

    def heights(self, values: Floats) -> Floats:
        """Values as heights of a surface: their logarithms on a logarithmic scale."""
        clipped = self.clip(values)
        return np.log10(clipped) if self.logarithmic else clipped

    def text(self, level: float) -> str:
        """A level in the fewest digits, at least three, that distinguish all levels.

        >>> Scale.of([np.array([1.0, 1.0001])]).text(1.00002)
        '1.00002'
        """
        for digits in range(3, 17):
            if len({f"{other:.{digits}g}" for other in self.levels}) == len(self.levels):
                break
        return f"{level:.{digits}g}"

    def bands(self, count: int = 60) -> Floats:
        """The edges of many thin bands of colour."""
        return (np.geomspace if self.logarithmic else np.linspace)(self.low, self.high, count + 1)


def _log_levels(low: float, high: float) -> Floats:
    """1, 2, 5 × powers of ten within the range; powers of ten alone where those would be too many."""
    powers = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    for steps in ([1, 1.5, 2, 3, 5, 7], [1, 2, 5], [1]):
        levels = np.array([float(f"{step * power:.3g}") for power in powers for step in steps])
        levels = levels[(levels >= low * (1 - 1e-9)) & (levels <= high * (1 + 1e-9))]
        if len(levels) <= MOST_LEVELS:
            break
    return levels


def _levels(low: float, high: float) -> Floats:
    """Round numbers within the range, about ten of them."""
    from matplotlib.ticker import MaxNLocator

    ticks = np.asarray(MaxNLocator(10, steps=[1, 2, 2.5, 5, 10]).tick_values(low, high), dtype=np.float64)
    slack = 1e-6 * (high - low)
    decimals = 2 - int(np.floor(np.log10(ticks[1] - ticks[0])))
    return np.round(ticks[(ticks >= low - slack) & (ticks <= high + slack)], decimals)
