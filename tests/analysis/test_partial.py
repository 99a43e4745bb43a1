"""Partial correlations against their formula, regression residuals and simulation under no link."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from landscope.analysis import correlation, partial_correlation
from landscope.analysis.partial import _freedman_lane

METHODS = ["kendall", "spearman", "pearson"]


def linked(seed: int, n: int, strength: float = 1.0, *, tied: bool = False) -> tuple[np.ndarray, ...]:
    """x and y both follow z and nothing else."""
    z, a, b = np.random.default_rng(seed).normal(size=(3, n))
    columns = (strength * z + a, strength * z + b, z)
    return tuple(np.round(c) for c in columns) if tied else columns


def residual_correlation(x: np.ndarray, y: np.ndarray, *given: np.ndarray) -> float:
    design = np.column_stack([np.ones(len(x)), *given])
    left, right = (v - design @ np.linalg.lstsq(design, v, rcond=None)[0] for v in (x, y))
    return float(stats.pearsonr(left, right).statistic)


@pytest.mark.parametrize("tied", [False, True])
def test_kendall_is_the_formula(tied: bool) -> None:
    for seed in range(10):
        x, y, z = linked(seed, 25, tied=tied)
        xy, xz, yz = (stats.kendalltau(a, b).statistic for a, b in ((x, y), (x, z), (y, z)))
        truth = (xy - xz * yz) / math.sqrt((1 - xz**2) * (1 - yz**2))
        assert partial_correlation(x, y, z, resamples=0, permutations=1).value == pytest.approx(truth, abs=1e-12)


def test_spearman_and_pearson_are_correlations_of_residuals() -> None:
    for seed in range(10):
        x, y, z = linked(seed, 25, tied=bool(seed % 2))
        w = np.random.default_rng(100 + seed).normal(size=25) + z
        given = {"z": z, "w": w}
        ranks = [stats.rankdata(v) for v in (x, y, z, w)]
        found = [partial_correlation(x, y, given, m, resamples=0, permutations=1).value for m in METHODS[1:]]
        assert found[0] == pytest.approx(residual_correlation(*ranks), abs=1e-10)
        assert found[1] == pytest.approx(residual_correlation(x, y, z, w), abs=1e-10)


def test_kendall_given_two_columns_is_the_recursion() -> None:
    x, y, z = linked(0, 30)
    w = np.random.default_rng(1).normal(size=30) + x
    tau = {
        (i, j): stats.kendalltau(a, b).statistic for i, a in enumerate((x, y, z, w)) for j, b in enumerate((x, y, z, w))
    }

    def once(i: int, j: int, k: int) -> float:
        return (tau[i, j] - tau[i, k] * tau[j, k]) / math.sqrt((1 - tau[i, k] ** 2) * (1 - tau[j, k] ** 2))

    xy, xw, yw = once(0, 1, 2), once(0, 3, 2), once(1, 3, 2)
    truth = (xy - xw * yw) / math.sqrt((1 - xw**2) * (1 - yw**2))
    assert partial_correlation(x, y, {"z": z, "w": w}, resamples=0, permutations=1).value == pytest.approx(
        truth, abs=1e-12
    )


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n", [20, 60])
def test_level_holds_where_both_follow_the_covariate(method: str, n: int) -> None:
    """Kendall's partial τ is not 0 here; a test against 0 would reject far too often, this one does not."""
    found = [partial_correlation(*linked(seed, n, 1.5), method, resamples=0, permutations=99) for seed in range(150)]
    rejected = np.mean([c.p_value is not None and c.p_value <= 0.05 for c in found])
    assert 0.005 <= rejected <= 0.115  # 150 draws: 0.05 ± 3.6 standard errors
    if method == "kendall":
        values, nulls = ([getattr(c, name) for c in found] for name in ("value", "null_mean"))
        assert np.mean(values) > 0.1
        assert abs(np.mean(values) - np.mean(nulls)) < 0.05


@pytest.mark.parametrize("method", METHODS)
def test_a_link_beyond_the_covariate_is_found(method: str) -> None:
    for n in (25, 80):
        x, _, z = linked(3, n)
        y = x + z + 0.3 * np.random.default_rng(9).normal(size=n)
        found = partial_correlation(x, y, z, method, permutations=999)
        assert found.p_value is not None
        assert found.p_value <= 0.002 + 1e-12
        assert found.low is not None
        assert found.low > 0.2


def test_interval_of_pearson_covers() -> None:
    """x and y given z correlate with 0.5 whatever z does."""
    hits = []
    for seed in range(150):
        z, a, b = np.random.default_rng(seed).normal(size=(3, 40))
        x, y = 2 * z + a, z + 0.5 * a + math.sqrt(0.75) * b
        found = partial_correlation(x, y, z, "pearson", resamples=499, permutations=1, seed=seed)
        assert found.low is not None
        assert found.high is not None
        hits.append(found.low <= 0.5 <= found.high)
    assert 0.88 <= np.mean(hits) <= 0.99


def test_constant_covariates_change_nothing_and_are_named() -> None:
    x, y, z = linked(0, 20)
    zero = np.zeros(20)
    for method in METHODS:
        alone = partial_correlation(x, y, pd.DataFrame({"train_loss": zero}), method, permutations=99)
        assert alone.value == pytest.approx(correlation(x, y, method, permutations=99).value, abs=1e-12)
        assert "train_loss" in alone.reason
        both = partial_correlation(x, y, {"z": z, "train_loss": zero}, method, permutations=99)
        assert both.value == pytest.approx(partial_correlation(x, y, z, method, permutations=99).value, abs=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_repeated_covariates_count_once(method: str) -> None:
    x, y, z = linked(0, 20)
    found = [partial_correlation(x, y, g, method, permutations=199) for g in ({"a": z}, {"a": z, "b": 2 * z})]
    assert found[1].value == pytest.approx(found[0].value, abs=1e-9)
    assert found[1].p_value == found[0].p_value


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("tied", [False, True])
def test_the_observed_order_is_one_of_all(method: str, tied: bool) -> None:
    """The identity is among the permutations and gives the observed value, so that p is never 0."""
    for seed in range(5):
        x, y, z = linked(seed, 6, tied=tied)
        found = partial_correlation(x, y, z, method)
        if found.value is not None:
            columns = [np.asarray(c, dtype=float) for c in (x, y, z)]
            null = _freedman_lane(columns, method, np.arange(6)[None])
            assert null[0] == pytest.approx(found.value, abs=1e-10)
            assert found.p_value is not None
            assert found.p_value >= 2 / math.factorial(6) - 1e-12


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n", [16, 60])
def test_one_p_and_one_interval_in_any_order(method: str, n: int) -> None:
    x, y, z = linked(3, n)
    settings = {"permutations": 499, "resamples": 200}
    found = partial_correlation(x, y, z, method, **settings)
    order = np.random.default_rng(0).permutation(n)
    again = partial_correlation(x[order], y[order], z[order], method, **settings)
    assert (again.p_value, again.low, again.high) == (found.p_value, found.low, found.high)
    assert again.null_mean == found.null_mean


def test_undefined_with_a_reason() -> None:
    x, y, z = linked(0, 20)
    assert partial_correlation(x, y, x).reason == "x is determined by given given"
    assert "determined" in partial_correlation(x, y, np.exp(y), "spearman").reason
    assert "at least 4" in partial_correlation(x[:3], y[:3], z[:3]).reason
    assert "constant" in partial_correlation(x, np.ones(20), z).reason
    assert "infinite" in partial_correlation(x, y, np.where(z == z.max(), np.inf, z), "pearson").reason
    assert partial_correlation(x, y, np.where(z == z.max(), np.inf, z), "spearman", permutations=99).status == "ok"
    assert partial_correlation(x, y, np.where(z > 0, np.nan, z), permutations=99).dropped == int((z > 0).sum())


def test_units_of_any_size_change_nothing() -> None:
    x, y, z = np.random.default_rng(0).normal(size=(3, 12))
    plain, huge = (partial_correlation(x, y, {"z": unit * z}, method="pearson", resamples=0) for unit in (1.0, 1e200))
    assert (huge.value, huge.p_value) == (pytest.approx(plain.value), pytest.approx(plain.p_value))
