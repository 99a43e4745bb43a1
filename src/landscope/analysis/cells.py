"""One column of a summary: mean ± spread of every condition, to the digits that mean something, best and worst marked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from landscope.analysis.coefficients import Floats
from landscope.analysis.moments import mean_and_deviation

__all__ = ["Cell", "Direction", "Spread", "summarise"]

Direction = Literal["higher", "lower"]
Spread = Literal["std", "sem"]


@dataclass(frozen=True)
class Cell:
    """Mean and spread of n runs as numbers and as text; `mark` is "best", "worst" or empty.

    No mean: there was no run, or runs were infinite (the text says so).
    """

    mean: float | None
    spread: float | None
    n: int
    missing: int
    text: str
    mark: str = ""


def summarise(
    groups: Sequence[Floats], spread: Spread = "std", digits: int | None = None, better: Direction | None = None
) -> list[Cell]:
    """A cell for every group of runs.

    >>> [cell.text for cell in summarise([np.array([9.0, 11.0]), np.array([5.0]), np.array([])])]
    ['10.0 ± 1.4', '5.0', '–']
    >>> [cell.mark for cell in summarise([np.array([0.9]), np.array([0.8]), np.array([0.7])], better="higher")]
    ['best', '', 'worst']
    """
    cells = [_numbers(group, spread) for group in groups]
    spreads = [cell.spread for cell in cells if cell.spread]
    means = [cell.mean for cell in cells if cell.mean is not None]
    common = digits
    if digits is None and spreads and max(spreads) <= 100 * min(spreads):
        common = _decimals(float(np.median(spreads)), 2)
    elif digits is None and not spreads and any(means):
        common = _decimals(max(map(abs, means)), 4)
    fixed = digits is not None or all(abs(mean) < 1e6 for mean in means)
    cells = [replace(cell, text=_text(cell, common, fixed)) if cell.mean is not None else cell for cell in cells]
    return _marked(cells, better) if better and len(means) > 1 else cells


def _numbers(group: Floats, spread: Spread) -> Cell:
    runs = group[~np.isnan(group)]
    n, missing = len(runs), len(group) - len(runs)
    if not n:
        return Cell(None, None, 0, missing, "–")
    if not np.isfinite(runs).all():
        signs = {float(value) for value in runs if np.isinf(value)}
        return Cell(None, None, n, missing, "–" if len(signs) > 1 else "∞" if math.inf in signs else "−∞")
    mean, deviation = mean_and_deviation(runs)
    if spread == "sem":
        deviation /= math.sqrt(n)
    return Cell(mean, deviation if n > 1 else None, n, missing, "")


def _decimals(size: float, significant: int) -> int:
    return significant - 1 - math.floor(math.log10(size))


def _text(cell: Cell, decimals: int | None, fixed: bool) -> str:
    mean, spread = cell.mean or 0.0, cell.spread
    if decimals is None:  # spreads of this column differ by orders of magnitude: every cell for itself
        decimals = _decimals(spread or abs(mean) or 1.0, 2 if spread else 4)
    if fixed and decimals <= 6:
        shown = [f"{number:.{max(decimals, 0)}f}" for number in (mean, spread) if number is not None]
    else:
        lead = math.floor(math.log10(max(abs(mean), spread or 0.0) or 1.0))
        shown = [f"{mean:.{min(max(lead + decimals, 1), 6)}e}"] + ([f"{spread:.1e}"] if spread is not None else [])
    return " ± ".join(shown)


def _marked(cells: list[Cell], better: Direction) -> list[Cell]:
    """Cells whose printed mean is the best or the worst; none where all print the same."""
    known = [cell for cell in cells if cell.mean is not None]
    order = sorted(known, key=lambda cell: cell.mean or 0.0, reverse=better == "higher")
    best, worst = (cell.text.split(" ± ")[0] for cell in (order[0], order[-1]))
    if best == worst:
        return cells
    marks = {best: "best", worst: "worst"}
    return [
        replace(cell, mark=marks.get(cell.text.split(" ± ")[0], "") if cell.mean is not None else "") for cell in cells
    ]
