"""How many units decide, and what a few can show: always for an effect that was planned, never for the one that was seen.

An observed effect says little about the n that its true size needs: where τ = 0.2 (89 models) was undecided with 50, the n
computed from the observed τ was wrong by more than a factor of two in 54 % of simulated studies. So the size is fixed in advance:
the paper's number, or the smallest that would matter.

With n units τ is significant (two-sided, level α) from c_n = `smallest_significant(n)` on, and an observed τ scatters around
the true one with σ(τ, n) = `kendall_spread`. The chance to find it is Φ((|τ| − c)/σ) + Φ((−|τ| − c)/σ) with
c = c_n − 2/(n(n−1)), half a step of the values that τ can take. Simulated, it is right to 0.02 from 10 units on and to 0.05
below. Means: by the noncentral t.
"""

from __future__ import annotations

import math

from scipy.special import ndtr, stdtrit

from landscope.analysis.coefficients import EXACT_LIMIT, kendall_spread, smallest_significant
from landscope.core.errors import OperandError

POWER = 0.8
MOST = 10**15


def chance_to_find(tau: float, n: int, alpha: float = 0.05) -> float:
    """The power of n units: how likely a true τ shows with a two-sided p ≤ alpha.

    >>> round(chance_to_find(0.3, 50), 2), chance_to_find(0.9, 4)
    (0.89, 0.0)
    """
    critical = smallest_significant(n, alpha)
    if critical is None:
        return 0.0
    size = abs(tau)
    spread = kendall_spread(size, n)
    if spread == 0.0:
        return float(size >= critical)
    edge = critical - 2 / (n * (n - 1))
    return float(ndtr((size - edge) / spread) + ndtr((-size - edge) / spread))


def models_needed(tau: float, alpha: float = 0.05, power: float = POWER) -> int | None:
    """The smallest number of independent units that finds a true τ with this power, or None for τ = 0, which none would.

    >>> models_needed(0.3), models_needed(-0.3), models_needed(1.0), models_needed(0.0)
    (41, 41, 5, None)
    """
    if not -1 <= tau <= 1:
        raise OperandError(f"τ must lie between −1 and 1, got {tau}")
    _check(alpha, power)
    if tau == 0:
        return None
    for n in range(3, EXACT_LIMIT + 1):
        if chance_to_find(tau, n, alpha) >= power:
            return n
    few, many = EXACT_LIMIT, 2 * EXACT_LIMIT
    while chance_to_find(tau, many, alpha) < power:
        few, many = many, 2 * many
        if many > MOST:
            return None
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if chance_to_find(tau, middle, alpha) >= power else (middle, many)
    return many


def runs_needed(
    effect: float, spread: float, *, groups: int = 2, alpha: float = 0.05, power: float = POWER
) -> int | None:
    """The smallest number of runs (in each group) whose t test finds a difference of means of this size.

    `spread` is the standard deviation of one value: of one run less another (√2 times a run's, where both sides spread alike),
    or with `groups=1` of one pair.

    >>> runs_needed(1.0, math.sqrt(2)), runs_needed(1.0, 1.0, groups=1), runs_needed(0.0, 1.0)  # tables: 17, 10
    (17, 10, None)
    """
    from scipy.stats import nct

    _check(alpha, power)
    if not spread > 0:
        raise OperandError(f"the spread of runs must be positive, got {spread}")
    ratio = abs(effect) / spread
    if ratio == 0:
        return None
    z = -float(stdtrit(math.inf, alpha / 2)) + float(stdtrit(math.inf, power))
    n = max(2, math.floor((z / ratio) ** 2) - 2)  # the normal law asks for less than t does
    while n < MOST:
        freedom = groups * (n - 1)
        critical = -float(stdtrit(freedom, alpha / 2))
        if n > 10**4 or nct.sf(critical, freedom, ratio * math.sqrt(n)) >= power:
            return n
        n += 1
    return None


def _check(alpha: float, power: float) -> None:
    if not 0 < alpha < 1 or not alpha < power < 1:
        raise OperandError(f"expected 0 < alpha < power < 1, got alpha = {alpha}, power = {power}")
