"""How many models are needed, and what can so few show.

With n models τ is significant (two-sided, level α) from c_n = `smallest_significant(n)` on: exact to 150 models, then
z_{1−α/2} √(2(2n+5)/(9n(n−1))), Kendall's null variance. Where the true coefficient is τ, the observed one scatters around it; for
normal columns with correlation r = sin(πτ/2) its variance is (Esscher 1924)

    σ²(τ, n) = 2/(n(n−1)) · (1 − τ² + 2(n−2)(1/9 − (2/π · asin(r/2))²))

which is Kendall's null variance at τ = 0. The chance to find it is Φ((|τ| − c)/σ) + Φ((−|τ| − c)/σ) with
c = c_n − 2/(n(n−1)), half a step of the values that τ can take. Simulated, it is right to 0.02 from
10 models on and to 0.05 below.
"""

from __future__ import annotations

import math

from scipy.special import ndtr

from landscope.analysis.coefficients import Method
from landscope.analysis.kendall_null import EXACT_LIMIT, smallest_significant
from landscope.core.errors import OperandError

__all__ = ["as_kendall", "chance_to_find", "models_needed", "smallest_significant"]


def chance_to_find(tau: float, n: int, alpha: float = 0.05) -> float:
    """The power of n models: how likely a true τ shows with a two-sided p ≤ alpha.

    >>> round(chance_to_find(0.3, 50), 2), chance_to_find(0.9, 4)
    (0.89, 0.0)
    """
    critical = smallest_significant(n, alpha)
    if critical is None:
        return 0.0
    size = abs(tau)
    spread = math.sqrt(max(_variance(size, n), 0.0))
    if spread == 0.0:
        return float(size >= critical)
    edge = critical - 2 / (n * (n - 1))
    return float(ndtr((size - edge) / spread) + ndtr((-size - edge) / spread))


def models_needed(tau: float, alpha: float = 0.05, power: float = 0.8) -> int | None:
    """The smallest number of models that finds a true τ with this power, or None for τ = 0, which none would.

    >>> models_needed(0.3), models_needed(-0.3), models_needed(1.0), models_needed(0.0)
    (41, 41, 5, None)
    """
    if not -1 <= tau <= 1:
        raise OperandError(f"τ must lie between −1 and 1, got {tau}")
    if not 0 < alpha < 1 or not alpha < power < 1:
        raise OperandError(f"0 < alpha < power < 1 is needed, got alpha = {alpha}, power = {power}")
    if tau == 0:
        return None
    for n in range(3, EXACT_LIMIT + 1):
        if chance_to_find(tau, n, alpha) >= power:
            return n
    few, many = EXACT_LIMIT, 2 * EXACT_LIMIT
    while chance_to_find(tau, many, alpha) < power:
        few, many = many, 2 * many
        if many > 10**15:
            return None
    while many - few > 1:
        middle = (few + many) // 2
        few, many = (few, middle) if chance_to_find(tau, middle, alpha) >= power else (middle, many)
    return many


def as_kendall(value: float, method: Method) -> float:
    """The τ of normal columns whose ρ or r is `value`: τ = 2/π · asin r, and r = 2 sin(πρ/6).

    >>> round(as_kendall(0.5, "pearson"), 4), as_kendall(0.2, "kendall")
    (0.3333, 0.2)
    """
    if method == "kendall":
        return value
    r = 2 * math.sin(math.pi * value / 6) if method == "spearman" else value
    return 2 / math.pi * math.asin(max(-1.0, min(1.0, r)))


def _variance(tau: float, n: int) -> float:
    half = 2 / math.pi * math.asin(math.sin(math.pi * tau / 2) / 2)
    return 2 / (n * (n - 1)) * (1 - tau**2 + 2 * (n - 2) * (1 / 9 - half**2))
