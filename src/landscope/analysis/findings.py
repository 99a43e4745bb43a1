"""One measure against one outcome: all that was found, and how sure one can be, in plain words.

goes with        the adjusted p is at most α
no evidence      it is not, the value is small, and the models were enough to show a coefficient worth having
cannot be told   it is not, and the models were too few (the sentence says how many would do)
undefined        a column does not vary, or too few models have both values
"""

from __future__ import annotations

from dataclasses import dataclass

from landscope.analysis.correlations import Correlation, show_p
from landscope.analysis.granulated import Granulated
from landscope.analysis.multiple_testing import Adjustment, harmonic
from landscope.analysis.power import as_kendall, chance_to_find, models_needed
from landscope.analysis.within_between import disagree

__all__ = ["Finding", "Rules"]

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
        """What p must not exceed to count as the only finding among so many tests.

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

        >>> from landscope.analysis.correlations import correlation
        >>> found = correlation([1, 2, 3, 4, 5, 6], [1, 3, 2, 4, 6, 5], resamples=0)
        >>> Finding("sharpness", "gap", found, "all", 1, found.p_value).sentence(Rules())
        'Whether sharpness goes with gap cannot be told from n = 6 models: τ = 0.73, p = 0.056. About 9 would be needed ...'
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
                f"Whether {self.measure} goes with {self.outcome} cannot be told from n = {c.n} models: {numbers}."
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
            text += f" Inside {group} the sign is the other one ({_numbers(self.within)}): Simpson's paradox."
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
