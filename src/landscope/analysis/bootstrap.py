"""How far a correlation could be off: bootstrap intervals from resampled models.

Models are drawn with replacement (inside their strata), the coefficient of every resample is computed at once, and the
quantiles of those bound it. Two choices:

    bca          bias-corrected and accelerated (Efron 1987): the quantiles are moved by the median bias z₀ and the skewness a
                 of the jackknife,  α ↦ Φ(z₀ + (z₀ + z_α)/(1 − a(z₀ + z_α)));  second-order correct, the default
    percentile   the plain quantiles

With strata h of n_h models and influence values l_hj = (n_h − 1)(θ̄_h − θ_(hj)), a = Σ l³/n_h³ / 6(Σ l²/n_h²)^{3/2} (Davison
and Hinkley 1997, §5.3). Resamples in which a column does not vary have no coefficient and are left out.

Simulated (normal columns, 12 to 50 models, correlations 0 to 0.9), intervals of 95 % hold the truth in 93 to 98 % (bca) and in
91 to 99 % of cases (percentile).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtr, ndtri

from landscope.analysis.coefficients import Codes, Counts, Floats
from landscope.analysis.draws import generator, resampled_counts, strata_members
from landscope.core.errors import UnknownNameError

__all__ = ["Interval", "IntervalMethod", "bootstrap_interval", "mean_interval"]

IntervalMethod = Literal["bca", "percentile"]

MOST, LEAST, DRAWN = 10_000, 2_000, 100_000
"""Resamples of few models, of many, and the models that are drawn in all in between."""
FEWEST = 5
"""Of fewer models most resamples are degenerate and an interval would pretend to know something."""


@dataclass(frozen=True)
class Interval:
    """Bounds, or none and why; `method` says how they were found."""

    low: float | None
    high: float | None
    method: str

    @classmethod
    def none(cls, why: str) -> Interval:
        """No bounds, because of `why`."""
        return cls(None, None, f"none: {why}")


def enough(n: int) -> int:
    """As many resamples of n models as take little time: of few models many, whose bounds would otherwise hang on the seed.

    >>> enough(8), enough(20), enough(50)
    (10000, 5000, 2000)
    """
    return min(MOST, max(LEAST, DRAWN // max(1, n)))


def bootstrap_interval(
    statistic: Callable[[Counts], Floats],
    strata: Codes,
    *,
    method: IntervalMethod = "bca",
    confidence: float = 0.95,
    resamples: int | None = None,
    seed: int = 0,
) -> Interval:
    """The interval of a statistic of counts (rows: how often each model is in the sample); `enough` resamples for None.

    >>> x = np.arange(20.0)
    >>> interval = bootstrap_interval(lambda counts: counts @ x / counts.sum(1), np.zeros(20, dtype=int))
    >>> 6.5 < interval.low < 7.5, 11.5 < interval.high < 12.5, interval.method
    (True, True, 'bca')
    """
    if method not in ("bca", "percentile"):
        raise UnknownNameError.among("interval", method, ("bca", "percentile"))
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must lie between 0 and 1, got {confidence}")
    n = len(strata)
    resamples = enough(n) if resamples is None else resamples
    if not resamples:
        return Interval.none("not asked for")
    if n < FEWEST:
        return Interval.none(f"{n} models are too few to resample")
    values = statistic(resampled_counts(strata, resamples, generator(seed, "bootstrap")))
    values = values[~np.isnan(values)]
    if len(values) < resamples / 2:
        return Interval.none(f"{resamples - len(values)} of {resamples} resamples have no value")
    if np.ptp(values) < 1e-12:
        return Interval.none("all resamples give the same value, so their spread says nothing")
    levels = np.array([(1 - confidence) / 2, (1 + confidence) / 2])
    used: str = "percentile"
    if method == "bca":
        moved = _bca_levels(levels, values, float(statistic(np.ones((1, n), np.float32))[0]), statistic, strata)
        if moved is not None:
            levels, used = moved, "bca"
    low, high = np.quantile(values, levels)
    return Interval(float(low), float(high), used)


def _bca_levels(
    levels: Floats, values: Floats, estimate: float, statistic: Callable[[Counts], Floats], strata: Codes
) -> Floats | None:
    """The corrected quantile levels, or None where bias or acceleration cannot be told."""
    slack = 1e-12
    below = np.mean(values < estimate - slack) + np.mean(np.abs(values - estimate) <= slack) / 2
    n = len(strata)
    left_out = statistic(1 - np.eye(n, dtype=np.float32))
    if not 0 < below < 1 or np.isnan(left_out).any():
        return None
    second = third = 0.0
    for members in strata_members(strata):
        influence = (len(members) - 1) * (left_out[members].mean() - left_out[members])
        second += float(np.square(influence).sum()) / len(members) ** 2
        third += float((influence**3).sum()) / len(members) ** 3
    acceleration = third / (6 * second**1.5) if second > 0 else 0.0
    bias = float(ndtri(below))
    shifted = bias + ndtri(levels)
    scale = 1 - acceleration * shifted
    if (scale <= 0).any():
        return None
    return np.asarray(ndtr(bias + shifted / scale))


def mean_interval(groups: list[Floats], *, confidence: float, resamples: int | None, seed: int) -> Interval:
    """The percentile interval of the mean of the groups' means, entries drawn anew inside each group.

    >>> mean_interval([np.array([0.0, 1.0] * 50)], confidence=0.95, resamples=999, seed=0)
    Interval(low=0.4, high=0.59, method='percentile')
    """
    resamples = enough(sum(map(len, groups))) if resamples is None else resamples
    if not resamples:
        return Interval.none("not asked for")
    if max(len(group) for group in groups) < 2:
        return Interval.none("one group cannot be resampled")
    rng = generator(seed, "bootstrap")
    means = [group[rng.integers(0, len(group), (resamples, len(group)))].mean(axis=1) for group in groups]
    low, high = np.quantile(np.mean(means, axis=0), [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(low), float(high), "percentile")
