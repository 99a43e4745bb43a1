"""Wilcoxon's tests against SciPy, against all signs and all choices, and by hand."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from landscope.analysis import wilcoxon
from landscope.core.errors import OperandError, UnknownNameError

ALTERNATIVES = ["greater", "less", "two-sided"]


@pytest.mark.parametrize("alternative", ALTERNATIVES)
def test_exact_is_scipys_without_ties(alternative: str) -> None:
    for seed, n in enumerate((1, 3, 5, 10, 24, 50)):
        rng = np.random.default_rng(seed)
        a, b = rng.normal(0.3, 1, n), rng.normal(size=n)
        found = wilcoxon(a, b, alternative)
        truth = stats.wilcoxon(a, b, alternative=alternative, method="exact")
        assert found.p_method == "exact"
        assert found.p_value == pytest.approx(truth.pvalue, rel=1e-10)
        b = rng.normal(size=n + 3)
        found = wilcoxon(a, b, alternative, paired=False)
        mann = stats.mannwhitneyu(a, b, alternative=alternative, method="exact")
        assert found.p_value == pytest.approx(mann.pvalue, rel=1e-10)
        assert found.statistic == mann.statistic


def signed_rank_truth(d: np.ndarray, alternative: str, zeros: str) -> float:
    """All signs, one by one."""
    ranked = d if zeros == "pratt" else d[d != 0]
    ranks = stats.rankdata(np.abs(ranked))
    ranks, signs = ranks[ranked != 0], np.sign(ranked[ranked != 0])
    observed = ranks[signs > 0].sum()
    sums = [ranks[np.array(s, dtype=bool)].sum() for s in itertools.product((0, 1), repeat=len(ranks))]
    above, below = np.mean(np.array(sums) >= observed), np.mean(np.array(sums) <= observed)
    return float({"greater": above, "less": below, "two-sided": min(1, 2 * min(above, below))}[alternative])


@pytest.mark.parametrize("alternative", ALTERNATIVES)
@pytest.mark.parametrize("zeros", ["wilcox", "pratt"])
def test_ties_and_zeros_are_counted_exactly(alternative: str, zeros: str) -> None:
    for seed in range(10):
        d = np.random.default_rng(seed).integers(-2, 5, 9).astype(float)
        found = wilcoxon(d, np.zeros(9), alternative, zeros=zeros)
        assert found.p_value == pytest.approx(signed_rank_truth(d, alternative, zeros), abs=1e-12)
        assert found.zeros == (d == 0).sum()
        truth = stats.wilcoxon(d, alternative=alternative, zero_method=zeros, method="approx")
        if alternative != "two-sided":  # there SciPy gives the smaller of W⁺ and W⁻
            assert found.statistic == truth.statistic


@pytest.mark.parametrize("alternative", ALTERNATIVES)
def test_rank_sum_with_ties_is_all_choices(alternative: str) -> None:
    for seed in range(5):
        values = np.random.default_rng(seed).integers(0, 4, 9).astype(float)
        ranks = stats.rankdata(values)
        sums = np.array([ranks[list(c)].sum() for c in itertools.combinations(range(9), 4)])
        above, below = np.mean(sums >= ranks[:4].sum()), np.mean(sums <= ranks[:4].sum())
        truth = {"greater": above, "less": below, "two-sided": min(1, 2 * min(above, below))}[alternative]
        assert wilcoxon(values[:4], values[4:], alternative, paired=False).p_value == pytest.approx(truth, abs=1e-12)


@pytest.mark.parametrize("alternative", ALTERNATIVES)
def test_large_samples_are_asymptotic_as_scipys(alternative: str) -> None:
    rng = np.random.default_rng(0)
    a, b = np.round(rng.normal(0.1, 1, 800), 1), np.round(rng.normal(size=800), 1)
    found = wilcoxon(a, b, alternative, paired=False)
    assert found.p_method == "asymptotic"
    assert found.p_value == pytest.approx(stats.mannwhitneyu(a, b, alternative=alternative).pvalue, rel=1e-9)
    a, b = rng.normal(0.1, 1, (2, 800))
    found = wilcoxon(a, b, alternative)
    assert found.p_method == "asymptotic"
    truth = stats.wilcoxon(a, b, alternative=alternative, method="approx", correction=True).pvalue
    assert found.p_value == pytest.approx(truth, rel=1e-9)


def test_by_hand() -> None:
    # differences 3, −1, 4, 2: W⁺ = 3 + 4 + 2 = 9 of 10; P(W⁺ ≥ 9) = 2/16 ({2,3,4}, all)
    found = wilcoxon([4, 0, 5, 3], [1, 1, 1, 1])
    assert (found.statistic, found.p_value, found.smallest_p) == (9, 2 / 16, 1 / 16)
    assert found.effect == pytest.approx(0.8)
    # U counts pairs (2>1), (5>1), (5>3), (5>4): 4 of 6
    found = wilcoxon([2, 5], [1, 3, 4], paired=False)
    assert (found.statistic, found.effect) == (4, pytest.approx(1 / 3))
    assert wilcoxon([2, 2], [2, 1], paired=False).statistic == 3  # ties count half


def test_three_seeds_can_never_be_significant() -> None:
    found = wilcoxon([3, 4, 5], [1, 1, 1])
    assert found.p_value == found.smallest_p == 1 / 8
    assert found.effect == 1
    assert wilcoxon([3, 4, 5], [0, 1, 2], paired=False).smallest_p == 1 / 20
    assert wilcoxon([1, 1, 1], [3, 4, 5], "less").p_value == 1 / 8


def test_pairs_are_matched_by_key() -> None:
    sample, baseline = {17: 3.0, 43: 5.0, 91: 4.0}, {91: 1.0, 17: 2.5, 5: 0.0, 43: 4.0}
    found = wilcoxon(sample, baseline)
    assert found == wilcoxon(pd.Series(sample), pd.Series(baseline))
    assert (found.n, found.dropped, found.effect) == (3, 1, 1)
    with pytest.raises(OperandError, match="no key is in both"):
        wilcoxon({1: 1.0}, {2: 1.0})
    with pytest.raises(OperandError, match="unique"):
        wilcoxon(pd.Series([1.0, 2], index=[1, 1]), pd.Series([1.0, 2]))
    with pytest.raises(OperandError, match="paired=False"):
        wilcoxon([1, 2], [1, 2, 3])


def test_missing_infinite_and_equal() -> None:
    found = wilcoxon([1, None, 3], [0, 1, float("nan")])
    assert (found.n, found.dropped) == (1, 2)
    equal = wilcoxon([1, 2], [1, 2])
    assert equal.status == "undefined"
    assert equal.reason == "all 2 pairs are equal"
    assert equal.p_value is None
    assert wilcoxon([], []).reason == "there are no pairs"
    assert "at least one" in wilcoxon([], [1.0], paired=False).reason
    diverged = wilcoxon([float("inf"), float("inf"), 3], [1, float("inf"), 2])
    assert (diverged.zeros, diverged.statistic) == (1, 3)
    assert wilcoxon([1, 1], [1, 1], paired=False).p_value == 1
    for result in (found, equal, diverged):
        json.dumps(result.to_dict(), allow_nan=False)


def test_wrong_arguments() -> None:
    with pytest.raises(UnknownNameError, match="greater"):
        wilcoxon([1], [2], "larger")  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="pratt"):
        wilcoxon([1], [2], zeros="prat")  # type: ignore[arg-type]


@pytest.mark.parametrize("n", [80, 98, 100])
def test_no_p_value_is_above_one(n: int) -> None:
    rng = np.random.default_rng(n)
    sample = rng.normal(size=n)
    assert wilcoxon(sample, sample + rng.uniform(0.1, 1, n), "greater").p_value <= 1.0
