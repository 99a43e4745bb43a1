"""One measure against one outcome: every result, with its certainty in plain words.

goes with     the adjusted p is at most α
weak at most  it is not, and the coefficient is shown to be smaller than one that would matter: two one-sided tests, adjusted too
undecided     neither; the sentence says how many units would show a coefficient that matters
undefined     a column does not vary, or too few units have both values
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from landscope.analysis.coefficients import as_kendall
from landscope.analysis.conditions import opposite
from landscope.analysis.correlation import Correlation, show_p
from landscope.analysis.granulated import Granulated
from landscope.analysis.power import POWER, models_needed
from landscope.core.errors import OperandError, UnknownNameError

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
    """All results about one measure and one outcome; None where one was not asked for.

    `correlation` is between conditions where there are several, and of models otherwise. `tests` is the size of the family within
    which p was adjusted; `within` and `partial` are adjusted among themselves, as is `weak_adjusted_p`, the p of a coefficient
    that is smaller than what would matter.
    """

    measure: str
    outcome: str
    correlation: Correlation
    family: str
    tests: int
    adjusted_p: float | None
    weak_adjusted_p: float | None = None
    within: Correlation | None = None
    within_adjusted_p: float | None = None
    partial: Correlation | None = None
    partial_adjusted_p: float | None = None
    granulated: Granulated | None = None

    def paradox(self, rules: Rules) -> bool:
        """Whether it is shown both between and inside conditions, with opposite signs."""
        return self.within is not None and opposite(
            self.correlation, self.adjusted_p, self.within, self.within_adjusted_p, rules.alpha
        )

    def verdict(self, rules: Rules) -> str:
        """From the adjusted p-values: "goes with", "weak at most", "undecided" or "undefined"."""
        if self.adjusted_p is None:
            return "undefined"
        if self.adjusted_p <= rules.alpha:
            return "goes with"
        weak = self.weak_adjusted_p is not None and self.weak_adjusted_p <= rules.alpha
        return "weak at most" if weak else "undecided"

    def sentence(self, rules: Rules, group: str = "", given: str = "") -> str:
        """The finding and its certainty in one sentence.

        >>> from landscope.analysis.correlation import correlation
        >>> found = correlation([1, 2, 3, 4, 5, 6], [1, 3, 2, 4, 6, 5])
        >>> Finding("sharpness", "gap", found, "all", 1, found.p_value).sentence(Rules())
        'Undecided whether sharpness goes with gap: τ = 0.73 (95% interval ...), p = 0.056, n = 6 models. About 41 would ...'
        """
        c, verdict = self.correlation, self.verdict(rules)
        if c.value is None:
            return f"{self.measure} and {self.outcome} have no correlation: {c.reason}." + self._asides(
                rules, group, given
            )
        numbers = _numbers(c) + (
            f", {self.adjusted_p:.2g} after adjusting for {self.tests} tests" if self.tests > 1 else ""
        )
        numbers += f", n = {c.units}"
        if verdict == "goes with":
            direction = "higher" if c.value > 0 else "lower"
            text = f"Higher {self.measure} goes with {direction} {self.outcome}: {numbers}."
        elif verdict == "weak at most":
            text = f"{self.measure} and {self.outcome} go together weakly at most, less than ±{rules.relevant:g}: {numbers}."
        else:
            text = f"Undecided whether {self.measure} goes with {self.outcome}: {numbers}.{self._needed(rules)}"
        return text + self._asides(rules, group, given)

    def _needed(self, rules: Rules) -> str:
        """How many units would show the planned effect, whatever was observed."""
        c = self.correlation
        needed = models_needed(as_kendall(rules.relevant, c.method), rules.level(self.tests))
        if needed is None or needed <= c.n:
            return ""
        return f" About {needed} would show a {c.symbol} of {rules.relevant:g} with a chance of {POWER:.0%}."

    def _asides(self, rules: Rules, group: str, given: str) -> str:
        text = ""
        if self.within is not None and self.within.value is not None:
            turned = ", the opposite sign: Simpson's paradox" if self.paradox(rules) else ""
            text += f" Inside {group} it is {_numbers(self.within)}{turned}."
        if self.partial is not None:
            adjusted = f", {self.partial_adjusted_p:.2g} adjusted" if self.partial_adjusted_p is not None else ""
            numbers = f": {self.partial.reason}" if self.partial.value is None else f" it is {_numbers(self.partial)}"
            text += f" Given {given}{numbers}{adjusted * (self.tests > 1)}."
        if self.granulated is not None and self.granulated.value is not None:
            text += f" With one axis changed at a time, {self.granulated}."
        if self.correlation.dropped:
            text += f" {self.correlation.dropped} models without a value were left out."
        return text

    def to_dict(self) -> dict[str, object]:
        """As plain values."""
        parts = {"within": self.within, "partial": self.partial, "granulated": self.granulated}
        return {
            "measure": self.measure,
            "outcome": self.outcome,
            "correlation": self.correlation.to_dict(),
            "family": self.family,
            "tests": self.tests,
            "adjusted_p": self.adjusted_p,
            "weak_adjusted_p": self.weak_adjusted_p,
            "within_adjusted_p": self.within_adjusted_p,
            "partial_adjusted_p": self.partial_adjusted_p,
        } | {name: None if part is None else part.to_dict() for name, part in parts.items()}


def _numbers(c: Correlation) -> str:
    bounds = "" if c.low is None or c.high is None else f" ({c.confidence:.0%} interval {c.low:.2f} to {c.high:.2f})"
    return f"{c.symbol} = {c.value:.2f}{bounds}, {show_p(c.p_value or 0.0)}"
