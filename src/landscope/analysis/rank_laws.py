"""Exact distributions of rank statistics under no effect, ties included.

Midranks are multiples of ½, so doubled ranks are integers and a distribution is an array indexed by twice the statistic.

    signed-rank   Π_i (1 + z^{r_i})/2: every rank is in the sum or not
    rank-sum      the terms of Π_i (1 + y z^{r_i}) with yⁿ: every choice of n ranks, equally likely
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from landscope.analysis.coefficients import Floats
from landscope.analysis.significance import Alternative, combine_tails

__all__ = ["normal_p", "p_of_law", "rank_sum_law", "signed_rank_law"]


def signed_rank_law(doubled: NDArray[np.int64]) -> Floats:
    """P(2W⁺ = s) for s = 0 … Σ doubled ranks. O(n·Σ) additions.

    >>> signed_rank_law(np.array([2, 4])).tolist()  # ranks 1 and 2: W⁺ is 0, 1, 2 or 3
    [0.25, 0.0, 0.25, 0.0, 0.25, 0.0, 0.25]
    """
    law = np.zeros(int(doubled.sum()) + 1)
    law[0] = 1.0
    for rank in doubled:
        law[rank:] += law[:-rank].copy()
        law /= 2
    return law


def rank_sum_law(doubled: NDArray[np.int64], size: int) -> Floats:
    """P(twice the sum of `size` of the ranks = s). O(size·n·Σ) additions.

    >>> np.flatnonzero(rank_sum_law(np.array([2, 4, 6]), 2)).tolist()  # 1+2, 1+3, 2+3
    [6, 8, 10]
    """
    ways = np.zeros((size + 1, int(doubled.sum()) + 1))
    ways[0, 0] = 1.0
    for rank in doubled:
        ways[1:, rank:] += ways[:-1, :-rank].copy()
    return np.asarray(ways[size] / ways[size].sum())


def p_of_law(law: Floats, at: int, alternative: Alternative) -> float:
    """The p-value of an outcome `at`.

    >>> p_of_law(np.array([0.25, 0.5, 0.25]), 2, "two-sided")
    0.5
    """
    # sums of many shares may come out a rounding above 1
    return min(1.0, combine_tails(float(law[at:].sum()), float(law[: at + 1].sum()), alternative))


def normal_p(statistic: float, mean: float, spread: float, alternative: Alternative) -> float:
    """The same by the normal law, with the correction for continuity.

    >>> round(normal_p(10.0, 5.0, 2.0, "greater"), 4)
    0.0122
    """
    if spread == 0:
        return 1.0
    z = (statistic - mean) / spread
    half = 0.5 / spread
    return combine_tails(float(ndtr(half - z)), float(ndtr(z + half)), alternative)
