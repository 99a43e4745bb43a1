"""How many models: against exact p-values and simulated studies."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from landscope.analysis import chance_to_find, models_needed, runs_needed, smallest_significant
from landscope.analysis.coefficients import as_kendall, kendall_between, kendall_spread, null_deviation
from landscope.core.errors import OperandError


def order_with(inversions: int, n: int) -> list[int]:
    """A permutation with exactly this many inversions."""
    order: list[int] = []
    for i in range(n):  # model i goes before as many of the earlier ones as are still needed
        order.insert(len(order) - min(i, inversions), i)
        inversions -= min(i, inversions)
    return order


@pytest.mark.parametrize("n", [5, 6, 9, 20, 50])
@pytest.mark.parametrize("alpha", [0.05, 0.01])
def test_smallest_significant_is_the_edge(n: int, alpha: float) -> None:
    critical = smallest_significant(n, alpha)
    if critical is None:
        assert stats.kendalltau(range(n), range(n), method="exact").pvalue > alpha
        return
    pairs = n * (n - 1) // 2
    inversions = round((1 - critical) * pairs / 2)
    at, below = (stats.kendalltau(range(n), order_with(d, n), method="exact") for d in (inversions, inversions + 1))
    assert at.statistic == pytest.approx(critical)
    assert at.pvalue <= alpha < below.pvalue


def test_smallest_significant_is_smooth_where_it_becomes_normal() -> None:
    assert smallest_significant(150) == pytest.approx(1.959964 * null_deviation(150), rel=0.01)
    assert smallest_significant(151) == pytest.approx(1.959964 * null_deviation(151), rel=1e-6)
    assert smallest_significant(1) is None
    assert smallest_significant(4) is None


def test_variance_under_no_link_is_kendalls() -> None:
    for n in (5, 12, 200):
        assert kendall_spread(0.0, n) == pytest.approx(null_deviation(n), rel=1e-12)


def simulated_power(tau: float, n: int, trials: int) -> float:
    r = math.sin(math.pi * tau / 2)
    rng = np.random.default_rng(n)
    x, noise = rng.normal(size=(2, trials, n))
    y = r * x + math.sqrt(1 - r**2) * noise
    y = np.take_along_axis(y, np.argsort(x, axis=1), axis=1)
    taus = kendall_between(np.arange(float(n))[None], y, np.zeros(n, dtype=int))[0]
    critical = smallest_significant(n)
    assert critical is not None
    return float(np.mean(np.abs(taus) >= critical - 1e-12))


@pytest.mark.parametrize("tau", [0.3, 0.5, -0.7])
def test_power_is_what_simulated_studies_have(tau: float) -> None:
    n = models_needed(tau)
    assert n is not None
    for size, at_least in ((n, True), (n - 1, False)):
        power = simulated_power(tau, size, trials=4000)
        # 4,000 studies: ± 0.006; of few models τ is not normal around its mean
        assert power == pytest.approx(chance_to_find(tau, size), abs=0.025 if size >= 10 else 0.06)
        assert (chance_to_find(tau, size) >= 0.8) == at_least


def test_no_link_is_found_as_often_as_alpha_says() -> None:
    assert chance_to_find(0.0, 100) == pytest.approx(0.05, abs=0.003)
    assert simulated_power(0.0, 20, 4000) <= 0.05 + 3 * 0.0035


def test_models_needed() -> None:
    assert models_needed(1.0) == 5  # 2/5! is the first two-sided p below 5 %
    assert models_needed(0.0) is None
    assert models_needed(0.2) == models_needed(-0.2)
    few, more, small = models_needed(0.3), models_needed(0.3, alpha=0.001), models_needed(0.02)
    assert few is not None
    assert more is not None
    assert small is not None
    assert few < more
    # far out, n grows with 1/τ²: (z_α/2 + z_β)² · 4/9 / τ²
    assert small == pytest.approx((1.959964 + 0.841621) ** 2 * 4 / 9 / 0.02**2, rel=0.01)
    assert chance_to_find(0.02, small) >= 0.8 > chance_to_find(0.02, small - 1)
    with pytest.raises(OperandError, match="between −1 and 1"):
        models_needed(1.2)
    with pytest.raises(OperandError, match="alpha"):
        models_needed(0.2, alpha=0.9)
    with pytest.raises(ValueError, match="alpha"):
        smallest_significant(10, alpha=0.0)


def test_other_coefficients_as_kendalls() -> None:
    rng = np.random.default_rng(0)
    x, noise = rng.normal(size=(2, 4000))
    y = 0.6 * x + 0.8 * noise
    tau = stats.kendalltau(x, y).statistic
    assert as_kendall(stats.pearsonr(x, y).statistic, "pearson") == pytest.approx(tau, abs=0.02)
    assert as_kendall(stats.spearmanr(x, y).statistic, "spearman") == pytest.approx(tau, abs=0.02)
    assert as_kendall(-1.0, "spearman") == pytest.approx(-1)


@pytest.mark.parametrize(("effect", "groups"), [(1.0, 2), (0.4, 2), (1.0, 1), (3.0, 1)])
def test_runs_needed_have_the_power_that_simulated_studies_have(effect: float, groups: int) -> None:
    n = runs_needed(effect, 1.0, groups=groups)
    assert n is not None
    rng = np.random.default_rng(7)
    for size, enough in ((n, True), (n - 1, False)):
        if size < 2:
            continue
        runs = rng.normal(size=(2, 20_000, size)) / math.sqrt(groups)
        found = (
            stats.ttest_ind(runs[0] + effect, runs[1], axis=1)
            if groups == 2
            else stats.ttest_1samp(runs[0] + effect, 0.0, axis=1)
        )
        power = float(np.mean(found.pvalue <= 0.05))
        assert (power >= 0.8 - 0.009) if enough else (power < 0.8 + 0.009)  # 20,000 studies: three standard errors
    assert runs_needed(0.0, 1.0) is None
    with pytest.raises(OperandError, match="spread"):
        runs_needed(1.0, 0.0)
