"""The exact distribution of Kendall's τ where nothing goes together.

Without ties all n! orders are equally likely, and τ = 1 − 4D/(n(n−1)) with D the number of inversions (discordant pairs).
Inserting the n-th model adds 0 … n−1 inversions, each with probability 1/n:

    P_n(D = d) = (1/n) Σ_{k=0}^{n−1} P_{n−1}(D = d − k)          (Kendall 1938)

O(n³) additions once per n, remembered. Beyond `EXACT_LIMIT` models the normal law with variance 2(2n+5)/(9n(n−1))
differs from it by less than anybody's rounding.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from scipy.special import ndtri

from landscope.analysis.coefficients import Floats

__all__ = ["EXACT_LIMIT", "at_most", "kendall_null", "null_deviation", "smallest_significant"]

EXACT_LIMIT = 150


@functools.lru_cache(maxsize=256)
def kendall_null(n: int) -> Floats:
    """P(D = d) for d = 0 … n(n−1)/2 inversions.

    >>> (kendall_null(4) * 24).round(12)
    array([1., 3., 5., 6., 5., 3., 1.])
    """
    law = np.ones(1)
    for size in range(2, n + 1):
        sums = np.cumsum(np.concatenate([law, np.zeros(size - 1)]))
        sums[size:] -= sums[:-size].copy()
        # the far half by symmetry: differences of sums near one would lose the small probabilities there
        half = (len(sums) + 1) // 2
        law = np.concatenate([sums[:half], sums[: len(sums) - half][::-1]]) / size
    law.setflags(write=False)
    return law


def at_most(inversions: int, n: int) -> float:
    """P(D ≤ inversions), exact.

    >>> round(at_most(1, 4) * 24, 10)
    4.0
    """
    pairs = n * (n - 1) // 2
    if inversions >= pairs / 2:
        return 1.0 - float(kendall_null(n)[: pairs - inversions].sum())
    return float(kendall_null(n)[: max(inversions + 1, 0)].sum())


def null_deviation(n: int) -> float:
    """The standard deviation of τ where nothing goes together, √(2(2n+5)/(9n(n−1))).

    >>> round(null_deviation(50), 5)
    0.09759
    """
    return math.sqrt(2 * (2 * n + 5) / (9 * n * (n - 1)))


@functools.lru_cache(maxsize=4096)
def smallest_significant(n: int, alpha: float = 0.05) -> float | None:
    """The smallest |τ| that n models can show with a two-sided p ≤ alpha, or None where even τ = 1 is not significant.

    Exact up to 150 models (without ties), then z_{1−α/2} √(2(2n+5)/(9n(n−1))).

    >>> smallest_significant(4) is None, smallest_significant(5), round(smallest_significant(50), 3)
    (True, 1.0, 0.192)
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1, got {alpha}")
    if n < 2:
        return None
    if n > EXACT_LIMIT:
        critical = -float(ndtri(alpha / 2)) * null_deviation(n)
        return critical if critical <= 1 else None
    # a p-value that equals alpha in exact arithmetic counts, whatever the rounding of the sums
    tail = 2 * np.cumsum(kendall_null(n)) <= alpha * (1 + 1e-12)
    if not tail[0]:
        return None
    inversions = int(np.flatnonzero(tail)[-1])
    return 1 - 4 * inversions / (n * (n - 1))
