"""`correlation`: values, p-values and intervals against SciPy, enumeration, hand-made cases and simulation."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from scipy.special import ndtr

from landscope.analysis import Correlation, correlation
from landscope.analysis.coefficients import COEFFICIENTS, at_most, kendall_null, null_deviation
from landscope.analysis.inputs import random_permutations
from landscope.analysis.null_laws import _kendall_deviation, _moment_deviation
from landscope.core.errors import OperandError, UnknownNameError

SCIPY = {"kendall": stats.kendalltau, "spearman": stats.spearmanr, "pearson": stats.pearsonr}
METHODS = list(SCIPY)


def sample(seed: int, n: int, *, tied: bool = False) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    y = 0.4 * x + rng.normal(size=n)
    return (np.round(2 * x), np.round(y)) if tied else (x, y)


# Values


@pytest.mark.parametrize("method", METHODS)
def test_values_are_scipys_on_tied_and_untied_data(method: str) -> None:
    for seed in range(40):
        x, y = sample(seed, 4 + 5 * seed, tied=bool(seed % 2))
        found = correlation(x, y, method, permutations=1)
        if found.value is None:
            assert len(set(x)) == 1 or len(set(y)) == 1
        else:
            assert found.value == pytest.approx(SCIPY[method](x, y).statistic, abs=1e-13)


def test_by_hand() -> None:
    # of 10 pairs, (2, 3) and (4, 5) are discordant
    assert correlation([1, 2, 3, 4, 5], [1, 3, 2, 5, 4]).value == pytest.approx(0.6)
    # τ-b: 5 pairs, 1 tied in x: 4 concordant of 5·6 under the root … x = (1, 1, 2, 3), y = (1, 2, 3, 4)
    assert correlation([1, 1, 2, 3], [1, 2, 3, 4]).value == pytest.approx(5 / math.sqrt(5 * 6))
    # ρ = 1 − 6 Σ d²/(n(n² − 1)) with d = 0, 1, −1, 1, −1
    assert correlation([1, 2, 3, 4, 5], [1, 3, 2, 5, 4], "spearman").value == pytest.approx(1 - 6 * 4 / 120)
    assert correlation([0, 1, 2], [0, 1, 5], "pearson").value == pytest.approx(5 / math.sqrt(2 * 14))


@pytest.mark.parametrize(("tau", "p"), [(-0.311, 0.0014), (-0.180, 0.0645), (-0.185, 0.0576)])
def test_p_of_fifty_models_as_published(tau: float, p: float) -> None:
    """Fifty models with the published τ have the published p-values, which are the normal law's; the exact are close."""
    balance = 2 * round((abs(tau) * 1225 - 1) / 2) + 1  # concordant less discordant of 1,225 pairs: an odd number
    assert round(balance / 1225, 3) == abs(tau)
    assert 2 * ndtr(-balance / 1225 / null_deviation(50)) == pytest.approx(p, abs=5e-5)
    assert 2 * at_most((1225 - balance) // 2, 50) == pytest.approx(p, rel=0.1)


# p-values


def test_exact_kendall_is_scipys() -> None:
    for seed, n in enumerate((3, 4, 5, 8, 13, 20, 33, 60, 100)):
        x, y = sample(seed, n)
        found = correlation(x, y)
        assert found.p_method == "exact"
        assert found.p_value == pytest.approx(stats.kendalltau(x, y, method="exact").pvalue, rel=1e-9)


def test_inversions_are_counted_right() -> None:
    for n in range(2, 8):
        counted = np.zeros(n * (n - 1) // 2 + 1)
        for order in itertools.permutations(range(n)):
            counted[sum(a > b for a, b in itertools.combinations(order, 2))] += 1
        assert kendall_null(n) * math.factorial(n) == pytest.approx(counted, rel=1e-12)
    law = kendall_null(150)
    assert law.sum() == pytest.approx(1, rel=1e-12)
    assert law[0] == pytest.approx(1 / math.factorial(150), rel=1e-9)
    assert law == pytest.approx(law[::-1])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("tied", [False, True])
def test_enumeration_is_all_orders(method: str, tied: bool) -> None:
    for seed in range(3):
        x, y = sample(seed, 5, tied=tied)
        if len(set(x)) == 1 or len(set(y)) == 1:
            continue
        found = correlation(x, y, method)
        null = np.array([SCIPY[method](x, np.array(p)).statistic for p in itertools.permutations(y)])
        observed = SCIPY[method](x, y).statistic
        above, below = np.mean(null >= observed - 1e-10), np.mean(null <= observed + 1e-10)
        assert found.p_value == pytest.approx(min(1, 2 * min(above, below)), abs=1e-12)
        assert found.p_method == ("exact" if method == "kendall" and len({*x}) == len({*y}) == 5 else "enumeration")


@pytest.mark.parametrize("method", ["kendall", "spearman", "pearson"])
def test_monte_carlo_is_close_to_scipys_permutation_test(method: str) -> None:
    x, y = sample(5, 20, tied=method == "kendall")
    found = correlation(x, y, method, permutations=4999)
    truth = stats.permutation_test(
        (y,),
        lambda y: SCIPY[method](x, y).statistic,
        permutation_type="pairings",
        n_resamples=1999,
        vectorized=False,
        rng=np.random.default_rng(0),
    ).pvalue
    assert found.p_method == "Monte Carlo, 4999 permutations"
    assert found.p_value is not None
    # two binomial shares, doubled tails
    assert abs(found.p_value - truth) < 5 * 2 * math.sqrt(truth / 2 * (1 / 4999 + 1 / 1999))


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("grouped", [False, True])
def test_a_correlation_has_one_p_in_any_order(method: str, grouped: bool) -> None:
    rng = np.random.default_rng(5)
    x, order = rng.normal(size=16), rng.permutation(16)
    y = np.round(0.3 * x + rng.normal(size=16), 1)
    within = np.repeat(["b", "a"], 8) if grouped else np.full(16, "a")
    found = correlation(x, y, method, within=within, permutations=499)
    assert found.p_method.startswith("Monte Carlo")
    backwards = np.arange(16)[::-1]  # the other block first
    for a, b, places in (
        (y, x, np.arange(16)),
        *((*pair, each) for each in (order, backwards) for pair in ((x, y), (y, x))),
    ):
        again = correlation(a[places], b[places], method, within=within[places], permutations=499)
        assert again.p_value == found.p_value


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("grouped", [False, True])
def test_a_correlation_has_one_interval_in_any_order(method: str, grouped: bool) -> None:
    rng = np.random.default_rng(6)
    x = rng.normal(size=15)
    y, names = x + rng.normal(size=15), np.repeat(["c", "a", "b"], 5)
    found = []
    for order in (np.arange(15), np.arange(15)[::-1], rng.permutation(15)):
        found.append(correlation(x[order], y[order], method, within=names[order] if grouped else None))
    assert len({(each.low, each.high) for each in found}) == 1
    assert len({each.value for each in found}) == 1


def test_monte_carlo_is_never_zero() -> None:
    x = np.arange(20.0)
    assert correlation(x, x, "spearman", permutations=99).p_value == pytest.approx(2 / 100)


@pytest.mark.parametrize("method", METHODS)
def test_large_samples_are_asymptotic_as_scipys(method: str) -> None:
    x, y = sample(7, 200, tied=True)
    found = correlation(x, y, method)
    assert found.p_method == "asymptotic"
    assert found.p_value == pytest.approx(SCIPY[method](x, y).pvalue, rel=1e-9)


def test_p_values_are_uniform_under_no_link() -> None:
    """Each method rejects at most as often as it says, ties included, up to the error of 400 draws."""
    for method, tied in (("kendall", True), ("spearman", False), ("pearson", False)):
        rng = np.random.default_rng(0)
        p = []
        for _ in range(400):
            x, y = rng.normal(size=(2, 12))
            if tied:
                x, y = np.round(x), np.round(y)
            p.append(correlation(x, y, method, permutations=199).p_value)
        for level in (0.05, 0.2):
            share = np.mean([value <= level for value in p if value is not None])
            assert share <= level + 3 * math.sqrt(level * (1 - level) / 400), (method, level)
            assert share >= level - 4 * math.sqrt(level * (1 - level) / 400) - 0.02, (method, level)


# Intervals


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("n", [5, 8, 14, 40, 160])
def test_p_and_interval_are_one_test(method: str, tied: bool, n: int) -> None:
    for seed in range(6):
        x, y = sample(seed, n, tied=tied)
        found = correlation(x, y, method, permutations=499)
        if found.value is None:
            continue
        assert found.p_value is not None
        assert found.low is not None
        assert found.high is not None
        assert -1 <= found.low <= found.value <= found.high <= 1
        assert (found.low > 0 or found.high < 0) == (found.p_value <= 0.05)
        assert found.effect is not None
        for level in (0.2, 0.5, 0.9):
            low, high = found.effect.interval(1 - level)
            assert (low > 0 or high < 0) == (found.p_value <= level)


def coverage(method: str, n: int, rho: float, trials: int) -> float:
    truths = {
        "kendall": 2 / math.pi * math.asin(rho),
        "spearman": 6 / math.pi * math.asin(rho / 2),
        "pearson": rho,
    }
    hits = []
    for seed in range(trials):
        x, noise = np.random.default_rng(seed).normal(size=(2, n))
        found = correlation(x, rho * x + math.sqrt(1 - rho**2) * noise, method, permutations=499)
        assert found.low is not None
        assert found.high is not None
        hits.append(found.low <= truths[method] <= found.high)
    return float(np.mean(hits))


@pytest.mark.parametrize("method", METHODS)
def test_intervals_cover_quick(method: str) -> None:
    assert 0.9 <= coverage(method, n=12, rho=0.7, trials=200) <= 0.995  # 0.95 ± 3.2 standard errors


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n", [8, 25, 50])
@pytest.mark.parametrize("rho", [0.0, 0.5, 0.9])
def test_intervals_cover(method: str, n: int, rho: float) -> None:
    assert 0.92 <= coverage(method, n, rho, trials=1000) <= 0.995


def test_a_perfect_order_has_an_interval() -> None:
    found = correlation(range(10), range(10))
    assert found.value == found.high == 1
    assert found.low is not None
    assert 0.4 < found.low < 0.8


def test_four_units_show_nothing() -> None:
    found = correlation(range(4), range(4))
    assert found.p_value == pytest.approx(2 / 24)
    assert found.low is not None
    assert found.low < 0


# Within groups


def test_pooled_within_groups() -> None:
    rng = np.random.default_rng(0)
    group = np.repeat(["a", "b", "c"], 8)
    shift = 5.0 * np.repeat([0, 1, 2], 8)
    x, noise = rng.normal(size=(2, 24))
    for method in METHODS:
        alone, moved = (
            correlation(x + s, x + noise + s, method, within=group, permutations=199) for s in (np.zeros(24), shift)
        )
        assert moved.value == pytest.approx(alone.value, abs=1e-12)
        assert moved.p_value == alone.p_value
        overall = correlation(x + shift, x + noise + shift, method, permutations=199).value
        assert overall is not None
        assert moved.value is not None
        assert overall > moved.value


def test_pooled_p_values_hold_their_level_where_groups_differ() -> None:
    rejected = []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        group = np.repeat(np.arange(10), 6)
        shift = rng.normal(size=10)[group]
        x, y = rng.normal(size=(2, 60)) + 3 * shift
        found = correlation(x, y, "spearman", within=group)
        assert found.p_method == "asymptotic"
        rejected.append(found.p_value is not None and found.p_value <= 0.05)
    assert 0.02 <= np.mean(rejected) <= 0.09


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("tied", [False, True])
def test_the_spread_inside_groups_is_that_of_all_permutations(method: str, tied: bool) -> None:
    rng = np.random.default_rng(2)
    block = np.repeat(np.arange(6), [2, 5, 9, 1, 7, 4])
    x, y = rng.normal(size=(2, 28)) + 2 * block
    if tied:
        x, y = np.round(x), np.round(y)
    deviation = (
        _kendall_deviation(x, y, block) if method == "kendall" else _moment_deviation(x, y, block, method)  # type: ignore[arg-type]
    )
    null = COEFFICIENTS[method].permuted(x, y, random_permutations(block, 20_000, rng), block)
    assert null.std() == pytest.approx(deviation, rel=0.02)  # 20,000 draws: ± 0.005
    assert abs(null.mean()) < 4 * deviation / math.sqrt(20_000)


# What has no value


@pytest.mark.parametrize("method", METHODS)
def test_undefined_with_a_reason(method: str) -> None:
    nan = math.nan
    cases = {
        "constant": ([1, 1, 1, 1], [1, 2, 3, 4]),
        "n = 2": ([1, 2], [3, 4]),
        "n = 0": ([], []),
        "at least 3": ([1, 2, nan, 4], [1, nan, 3, 5]),
    }
    for reason, (x, y) in cases.items():
        found = correlation(x, y, method)
        assert found.status == "undefined"
        assert reason in found.reason
        assert found.value is found.p_value is found.low is found.high is None


def test_missing_values_are_dropped_and_counted() -> None:
    x, y = sample(0, 20)
    gaps = [None if i in (3, 7) else v for i, v in enumerate(x)]
    found = correlation(gaps, np.where(np.arange(20) == 9, np.nan, y))
    keep = [i for i in range(20) if i not in (3, 7, 9)]
    assert found.dropped == 3
    assert found.n == 17
    assert found.value == correlation(x[keep], y[keep]).value
    assert correlation(pd.Series([1, None, 3, 4], dtype="Int64"), pd.Series([1, 2, 3, 5])).dropped == 1


@pytest.mark.filterwarnings("error")
def test_infinite_values_are_ranks_but_not_numbers() -> None:
    x, y = [1, 2, 3, math.inf], [1, 3, 2, math.inf]
    assert correlation(x, y).value == correlation([1, 2, 3, 4], [1, 3, 2, 4]).value
    assert correlation(x, y, "spearman").value == pytest.approx(0.8)
    assert "infinite" in correlation(x, y, "pearson").reason


def test_within_groups_that_never_vary_together() -> None:
    found = correlation([1, 2, 5, 5], [3, 3, 1, 2], within=["a", "a", "b", "b"])
    assert found.status == "undefined"
    assert "same group" in found.reason
    assert "inside any group" in correlation([1, 1, 5, 5], [3, 4, 1, 2], within=["a", "a", "b", "b"]).reason


def test_wrong_arguments() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'kendall'"):
        correlation([1, 2, 3], [1, 2, 3], "kendal")  # type: ignore[arg-type]
    with pytest.raises(OperandError, match="same length"):
        correlation([1, 2, 3], [1, 2])
    with pytest.raises(OperandError, match="column of numbers"):
        correlation(["a", "b", "c"], [1, 2, 3])  # type: ignore[list-item]
    with pytest.raises(OperandError, match="one label"):
        correlation([1, 2, 3], [1, 2, 3], within=["a"])
    with pytest.raises(ValueError, match="finite"):
        Correlation(math.nan, 1.0, None, None, 3, "kendall")
    with pytest.raises(ValueError, match="reason"):
        Correlation(None, None, None, None, 3, "kendall")


def test_results_are_plain() -> None:
    x, y = sample(2, 15)
    for found in (correlation(x, y), correlation([1], [2])):
        assert json.loads(json.dumps(found.to_dict(), allow_nan=False)) == found.to_dict()
