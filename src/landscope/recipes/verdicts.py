"""By what the claims of papers are judged: one level, one way to compare conditions, one to read a correlation.

A comparison of two conditions is shown where a one-sided rank-sum test has p ≤ 0.05 (of the same networks: a signed-rank test):
three seeds against three show something only where they do not overlap. A claim of several comparisons holds where all of them
are shown (no correction is needed to require all), does not hold where the opposite of all is shown, or of one after Benjamini
and Yekutieli, and cannot be told otherwise. A correlation has a direction where p ≤ 0.05 and its interval does not contain 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from landscope.analysis import Correlation, RankTest, benjamini_yekutieli, wilcoxon
from landscope.core.text import counted
from landscope.recipes.recipe import Verdict

__all__ = ["ALPHA", "RESAMPLES", "Comparison", "all_larger", "direction", "in_words", "judged"]

ALPHA = 0.05
RESAMPLES = 50_000
"""For intervals that decide about a claim: of few models, fewer would leave that to the seed."""


@dataclass(frozen=True)
class Comparison:
    """Whether the values of one condition are larger than those of another: rank tests both ways.

    >>> print(Comparison.of([3.0, 4.0, 5.0], [0.0, 1.0, 2.0]))
    p = 0.05 (n = 3 and 3; the opposite: p = 1)
    """

    up: RankTest
    down: RankTest

    @classmethod
    def of(cls, first: Sequence[float], second: Sequence[float]) -> Comparison:
        """The first against the second, of different networks."""
        up, down = (wilcoxon(list(first), list(second), way, paired=False) for way in ("greater", "less"))
        return cls(up, down)

    @classmethod
    def of_pairs(cls, first: Mapping[str, float], second: Mapping[str, float]) -> Comparison:
        """The first against the second, of the same networks by name.

        >>> print(Comparison.of_pairs({"a": 3.0, "b": 4.0, "c": 5.0}, {"c": 0.0, "b": 1.0, "a": 2.0}))
        p = 0.12 (n = 3 pairs; the opposite: p = 1)
        """
        up, down = (wilcoxon(dict(first), dict(second), way) for way in ("greater", "less"))
        return cls(up, down)

    def __str__(self) -> str:
        up, down = self.up, self.down
        if up.p_value is None or down.p_value is None:
            return up.reason
        n = counted(up.n, "pair") if up.test == "signed-rank" else f"{up.n} and {up.n_baseline}"
        return f"p = {up.p_value:.2g} (n = {n}; the opposite: p = {down.p_value:.2g})"


def all_larger(comparisons: Sequence[Comparison]) -> Verdict:
    """Of the claim that in every comparison the first is larger.

    >>> all_larger([Comparison.of([3.0, 4.0, 5.0], [0.0, 1.0, 2.0])])
    'holds'
    """
    ups, downs = [c.up.p_value for c in comparisons], [c.down.p_value for c in comparisons]
    # an exact p-value is a sum of floats that can pass 1 by a rounding error
    opposite = benjamini_yekutieli([None if p is None else min(1.0, p) for p in downs])
    if _all_shown(downs) or any(q is not None and q <= ALPHA for q in opposite):
        return "does not hold"
    return "holds" if _all_shown(ups) else "cannot be told"


def _all_shown(p_values: Sequence[float | None]) -> bool:
    return bool(p_values) and all(p is not None and p <= ALPHA for p in p_values)


def direction(found: Correlation, p: float | None) -> int:
    """The sign of a correlation with that p-value, perhaps adjusted; 0 where it is not shown."""
    if found.value is None or p is None or p > ALPHA:
        return 0
    if found.low is not None and found.high is not None and found.low <= 0 <= found.high:
        return 0
    return 1 if found.value > 0 else -1


def judged(found: Correlation, sign: int) -> Verdict:
    """Of the claim that a correlation has this sign."""
    seen = direction(found, found.p_value)
    return "cannot be told" if not seen else "holds" if seen == sign else "does not hold"


def in_words(found: Correlation) -> str:
    """A correlation; a partial one with what it would be on average without a link, which is not 0."""
    null = found.null_mean
    return f"{found}" if null is None else f"{found} (without a link it would be {null:.2f} on average)"
