"""Do two columns go together: Kendall's τ-b, Spearman's ρ or Pearson's r, with an interval and a p-value.

τ-b = (concordant − discordant pairs)/√(pairs untied in x · pairs untied in y): the chance that two models are ordered
alike, minus the chance that they are not. It is the papers' choice, it does not care about units or outliers, and its
distribution is known exactly. ρ is Pearson's r of midranks.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass

from landscope.analysis.bootstrap import IntervalMethod, bootstrap_interval
from landscope.analysis.coefficients import COEFFICIENTS, Method
from landscope.analysis.pairs import Labels, Numbers, codes, complete, names_of, number_column, settled, why_undefined
from landscope.analysis.significance import ALTERNATIVES, Alternative, significance
from landscope.core.errors import UnknownNameError

__all__ = ["Correlation", "correlation", "show_p"]


@dataclass(frozen=True)
class Correlation:
    """A coefficient with its uncertainty; where it is not defined, no value and the reason.

    `low` and `high` bound it with the stated confidence; `interval` says how they were found or why there are none.
    `dropped` counts models left out because a value was missing. `null_mean` is what the coefficient would be on average
    where nothing goes together, given only where that is not 0 (partial correlations).

    >>> Correlation.undefined("y is constant", n=4, method="kendall")
    Correlation(τ undefined: y is constant)
    """

    value: float | None
    p_value: float | None
    low: float | None
    high: float | None
    n: int
    method: Method
    p_method: str = "none"
    interval: str = "none"
    confidence: float = 0.95
    alternative: Alternative = "two-sided"
    dropped: int = 0
    null_mean: float | None = None
    status: str = "ok"
    reason: str = ""

    def __post_init__(self) -> None:
        for name in ("value", "p_value", "low", "high", "null_mean"):
            number = getattr(self, name)
            if number is not None and not math.isfinite(number):
                raise ValueError(f"{name} must be finite or None, got {number}")
        if self.value is None and not (self.status == "undefined" and self.reason):
            raise ValueError("a correlation without a value needs the status 'undefined' and a reason")

    @classmethod
    def undefined(cls, reason: str, *, n: int, method: Method, dropped: int = 0) -> Correlation:
        """No value, because of `reason`."""
        return cls(None, None, None, None, n, method, dropped=dropped, status="undefined", reason=reason)

    @property
    def symbol(self) -> str:
        """τ, ρ or r."""
        return COEFFICIENTS[self.method].symbol

    def to_dict(self) -> dict[str, object]:
        """Plain values only; what is not known is None."""
        return asdict(self)

    def __str__(self) -> str:
        if self.value is None:
            return f"{self.symbol} undefined: {self.reason}"
        bounds = "" if self.low is None or self.high is None else f" [{self.low:.2f}, {self.high:.2f}]"
        p = "" if self.p_value is None else f", {show_p(self.p_value)}"
        return f"{self.symbol} = {self.value:.3f}{bounds}{p}, n = {self.n}"

    def __repr__(self) -> str:
        return f"Correlation({self})"


def correlation(
    x: Numbers,
    y: Numbers,
    method: Method = "kendall",
    *,
    alternative: Alternative = "two-sided",
    within: Labels | None = None,
    strata: Labels | None = None,
    interval: IntervalMethod = "bca",
    confidence: float = 0.95,
    resamples: int | None = None,
    permutations: int = 9999,
    seed: int = 0,
) -> Correlation:
    """The correlation of x and y, paired by position.

    Args:
        x: one number per model.
        y: one number per model.
        method: "kendall", "spearman" or "pearson".
        alternative: what the p-value looks for: "two-sided", "greater" (than 0) or "less".
        within: labels; only models of the same label are compared with one another (ranked, centred), and permutations
            and resamples stay inside the labels. A pooled within-group correlation.
        strata: labels inside which models are resampled. The interval then tells what other runs of the same conditions
            would give, not other conditions, and is narrower; the value and the p-value do not change.
        interval: "bca" or "percentile".
        confidence: of the interval.
        resamples: bootstrap resamples; 0 for no interval, None for 10,000 of few models down to 2,000 of many.
        permutations: random permutations where a Monte Carlo p-value is needed.
        seed: of resamples and permutations.

    Cost: τ O(resamples·n²), ρ and r O(resamples·n).

    >>> correlation([1, 2, 3, 4, 5, 6], [1, 3, 2, 4, 6, 5])
    Correlation(τ = 0.733 [...], p = 0.056, n = 6)
    >>> correlation([1, 2, 3, 4], [7, 7, 7, 7])
    Correlation(τ undefined: y is constant (7 for all 4 models))
    """
    coefficient = COEFFICIENTS[method]
    if alternative not in ALTERNATIVES:
        raise UnknownNameError.among("alternative", alternative, ALTERNATIVES)
    names = names_of(x, y)
    columns = {name: number_column(column, name) for name, column in zip(names, (x, y), strict=True)}
    n = len(columns[names[0]])
    left, labels, dropped = complete(columns, (codes(within, n, "within"), codes(strata, n, "strata")))
    (a, b), (block, stratum) = settled(left, tuple(labels))
    reason = why_undefined(dict(zip(names, (a, b), strict=True)), coefficient, block)
    value = math.nan if reason else coefficient.of(a, b, block)
    if math.isnan(value):
        reason = reason or "the values differ by less than arithmetic can resolve"
        return Correlation.undefined(reason, n=len(a), method=method, dropped=dropped)
    bounds = bootstrap_interval(
        lambda counts: coefficient.weighted(counts, a, b, block),
        stratum if within is None else block,
        method=interval,
        confidence=confidence,
        resamples=resamples,
        seed=seed,
    )
    found = significance(a, b, block, method, alternative, permutations, seed)
    return Correlation(
        value=value,
        p_value=found.p_value,
        low=bounds.low,
        high=bounds.high,
        n=len(a),
        method=method,
        p_method=found.method,
        interval=bounds.method,
        confidence=confidence,
        alternative=alternative,
        dropped=dropped,
    )


def show_p(p: float) -> str:
    """A p-value to two digits.

    >>> show_p(0.0144), show_p(3e-7), show_p(0.5)
    ('p = 0.014', 'p < 0.0001', 'p = 0.5')
    """
    return f"p = {p:.2g}" if p >= 1e-4 else "p < 0.0001"
