"""One measure against one outcome: all that was found, and how sure one can be, in plain words.

goes with        the adjusted p is at most α
no evidence      it is not, the value is small, and the models were enough to show a coefficient worth having
cannot be told   it is not, and the models were too few (the sentence says how many would do)
undefined        a column does not vary, or too few models have both values
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtr

from landscope.analysis.coefficients import EXACT_LIMIT, Method, smallest_significant
from landscope.analysis.correlation import Correlation, show_p
from landscope.analysis.groups import Granulated, disagree
from landscope.core.errors import OperandError, UnknownNameError

__all__ = [
    "Adjustment",
    "Finding",
    "Rules",
    "adjust",
    "as_kendall",
    "benjamini_hochberg",
    "benjamini_yekutieli",
    "chance_to_find",
    "harmonic",
    "models_needed",
    "smallest_significant",
]


# How many models are needed, and what a few can show.
#
# With n models τ is significant (two-sided, level α) from c_n = `smallest_significant(n)` on: exact to 150 models, then
# z_{1−α/2} √(2(2n+5)/(9n(n−1))), Kendall's null variance. Where the true coefficient is τ, the observed one scatters around
# it; for normal columns with correlation r = sin(πτ/2) its variance is (Esscher 1924)
#
#     σ²(τ, n) = 2/(n(n−1)) · (1 − τ² + 2(n−2)(1/9 − (2/π · asin(r/2))²))
#
# which is Kendall's null variance at τ = 0. The chance to find it is Φ((|τ| − c)/σ) + Φ((−|τ| − c)/σ) with
# c = c_n − 2/(n(n−1)), half a step of the values that τ can take. Simulated, it is right to 0.02 from
# 10 models on and to 0.05 below.


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


# Many tests at once: p-values adjusted so that few of the findings are false.
#
# Sorted p_(1) ≤ … ≤ p_(m) of one family become
#
#     q_(i) = min_{j ≥ i} min(1, c · m/j · p_(j))     with c = 1 (Benjamini and Hochberg 1995: independent or positively
#     dependent)
#                                                     or c = Σ_{k ≤ m} 1/k (Benjamini and Yekutieli 2001: any dependence)
#
# Findings with q ≤ α are false in at most the share α of cases, on average. Measures of one set of models depend on each
# other in every way, so Benjamini–Yekutieli is the default here, as in the papers.


Adjustment = Literal["benjamini_yekutieli", "benjamini_hochberg"]
PValues = Sequence[float | None]


def benjamini_yekutieli(p_values: PValues, families: Sequence[Hashable] | None = None) -> list[float | None]:
    """Adjusted p-values under any dependence, family by family.

    >>> [round(q, 4) for q in benjamini_yekutieli([0.01, 0.02, 0.03])]  # c = 1 + 1/2 + 1/3
    [0.055, 0.055, 0.055]
    >>> benjamini_yekutieli([0.01, None, 0.01], families=["safety", "safety", "sharpness"])
    [0.01, None, 0.01]
    """
    return adjust(p_values, "benjamini_yekutieli", families)


def benjamini_hochberg(p_values: PValues, families: Sequence[Hashable] | None = None) -> list[float | None]:
    """Adjusted p-values for independent or positively dependent tests, family by family.

    >>> [round(q, 4) for q in benjamini_hochberg([0.01, 0.04, 0.03])]
    [0.03, 0.04, 0.04]
    """
    return adjust(p_values, "benjamini_hochberg", families)


def adjust(
    p_values: PValues,
    method: Adjustment = "benjamini_yekutieli",
    families: Sequence[Hashable] | None = None,
) -> list[float | None]:
    """Adjusted p-values in the order given; a test without a p-value (None) has none and does not count.

    >>> adjust([0.2], "benjamini_hochberg")
    [0.2]
    """
    if method not in ("benjamini_yekutieli", "benjamini_hochberg"):
        raise UnknownNameError.among("adjustment", method, ("benjamini_yekutieli", "benjamini_hochberg"))
    labels = list(families) if families is not None else [None] * len(p_values)
    if len(labels) != len(p_values):
        raise OperandError(f"families must name one family for each of the {len(p_values)} p-values, got {len(labels)}")
    for p in p_values:
        if p is not None and not 0 <= p <= 1:
            raise OperandError(f"p-values lie between 0 and 1 (None where a test has none), got {p}")
    from scipy.stats import false_discovery_control  # takes a second to import

    adjusted: list[float | None] = [None] * len(p_values)
    for family in set(labels):
        raw = {i: p for i, p in enumerate(p_values) if labels[i] == family and p is not None}
        found = false_discovery_control([*raw.values()], method="by" if method == "benjamini_yekutieli" else "bh")
        for place, q in zip(raw, found, strict=True):
            adjusted[place] = float(q)
    return adjusted


def harmonic(m: int) -> float:
    """Σ_{k ≤ m} 1/k, the price of not knowing how m tests depend on each other.

    >>> round(harmonic(3), 4)
    1.8333
    """
    return float((1 / np.arange(1, m + 1)).sum())


POWER = 0.8
SMALL = 0.1
"""To show a τ below this would take hundreds of models: the sentence then speaks of a relevant one instead."""


@dataclass(frozen=True)
class Rules:
    """When a correlation counts: the level, the adjustment, and the smallest coefficient that would matter."""

    alpha: float = 0.05
    adjustment: Adjustment = "benjamini_yekutieli"
    relevant: float = 0.3

    def level(self, tests: int) -> float:
        """What p must not exceed to count as the only finding among this many tests.

        >>> round(Rules().level(1), 4), round(Rules().level(3), 4)
        (0.05, 0.0091)
        """
        scale = harmonic(tests) if self.adjustment == "benjamini_yekutieli" else 1.0
        return self.alpha / (tests * scale)


@dataclass(frozen=True)
class Finding:
    """Everything about one measure and one outcome; what was not asked for is None.

    `tests` is the size of the family within which p was adjusted.
    """

    measure: str
    outcome: str
    correlation: Correlation
    family: str
    tests: int
    adjusted_p: float | None
    within: Correlation | None = None
    partial: Correlation | None = None
    partial_adjusted_p: float | None = None
    granulated: Granulated | None = None

    @property
    def paradox(self) -> bool:
        """Whether the sign inside groups is not the sign overall."""
        return self.within is not None and disagree(self.correlation, self.within)

    def verdict(self, rules: Rules) -> str:
        """Which of the four it is."""
        value = self.correlation.value
        if value is None or self.adjusted_p is None:
            return "undefined"
        if self.adjusted_p <= rules.alpha:
            return "goes with"
        size = as_kendall(rules.relevant, self.correlation.method)
        enough = chance_to_find(size, self.correlation.n, rules.level(self.tests)) >= POWER
        return "no evidence" if enough and abs(value) < rules.relevant else "cannot be told"

    def sentence(self, rules: Rules, group: str = "", given: str = "") -> str:
        """How sure one can be, in words.

        >>> from landscope.analysis.correlation import correlation
        >>> found = correlation([1, 2, 3, 4, 5, 6], [1, 3, 2, 4, 6, 5], resamples=0)
        >>> Finding("sharpness", "gap", found, "all", 1, found.p_value).sentence(Rules())
        'Too few models (n = 6) to show whether sharpness goes with gap: τ = 0.73, p = 0.056. About 9 would be needed ...'
        """
        c, verdict = self.correlation, self.verdict(rules)
        if c.value is None:
            return f"{self.measure} and {self.outcome} have no correlation: {c.reason}."
        numbers = _numbers(c) + (
            f", {self.adjusted_p:.2g} after adjusting for {self.tests} tests" if self.tests > 1 else ""
        )
        if verdict == "goes with":
            direction = "higher" if c.value > 0 else "lower"
            text = f"Higher {self.measure} goes with {direction} {self.outcome}: {numbers}, n = {c.n} models."
        elif verdict == "no evidence":
            text = (
                f"No evidence that {self.measure} goes with {self.outcome}: {numbers}; n = {c.n} models would show "
                f"{c.symbol} = ±{rules.relevant:g} with a chance of at least {POWER:.0%}."
            )
        else:
            text = (
                f"Too few models (n = {c.n}) to show whether {self.measure} goes with {self.outcome}: {numbers}."
                f"{self._needed(rules)}"
            )
        return text + self._asides(group, given)

    def _needed(self, rules: Rules) -> str:
        c = self.correlation
        own = abs(as_kendall(c.value or 0.0, c.method))
        size = own if own >= SMALL else as_kendall(rules.relevant, c.method)
        needed = models_needed(min(size, 1.0), rules.level(self.tests), POWER)
        if needed is None or needed <= c.n:
            return ""
        shown = "of this size" if own >= SMALL else f"of {rules.relevant:g}"
        return f" About {needed} would be needed to show a {c.symbol} {shown}."

    def _asides(self, group: str, given: str) -> str:
        text = ""
        if self.paradox and self.within is not None:
            text += f" Inside {group} the sign is reversed ({_numbers(self.within)}): Simpson's paradox."
        if self.partial is not None:
            adjusted = f", {self.partial_adjusted_p:.2g} adjusted" if self.partial_adjusted_p is not None else ""
            numbers = f": {self.partial.reason}" if self.partial.value is None else f" it is {_numbers(self.partial)}"
            shown = numbers + adjusted * (self.tests > 1)
            null = self.partial.null_mean
            aside = "" if null is None else f" (without a link it would be {null:.2f} on average)"
            text += f" Given {given}{shown}{aside}."
        if self.granulated is not None and self.granulated.value is not None:
            text += f" With one axis changed at a time, Ψ = {self.granulated.value:.2f}."
        if self.correlation.dropped:
            text += f" {self.correlation.dropped} models without a value were left out."
        return text

    def to_dict(self) -> dict[str, object]:
        """Plain values only."""
        parts = {"within": self.within, "partial": self.partial, "granulated": self.granulated}
        return {
            "measure": self.measure,
            "outcome": self.outcome,
            "correlation": self.correlation.to_dict(),
            "family": self.family,
            "tests": self.tests,
            "adjusted_p": self.adjusted_p,
            "partial_adjusted_p": self.partial_adjusted_p,
            "paradox": self.paradox,
        } | {name: None if part is None else part.to_dict() for name, part in parts.items()}


def _numbers(c: Correlation) -> str:
    bounds = "" if c.low is None or c.high is None else f" ({c.confidence:.0%} interval {c.low:.2f} to {c.high:.2f})"
    return f"{c.symbol} = {c.value:.2f}{bounds}, {show_p(c.p_value or 0.0)}"
