"""An effect with its error: one family of tests, from which the p-value, the interval and the equivalence test all follow.

For a true effect θ, `tails(θ)` are the chances of an estimate at least, and at most, as large as the one that was found. Then

    p(θ) = min(1, 2 · the smaller tail)          against θ = 0: the p-value
    interval = {θ : p(θ) > 1 − confidence}       the same test inverted: it leaves out 0 if and only if p(0) ≤ α

Two kinds. `Mean`: means, differences and log-ratios, by Student's t (Welch 1947). `Order`: Kendall's τ over n units; its
law without a link is exact or permuted (`null_laws`), and a true τ is tested on the scale of that law, (τ̂ − τ) · s(0)/s(τ), with
s the spread that the τ of normal columns has (Esscher 1924; ρ and r: on Fisher's scale). Against 0 the test is Kendall's own.

Both have a place on one scale, the concordance D in [−1, 1]: P(first larger) − P(second larger). For an order it is τ, for
two conditions D = 2Φ(d/√2) − 1 with d the difference in units of one run's spread, its interval from the noncentral t.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtr, ndtri, stdtr, stdtrit

from landscope.analysis.coefficients import COEFFICIENTS, Method, as_kendall
from landscope.analysis.null_laws import Inversions, NullLaw, Turned
from landscope.core.errors import OperandError

INVERTED = 1e-10
"""How exactly the end of an interval is found, on the scale of the effect."""


@dataclass(frozen=True)
class Concordance:
    """D with its interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Effect(ABC):
    """An estimate that can be tested against any true value; `n` units stand behind it."""

    value: float
    n: int

    @abstractmethod
    def tails(self, truth: float) -> tuple[float, float]:
        """The chances of an estimate at least and at most as large as this one, if that were the true value."""

    @abstractmethod
    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """All true values that the test does not reject."""

    @abstractmethod
    def differs_from(self, other: Effect) -> float:
        """The two-sided p of no difference between two independent effects, with the errors of both."""

    @abstractmethod
    def concordance(self, confidence: float = 0.95) -> Concordance:
        """Its place on the common scale."""

    @abstractmethod
    def __neg__(self) -> Effect:
        """The same, counted the other way round."""

    def p_value(self, truth: float = 0.0) -> float:
        """The two-sided p of the effect being `truth`: twice the smaller tail."""
        return min(1.0, 2 * min(self.tails(truth)))

    def equivalence_p(self, margin: float) -> float:
        """The p of "not smaller than ±margin", by two one-sided tests (Schuirmann 1987).

        At most α if and only if the interval of confidence 1 − 2α lies inside the margin.
        """
        return max(self.tails(-margin)[0], self.tails(margin)[1])


def _checked(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise OperandError(f"confidence must lie between 0 and 1, got {confidence}")
    return (1 - confidence) / 2


# Means.


@dataclass(frozen=True)
class Summary:
    """Mean, standard deviation and number of runs, ours or as a paper prints them."""

    mean: float
    spread: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        """From the values of runs.

        >>> Summary.of([1.0, 2.0, 3.0])
        Summary(mean=2.0, spread=1.0, n=3)
        """
        runs = np.asarray(values, dtype=np.float64)
        if not np.isfinite(runs).all():
            raise OperandError(
                f"a mean needs finite values, got {runs.tolist()}; leave out runs that diverged and say so"
            )
        return cls(float(runs.mean()), float(runs.std(ddof=1)) if len(runs) > 1 else math.nan, len(runs))

    @property
    def variance(self) -> float:
        """The variance of the mean: spread²/n."""
        return self.spread**2 / self.n

    def log(self) -> Summary:
        """Of the logarithms, to first order: all that a printed mean and spread allow."""
        if self.mean <= 0:
            raise OperandError(f"a logarithm needs a positive mean, got {self.mean}")
        return Summary(math.log(self.mean), self.spread / self.mean, self.n)


@dataclass(frozen=True)
class Mean(Effect):
    """A mean, a difference of means or a log-ratio: value ± stderr with `freedom` degrees of freedom (inf: the error is known).

    `spread` is the standard deviation of a single such value: of one run, or of one run less another. `groups` is 1 for single
    and paired samples, 2 for two groups of different runs, n of them each.
    """

    stderr: float
    freedom: float
    spread: float
    groups: int = 1

    def __post_init__(self) -> None:
        if not (self.stderr > 0 and self.freedom > 0 and self.spread > 0):
            raise OperandError(
                f"an effect needs runs that differ: at least two, not all equal; got {self.n} with a standard error of "
                f"{self.stderr}"
            )

    def tails(self, truth: float) -> tuple[float, float]:
        """The p of both sides by Student's t."""
        t = (self.value - truth) / self.stderr
        return float(stdtr(self.freedom, -t)), float(stdtr(self.freedom, t))

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """The value ± t · stderr."""
        half = -float(stdtrit(self.freedom, _checked(confidence))) * self.stderr
        return self.value - half, self.value + half

    def differs_from(self, other: Effect) -> float:
        """Welch's test of two means, each with its own error."""
        if not isinstance(other, Mean):
            raise OperandError("a mean cannot be compared with an order; state both in the same kind of number")
        return self.less(other).p_value()

    def less(self, other: Mean) -> Mean:
        """Their difference; freedom by Satterthwaite."""
        own, others = self.stderr**2, other.stderr**2
        weights = own**2 / self.freedom + others**2 / other.freedom
        freedom = (own + others) ** 2 / weights if weights else math.inf
        spread = math.hypot(self.spread, other.spread)
        return Mean(self.value - other.value, min(self.n, other.n), math.sqrt(own + others), freedom, spread, 2)

    def widened(self, stderr: float) -> Mean:
        """With a further error that all runs share and that is known, such as that of the rows they were measured on.

        >>> mean([1.0, 2.0, 3.0]).widened(0.0).stderr == mean([1.0, 2.0, 3.0]).stderr
        True
        """
        total = self.stderr**2 + stderr**2
        return replace(self, stderr=math.sqrt(total), freedom=self.freedom * (total / self.stderr**2) ** 2)

    def shifted(self, by: float) -> Mean:
        """Counted from somewhere else: `share.shifted(-0.5)` is positive above one half."""
        return replace(self, value=self.value + by)

    def times(self, factor: float) -> Mean:
        """In other units."""
        return replace(self, value=self.value * factor, stderr=self.stderr * factor, spread=self.spread * factor)

    def concordance(self, confidence: float = 0.95) -> Concordance:
        """D = 2Φ(value/spread) − 1; the interval is that of the noncentrality of t, with the same sign as the test.

        >>> found = difference([3.0, 4.0, 5.0], [1.0, 2.0, 3.0]).concordance()
        >>> round(found.value, 3), round(found.low, 3), round(found.high, 3)
        (0.843, -0.084, 0.996)
        """
        alpha, t = _checked(confidence), self.value / self.stderr
        ends = [_noncentrality(t, self.freedom, level) for level in (alpha, 1 - alpha)]
        value, low, high = (2 * float(ndtr(each * self.stderr / self.spread)) - 1 for each in (t, *ends))
        return Concordance(value, low, high)

    def __neg__(self) -> Mean:
        return replace(self, value=-self.value)


def _noncentrality(t: float, freedom: float, level: float) -> float:
    """δ for which P(T ≥ t) = level, with T noncentral t."""
    from scipy.optimize import brentq
    from scipy.stats import nct

    if math.isinf(freedom):
        return t + float(ndtri(level))
    reach = 10 * math.sqrt(1 + t * t / (2 * freedom))
    return float(brentq(lambda delta: nct.sf(t, freedom, delta) - level, t - reach, t + reach, xtol=1e-8))


def mean(values: Sequence[float]) -> Mean:
    """The mean of one value per run, tested by Student's t.

    >>> [round(end, 3) for end in mean([1.0, 2.0, 3.0]).interval()]
    [-0.484, 4.484]
    """
    of = Summary.of(values)
    return Mean(of.mean, of.n, math.sqrt(of.variance), of.n - 1, of.spread)


def paired(first: Sequence[float], second: Sequence[float]) -> Mean:
    """The mean of first − second, run by run: the same seeds or the same networks.

    >>> round(paired([3.0, 5.0, 4.0], [1.0, 2.0, 3.0]).p_value(), 4)
    0.0742
    """
    if len(first) != len(second):
        raise OperandError(f"pairs need equally many values on both sides, got {len(first)} and {len(second)}")
    return mean(np.subtract(first, second).tolist())


def difference(first: Sequence[float] | Summary, second: Sequence[float] | Summary) -> Mean:
    """The mean of the first less that of the second, of different runs: Welch's test.

    >>> round(difference([3.0, 4.0, 5.0], [1.0, 2.0, 3.0]).p_value(), 4)
    0.0705
    >>> difference(Summary(4.0, 1.0, 3), Summary(2.0, 1.0, 3)) == difference([3.0, 4.0, 5.0], [1.0, 2.0, 3.0])
    True
    """
    one, other = (each if isinstance(each, Summary) else Summary.of(each) for each in (first, second))
    if min(one.n, other.n) < 2:
        raise OperandError(f"a difference needs two runs on each side, got {one.n} and {other.n}")
    variance = one.variance + other.variance
    weights = one.variance**2 / (one.n - 1) + other.variance**2 / (other.n - 1)
    freedom = variance**2 / weights if weights else math.nan  # all runs are equal: refused below
    spread = math.hypot(one.spread, other.spread)
    return Mean(one.mean - other.mean, min(one.n, other.n), math.sqrt(variance), freedom, spread, 2)


def log_ratio(first: Sequence[float] | Summary, second: Sequence[float] | Summary, *, pairs: bool = False) -> Mean:
    """The logarithm of first/second: of geometric means for runs, to first order for printed means.

    "Leaves more than half" of paired runs is `log_ratio(after, before, pairs=True).shifted(-log(0.5))` above 0.

    >>> found = log_ratio([2.0, 4.0, 8.0], [1.0, 2.0, 4.0])
    >>> round(math.exp(found.value), 6)
    2.0
    """
    logs = [each.log() if isinstance(each, Summary) else _logs(each) for each in (first, second)]
    if pairs:
        if any(isinstance(each, Summary) for each in logs):
            raise OperandError("pairs need the runs themselves, not their summary")
        return paired(*logs)  # type: ignore[arg-type]
    return difference(*logs)


def _logs(values: Sequence[float]) -> list[float]:
    if min(values, default=0.0) <= 0:
        raise OperandError(f"a ratio needs positive values, got {list(values)}")
    return [math.log(value) for value in values]


# Orders.


@dataclass(frozen=True)
class Order(Effect):
    """Kendall's τ (or ρ, r) over n units, conditions or models, that are independent of each other.

    `law` is what it would be without a link; without one, that of n untied units. `size` is how many units are compared with each
    other where that is not all n: the mean size of a block.

    >>> found = Order(0.6, 15)
    >>> round(found.p_value(), 4), [round(end, 2) for end in found.interval()]
    (0.0013, [0.24, 0.77])
    """

    method: Method = "kendall"
    law: NullLaw | None = None
    size: float | None = None

    def __post_init__(self) -> None:
        if not -1 <= self.value <= 1 or self.n < 3:
            raise OperandError(
                f"a correlation lies between −1 and 1 and needs three units, got {self.value} of {self.n}"
            )

    def tails(self, truth: float) -> tuple[float, float]:
        """On the scale of the law under independence."""
        size = max(3.0, float(self.n) if self.size is None else self.size)
        return (self.law or Inversions(self.n)).tails(COEFFICIENTS[self.method].centred(self.value, truth, size))

    def interval(self, confidence: float = 0.95) -> tuple[float, float]:
        """By bisection; ends at ±1 where nothing is rejected."""
        alpha = _checked(confidence)
        low = _crossing(lambda tau: self.tails(tau)[0] - alpha, -1.0, self.value)
        high = -_crossing(lambda tau: self.tails(-tau)[1] - alpha, -1.0, -self.value)
        return low, high

    def differs_from(self, other: Effect) -> float:
        """By the normal law, with the spreads that both would have at their common value."""
        if not isinstance(other, Order) or other.method != self.method:
            raise OperandError("two effects are compared in the same kind of number; state both as that")
        spread = COEFFICIENTS[self.method].spread
        common = (self.n * self.value + other.n * other.value) / (self.n + other.n)
        wide = math.hypot(spread(common, self.n), spread(common, other.n))
        return float(2 * ndtr(-abs(self.value - other.value) / wide)) if wide else 1.0

    def concordance(self, confidence: float = 0.95) -> Concordance:
        """τ itself; of ρ and r the τ that normal columns would have."""
        return Concordance(*(as_kendall(each, self.method) for each in (self.value, *self.interval(confidence))))

    def __neg__(self) -> Order:
        turned = None if self.law is None else Turned(self.law)
        return replace(self, value=-self.value, law=turned)


def _crossing(rising: Callable[[float], float], low: float, high: float) -> float:
    """Where a rising function becomes positive between the two; the lower end where it is so all along."""
    from scipy.optimize import brentq

    if high <= low or rising(low) >= 0:
        return low
    return high if rising(high) <= 0 else float(brentq(rising, low, high, xtol=INVERTED))
