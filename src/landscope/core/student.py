"""Quantiles of Student's t distribution, for error bars from few numbers.

`scipy.special` has them, too, but takes half a second of processor time to import: too long for a first look within one second.
"""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

TWO_SIGMA = NormalDist().cdf(2)
"""How often a normal number lies below two standard deviations."""
MANY = 1e4
"""Degrees of freedom above which the expansion in their inverse is right to twelve digits."""
TERMS = 10_000
SMALLEST = 1e-300


@cache
def student_quantile(freedom: float, probability: float) -> float:
    """The t below which Student's T with these degrees of freedom lies with this probability (at least ½).

    Newton's method on P(T ≤ t) = 1 − ½ I_{ν/(ν + t²)}(ν/2, ½): the distribution function is concave for t > 0, so that the steps
    from below never pass the root. With many degrees of freedom, the normal quantile and its first corrections (Abramowitz &
    Stegun 26.7.5).

    >>> [round(student_quantile(freedom, 0.975), 9) for freedom in (1.0, 4.5, 30.0, 1e6)]
    [12.706204736, 2.659005607, 2.042272456, 1.959966355]
    >>> student_quantile(3.0, 0.5)
    0.0
    """
    z = NormalDist().inv_cdf(probability)
    if freedom > MANY or z == 0.0:
        return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
    half = freedom / 2
    scale = math.lgamma(half + 0.5) - math.lgamma(half) - math.log(freedom * math.pi) / 2
    t = z
    while True:
        missing = probability - 1 + _incomplete_beta(freedom / (freedom + t * t), half, 0.5) / 2
        step = missing / math.exp(scale - (half + 0.5) * math.log1p(t * t / freedom))
        t += step
        if step <= 1e-12 * t:
            return t


def student_factor(freedom: float) -> float:
    """How much wider two error bars must be when the variance is known from `freedom` squares only.

    >>> [round(student_factor(n), 2) for n in (1, 4, 20, 1e6)]
    [6.98, 1.43, 1.07, 1.0]
    """
    return student_quantile(freedom, TWO_SIGMA) / 2


def _incomplete_beta(x: float, a: float, b: float) -> float:
    """I_x(a, b), regularised, by its continued fraction (Lentz's method; DLMF 8.17.22)."""
    if x > (a + 1) / (a + b + 2):
        return 1 - _incomplete_beta(1 - x, b, a)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1) or SMALLEST)
    value = d
    for m in range(1, TERMS):
        for term in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d = 1 / (1 + term * d or SMALLEST)
            c = 1 + term / c or SMALLEST
            value *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return front * value / a
