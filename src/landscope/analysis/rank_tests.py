"""Whether a condition is better than the baseline: Wilcoxon's tests, with an effect size and the smallest p so few runs allow.

Paired (same seeds), signed-rank: the |differences| are ranked, W⁺ sums the ranks of the positive ones; under no effect every
sign is as likely as the other. Effect: matched-pairs rank-biserial r = (W⁺ − W⁻)/(W⁺ + W⁻) (Kerby 2014).

Unpaired, rank-sum (Mann and Whitney 1947): U counts the pairs (run, baseline run) in which the run is larger, ties half; under
no effect every choice of ranks is as likely. Effect: r = 2U/(n m) − 1.

Both null distributions are counted exactly, ties and zeros included, by multiplying out Π(1 + z^rank) over doubled midranks;
the normal law with tie and continuity correction only where that would take more than 2·10⁸ additions. `smallest_p` is
what the best possible outcome would give: 1/8 for three seeds, so three seeds never show anything at the 5 % level.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import ndtr

from landscope.analysis.coefficients import Floats
from landscope.analysis.inputs import Numbers, number_column
from landscope.core.errors import OperandError, UnknownNameError

Alternative = Literal["two-sided", "greater", "less"]
ALTERNATIVES = ("two-sided", "greater", "less")


def combine_tails(above: float, below: float, alternative: Alternative) -> float:
    """The p-value from the chances of at least and at most what was observed.

    >>> combine_tails(0.01, 0.995, "two-sided"), combine_tails(0.01, 0.995, "less")
    (0.02, 0.995)
    """
    if alternative not in ALTERNATIVES:
        raise UnknownNameError.among("alternative", alternative, ALTERNATIVES)
    return {"two-sided": min(1.0, 2 * min(above, below)), "greater": above, "less": below}[alternative]


# Exact distributions of rank statistics under no effect, ties included.
#
# Midranks are multiples of ½, so doubled ranks are integers and a distribution is an array indexed by twice the statistic.
#
#     signed-rank   Π_i (1 + z^{r_i})/2: every rank is in the sum or not
#     rank-sum      the terms of Π_i (1 + y z^{r_i}) with yⁿ: every choice of n ranks, equally likely


def signed_rank_law(doubled: NDArray[np.int64]) -> Floats:
    """P(2W⁺ = s) for s = 0 … Σ doubled ranks. O(n·Σ) additions.

    >>> signed_rank_law(np.array([2, 4])).tolist()  # ranks 1 and 2: W⁺ is 0, 1, 2 or 3
    [0.25, 0.0, 0.25, 0.0, 0.25, 0.0, 0.25]
    """
    law = np.zeros(int(doubled.sum()) + 1)
    law[0] = 1.0
    for rank in doubled:
        law[rank:] += law[:-rank].copy()
        law /= 2
    return law


def rank_sum_law(doubled: NDArray[np.int64], size: int) -> Floats:
    """P(twice the sum of `size` of the ranks = s). O(size·n·Σ) additions.

    >>> np.flatnonzero(rank_sum_law(np.array([2, 4, 6]), 2)).tolist()  # 1+2, 1+3, 2+3
    [6, 8, 10]
    """
    ways = np.zeros((size + 1, int(doubled.sum()) + 1))
    ways[0, 0] = 1.0
    for rank in doubled:
        ways[1:, rank:] += ways[:-1, :-rank].copy()
    return np.asarray(ways[size] / ways[size].sum())


def p_of_law(law: Floats, at: int, alternative: Alternative) -> float:
    """The p-value of an outcome `at`.

    >>> p_of_law(np.array([0.25, 0.5, 0.25]), 2, "two-sided")
    0.5
    """
    # sums of many shares may come out a rounding above 1
    return min(1.0, combine_tails(float(law[at:].sum()), float(law[: at + 1].sum()), alternative))


def normal_p(statistic: float, mean: float, spread: float, alternative: Alternative) -> float:
    """The same by the normal law, with the correction for continuity.

    >>> round(normal_p(10.0, 5.0, 2.0, "greater"), 4)
    0.0122
    """
    if spread == 0:
        return 1.0
    z = (statistic - mean) / spread
    half = 0.5 / spread
    return combine_tails(float(ndtr(half - z)), float(ndtr(z + half)), alternative)


Keyed = Mapping[int, float] | Mapping[str, float]
WORK_LIMIT = 2e8


@dataclass(frozen=True)
class RankTest:
    """A rank test of a sample against a baseline; where it has no p-value, `reason` says why.

    `n` runs were compared (pairs, or runs of the sample), `n_baseline` runs of the baseline; `zeros` pairs were equal.
    """

    statistic: float | None
    p_value: float | None
    effect: float | None
    n: int
    n_baseline: int
    test: Literal["signed-rank", "rank-sum"]
    alternative: Alternative
    p_method: str = "none"
    smallest_p: float | None = None
    zeros: int = 0
    dropped: int = 0
    status: str = "ok"
    reason: str = ""

    def to_dict(self) -> dict[str, object]:
        """As plain values."""
        return asdict(self)


def wilcoxon(
    sample: Numbers | Keyed,
    baseline: Numbers | Keyed,
    alternative: Alternative = "greater",
    *,
    paired: bool = True,
    zeros: Literal["wilcox", "pratt"] = "wilcox",
) -> RankTest:
    """Wilcoxon's test of `sample` against `baseline`; "greater" asks whether the sample is larger.

    Args:
        sample: values of the condition. Paired runs are matched by key where both are mappings {seed: value} or pandas
            series (by index), else by position.
        baseline: values of the baseline.
        alternative: "greater", "less" or "two-sided".
        paired: signed-rank for runs that share a seed; False for the rank-sum test of two independent samples.
        zeros: equal pairs are dropped before ranking ("wilcox") or after it ("pratt").

    >>> wilcoxon([5, 7, 9, 4, 8], [4, 5, 6, 8, 3]).p_value  # differences 1, 2, 3, −4, 5: W⁺ = 11, 7 of the 32 signs reach it
    0.21875
    >>> found = wilcoxon({17: 0.93, 43: 0.92, 91: 0.94}, {91: 0.90, 43: 0.91, 17: 0.90})
    >>> found.p_value, found.effect, found.smallest_p
    (0.125, 1.0, 0.125)
    >>> wilcoxon([3, 4, 5], [1, 2], paired=False).p_value
    0.1
    """
    if alternative not in ALTERNATIVES:
        raise UnknownNameError.among("alternative", alternative, ALTERNATIVES)
    if zeros not in ("wilcox", "pratt"):
        raise UnknownNameError.among("treatment of zeros", zeros, ("wilcox", "pratt"))
    if paired:
        a, b, unmatched = _matched(sample, baseline)
        known = ~(np.isnan(a) | np.isnan(b))
        return _signed_rank(a[known], b[known], alternative, zeros, int(np.count_nonzero(~known)) + unmatched)
    a, b = (number_column(_values(v), name) for v, name in ((sample, "sample"), (baseline, "baseline")))
    missing = int(np.isnan(a).sum() + np.isnan(b).sum())
    return _rank_sum(a[~np.isnan(a)], b[~np.isnan(b)], alternative, missing)


def _values(values: Numbers | Keyed) -> Numbers:
    return list(values.values()) if isinstance(values, Mapping) else values


def _matched(sample: Numbers | Keyed, baseline: Numbers | Keyed) -> tuple[Floats, Floats, int]:
    """Both columns in the same order, and how many runs have no partner."""
    if isinstance(sample, Mapping | pd.Series) and isinstance(baseline, Mapping | pd.Series):
        left, right = pd.Series(sample), pd.Series(baseline)
        for name, keyed in (("sample", left), ("baseline", right)):
            if not keyed.index.is_unique:
                raise OperandError(f"the keys of {name} must be unique to pair runs by them, got {list(keyed.index)}")
        common = [key for key in left.index if key in right.index]
        if not common:
            raise OperandError(
                f"runs are paired by key, and no key is in both: {list(left.index)[:5]} and {list(right.index)[:5]}. "
                "Index both by seed, or pass paired=False"
            )
        pair = (number_column(left[common], "sample"), number_column(right[common], "baseline"))
        return *pair, len(left) + len(right) - 2 * len(common)
    a, b = number_column(_values(sample), "sample"), number_column(_values(baseline), "baseline")
    if len(a) != len(b):
        raise OperandError(
            f"paired samples must be of the same length, got {len(a)} and {len(b)}; or pass paired=False"
        )
    return a, b, 0


def _signed_rank(a: Floats, b: Floats, alternative: Alternative, zeros: str, dropped: int) -> RankTest:
    from scipy import stats  # takes a second to import

    same = a == b  # also where both are infinite: two diverged runs
    difference = np.where(same, 0.0, a - np.where(same, 0.0, b))
    n, equal = len(a), int(np.count_nonzero(same))
    result = RankTest(None, None, None, n, n, "signed-rank", alternative, zeros=equal, dropped=dropped)
    if n == equal:
        reason = f"all {n} pairs are equal" if n else "there are no pairs"
        return replace(result, status="undefined", reason=reason)
    ranked = difference if zeros == "pratt" else difference[~same]
    ranks = stats.rankdata(np.abs(ranked))[ranked != 0]
    positive, total = float(ranks[ranked[ranked != 0] > 0].sum()), float(ranks.sum())
    result = replace(result, statistic=positive, effect=2 * positive / total - 1)
    doubled = np.rint(2 * ranks).astype(np.int64)
    if len(doubled) * doubled.sum() > WORK_LIMIT:
        p_value = normal_p(positive, total / 2, math.sqrt(float(ranks @ ranks)) / 2, alternative)
        return replace(result, p_value=p_value, p_method="asymptotic")
    return _exact(result, signed_rank_law(doubled), round(2 * positive))


def _rank_sum(a: Floats, b: Floats, alternative: Alternative, dropped: int) -> RankTest:
    from scipy import stats  # takes a second to import

    n, m = len(a), len(b)
    result = RankTest(None, None, None, n, m, "rank-sum", alternative, dropped=dropped)
    if not n or not m:
        reason = f"{n} runs against {m} of the baseline: each side needs at least one"
        return replace(result, status="undefined", reason=reason)
    ranks = stats.rankdata(np.concatenate([a, b]))
    larger = float(ranks[:n].sum()) - n * (n + 1) / 2
    result = replace(result, statistic=larger, effect=2 * larger / (n * m) - 1)
    doubled = np.rint(2 * ranks).astype(np.int64)
    if n * (n + m) * doubled.sum() > WORK_LIMIT:
        spread = math.sqrt(n * m * float(np.var(ranks, ddof=1)) / (n + m))
        return replace(result, p_value=normal_p(larger, n * m / 2, spread, alternative), p_method="asymptotic")
    return _exact(result, rank_sum_law(doubled, n), round(2 * ranks[:n].sum()))


def _exact(result: RankTest, law: Floats, at: int) -> RankTest:
    possible = np.flatnonzero(law)
    best = int(possible[0] if result.alternative == "less" else possible[-1])
    p_value, smallest = (p_of_law(law, outcome, result.alternative) for outcome in (at, best))
    return replace(result, p_value=p_value, p_method="exact", smallest_p=smallest)
