"""Partial correlations against regression residuals, closed forms and simulation under no link."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from landscope.analysis import correlation, partial_correlation
from landscope.analysis.partial import reliability

METHODS = ["kendall", "spearman", "pearson"]


def linked(seed: int, n: int, strength: float = 1.0, *, tied: bool = False) -> tuple[np.ndarray, ...]:
    """x and y both follow z and nothing else."""
    z, a, b = np.random.default_rng(seed).normal(size=(3, n))
    columns = (strength * z + a, strength * z + b, z)
    return tuple(np.round(c) for c in columns) if tied else columns


def residuals(x: np.ndarray, *terms: np.ndarray) -> np.ndarray:
    design = np.column_stack([np.ones(len(x)), *terms])
    return x - design @ np.linalg.lstsq(design, x, rcond=None)[0]


def scores(x: np.ndarray) -> np.ndarray:
    return stats.norm.ppf((stats.rankdata(x) - 0.375) / (len(x) + 0.25))


def test_pearson_is_the_correlation_of_residuals() -> None:
    for seed in range(10):
        x, y, z = linked(seed, 25, tied=bool(seed % 2))
        w = np.random.default_rng(100 + seed).normal(size=25) + z
        found = partial_correlation(x, y, {"z": z, "w": w}, "pearson")
        left, right = residuals(x, z, w), residuals(y, z, w)
        assert found.value == pytest.approx(stats.pearsonr(left, right).statistic, abs=1e-10)
        t = found.value * math.sqrt((25 - 4) / (1 - found.value**2))
        assert found.p_value == pytest.approx(2 * stats.t.sf(abs(t), 21), rel=1e-9)


@pytest.mark.parametrize(("n", "degree"), [(25, 2), (60, 4)])
def test_kendall_is_that_of_residual_scores(n: int, degree: int) -> None:
    for seed in range(5):
        x, y, z = linked(seed, n)
        terms = [scores(z) ** power for power in range(1, degree + 1)]
        truth = stats.kendalltau(residuals(scores(x), *terms), residuals(scores(y), *terms)).statistic
        found = partial_correlation(x, y, z)
        assert found.value == pytest.approx(truth, abs=1e-12)
        assert found.n == n
        # any monotone change of any column changes nothing
        again = partial_correlation(np.exp(x), y**3, np.exp(z))
        assert (again.value, again.p_value) == (found.value, found.p_value)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("n", [15, 60])
def test_level_holds_where_both_follow_the_covariate(method: str, n: int) -> None:
    found = [partial_correlation(*linked(seed, n, 1.5), method) for seed in range(300)]
    rejected = np.mean([c.p_value is not None and c.p_value <= 0.05 for c in found])
    assert 0.015 <= rejected <= 0.095  # 300 draws: 0.05 ± 3.5 standard errors
    assert abs(np.mean([c.value or 0.0 for c in found])) < 1.5 / n  # centred on 0
    for c in found:
        assert c.low is not None
        assert c.high is not None
        assert (c.low > 0 or c.high < 0) == (c.p_value is not None and c.p_value <= 0.05)


def test_a_covariate_that_bends_is_followed() -> None:
    rejected = []
    for seed in range(200):
        z, a, b = np.random.default_rng(seed).normal(size=(3, 50))
        found = partial_correlation(z**2 + 0.7 * a, z**2 + 0.7 * b, z)
        rejected.append(found.p_value is not None and found.p_value <= 0.05)
    assert np.mean(rejected) < 0.11  # a straight regression: 0.8


@pytest.mark.parametrize("method", METHODS)
def test_a_link_beyond_the_covariate_is_found(method: str) -> None:
    for n in (25, 80):
        x, _, z = linked(3, n)
        y = x + z + 0.3 * np.random.default_rng(9).normal(size=n)
        found = partial_correlation(x, y, z, method)
        assert found.p_value is not None
        assert found.p_value <= 0.002
        assert found.low is not None
        assert found.low > 0.2


@pytest.mark.parametrize("method", METHODS)
def test_intervals_cover(method: str) -> None:
    """x and y given z correlate with 0.5 whatever z does."""
    truth = {"kendall": 2 / math.pi * math.asin(0.5), "spearman": 6 / math.pi * math.asin(0.25), "pearson": 0.5}[method]
    hits = []
    for seed in range(200):
        z, a, b = np.random.default_rng(seed).normal(size=(3, 40))
        found = partial_correlation(2 * z + a, z + 0.5 * a + math.sqrt(0.75) * b, z, method)
        assert found.low is not None
        assert found.high is not None
        hits.append(found.low <= truth <= found.high)
    assert np.mean(hits) > 0.95 - 3 * math.sqrt(0.95 * 0.05 / 200)


# Errors of the covariate


def test_reliability_is_the_share_that_is_not_error() -> None:
    rng = np.random.default_rng(0)
    z = rng.normal(size=2000)
    for size in (0.2, 0.5, 0.8):
        seen, truth = z + size * rng.normal(size=2000), 1 / (1 + size**2)
        assert reliability(seen, np.full(2000, size)) == pytest.approx(truth, abs=0.03)
        assert reliability(np.exp(seen), size * np.exp(seen)) == pytest.approx(
            truth, abs=0.03
        )  # of a loss, in proportion
        assert reliability(seen, np.full(2000, size), "pearson") == pytest.approx(truth, abs=0.03)


@pytest.mark.parametrize("method", METHODS)
def test_errors_of_the_covariate_make_no_link(method: str) -> None:
    unused, used = [], []
    for seed in range(150):
        rng = np.random.default_rng(1000 + seed)
        x, y, z = linked(seed, 60, 1.5)
        seen, error = z + 0.4 * rng.normal(size=60), np.full(60, 0.4)
        unused.append((partial_correlation(x, y, seen, method).p_value or 1) <= 0.05)
        found = partial_correlation(x, y, seen, method, errors=error)
        used.append((found.p_value or 1) <= 0.05)
        if found.value is not None:
            assert found.low is not None
            assert found.high is not None
            assert (found.low > 0 or found.high < 0) == used[-1]
            assert "reliability of 0." in found.reason
    assert np.mean(unused) > 0.3
    assert np.mean(used) < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 150)


def test_a_strong_link_survives_small_errors() -> None:
    x, _, z = linked(3, 80)
    rng = np.random.default_rng(9)
    y = x + z + 0.3 * rng.normal(size=80)
    errors = pd.DataFrame({"train_loss": np.full(80, 0.1)})
    found = partial_correlation(x, y, pd.DataFrame({"train_loss": z + 0.1 * rng.normal(size=80)}), errors=errors)
    assert found.p_value is not None
    assert found.p_value < 0.001
    assert found.effect is not None
    assert (-found.effect).interval() == pytest.approx(tuple(-end for end in found.effect.interval())[::-1])


def test_a_covariate_that_is_mostly_error_is_refused() -> None:
    x, y, z = linked(0, 40)
    found = partial_correlation(
        x, y, {"loss": z + 2 * np.random.default_rng(1).normal(size=40)}, errors={"loss": [2] * 40}
    )
    assert found.status == "undefined"
    assert "given loss has a reliability of" in found.reason
    missing = partial_correlation(x, y, {"loss": z}, errors={"loss": [None] * 40})
    assert missing == partial_correlation(x, y, {"loss": z})


# Odd columns


def test_constant_covariates_change_nothing_and_are_named() -> None:
    x, y, z = linked(0, 20)
    zero = np.zeros(20)
    for method in METHODS:
        alone = partial_correlation(x, y, pd.DataFrame({"train_loss": zero}), method)
        assert "train_loss" in alone.reason
        assert alone.value is not None
        if method != "spearman":  # ρ is that of normal scores
            assert alone.value == pytest.approx(correlation(x, y, method).value, abs=1e-12)
        both = partial_correlation(x, y, {"z": z, "train_loss": zero}, method)
        assert both.value == pytest.approx(partial_correlation(x, y, z, method).value, abs=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_repeated_covariates_count_once(method: str) -> None:
    x, y, z = linked(0, 20)
    found = [partial_correlation(x, y, g, method) for g in ({"a": z}, {"a": z, "b": 2 * z})]
    assert found[1].value == pytest.approx(found[0].value, abs=1e-9)
    assert found[1].p_value == pytest.approx(found[0].p_value, rel=1e-9)


@pytest.mark.parametrize("method", METHODS)
def test_one_result_in_any_order(method: str) -> None:
    x, y, z = linked(3, 16)
    errors = np.linspace(0.05, 0.2, 16)
    found = partial_correlation(x, y, z, method, errors=errors)
    order = np.random.default_rng(0).permutation(16)
    again = partial_correlation(x[order], y[order], z[order], method, errors=errors[order])
    assert (again.p_value, again.low, again.high) == (found.p_value, found.low, found.high)


def test_undefined_with_a_reason() -> None:
    x, y, z = linked(0, 20)
    assert partial_correlation(x, y, x).reason == "x is determined by given given"
    assert "determined" in partial_correlation(x, y, np.exp(y), "spearman").reason
    assert "models are needed" in partial_correlation(x[:4], y[:4], z[:4]).reason
    assert "constant" in partial_correlation(x, np.ones(20), z).reason
    assert "infinite" in partial_correlation(x, y, np.where(z == z.max(), np.inf, z), "pearson").reason
    assert partial_correlation(x, y, np.where(z == z.max(), np.inf, z), "spearman").status == "ok"
    assert partial_correlation(x, y, np.where(z > 0, np.nan, z)).dropped == int((z > 0).sum())


def test_units_of_any_size_change_nothing() -> None:
    x, y, z = np.random.default_rng(0).normal(size=(3, 12))
    plain, huge = (partial_correlation(x, y, {"z": unit * z}, method="pearson") for unit in (1.0, 1e200))
    assert (huge.value, huge.p_value) == (pytest.approx(plain.value), pytest.approx(plain.p_value))


def test_a_covariate_that_may_explain_all_says_so() -> None:
    """Both columns follow it closely: less its errors, it may be all there is."""
    rng = np.random.default_rng(3)
    z, noise = rng.normal(size=60), rng.normal(size=(3, 60))
    seen = z + 0.6 * noise[2]
    found = partial_correlation(
        z + 0.05 * noise[0], z + 0.05 * noise[1], {"loss": seen}, errors={"loss": np.full(60, 0.6)}
    )
    assert found.value is None
    assert found.reason.startswith("given loss has a reliability of 0.")
    assert found.reason.endswith("it may explain a column wholly, so that nothing is left to go together")
