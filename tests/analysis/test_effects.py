"""Effects: against scipy's tests, exact laws and simulated studies."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from landscope.analysis import Order, Summary, difference, log_ratio, mean, paired
from landscope.analysis.coefficients import kendall_spread
from landscope.analysis.effects import Effect
from landscope.core.errors import OperandError

RUNS = np.random.default_rng(3).normal(size=(2, 6))
EFFECTS: list[Effect] = [
    difference(RUNS[0].tolist(), RUNS[1, :4].tolist()),
    paired(RUNS[0].tolist(), RUNS[1].tolist()),
    mean(RUNS[0].tolist()),
    Order(1 - 4 * 6 / 56, 8),
    Order(-1.0, 6),
    Order(0.13, 200),
]


def test_means_are_scipys() -> None:
    first, second = RUNS[0].tolist(), RUNS[1, :4].tolist()
    welch = stats.ttest_ind(first, second, equal_var=False)
    assert difference(first, second).p_value() == pytest.approx(welch.pvalue, rel=1e-12)
    assert difference(first, second).interval(0.9) == pytest.approx(tuple(welch.confidence_interval(0.9)), rel=1e-10)
    pairs = stats.ttest_rel(first[:4], second)
    assert paired(first[:4], second).p_value() == pytest.approx(pairs.pvalue, rel=1e-12)
    single = stats.ttest_1samp(first, 0.3)
    assert mean(first).p_value(0.3) == pytest.approx(single.pvalue, rel=1e-12)
    assert mean(first).shifted(-0.3).p_value() == pytest.approx(single.pvalue, rel=1e-12)


def test_a_difference_of_two_means_is_welchs_test() -> None:
    first, second = RUNS[0].tolist(), RUNS[1, :4].tolist()
    assert mean(first).differs_from(mean(second)) == pytest.approx(difference(first, second).p_value(), rel=1e-12)


def test_an_order_is_kendalls_exact_test() -> None:
    order = [0, 2, 1, 4, 3, 7, 6, 5]
    found = stats.kendalltau(range(8), order, method="exact")
    assert Order(float(found.statistic), 8).p_value() == pytest.approx(found.pvalue, rel=1e-9)


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("confidence", [0.8, 0.95, 0.999])
def test_test_and_interval_are_the_same_inversion(effect: Effect, confidence: float) -> None:
    low, high = effect.interval(confidence)
    assert (low > 0 or high < 0) == (effect.p_value() <= 1 - confidence)
    for end in (low, high):
        if -1 < end < 1 or not isinstance(effect, Order):
            assert effect.p_value(end) == pytest.approx(1 - confidence, rel=1e-5)
    d = effect.concordance(confidence)
    assert (d.low > 0 or d.high < 0) == (effect.p_value() <= 1 - confidence)
    assert (-effect).interval(confidence) == pytest.approx((-high, -low), abs=1e-9)


@pytest.mark.parametrize("effect", EFFECTS)
def test_equivalence_is_the_narrower_interval_inside_the_margin(effect: Effect) -> None:
    low, high = effect.interval(0.9)
    edge = max(-low, high)
    if not isinstance(effect, Order) or edge < 1:
        assert effect.equivalence_p(edge * 1.01) <= 0.05 < effect.equivalence_p(edge * 0.99)


def test_concordance_of_two_conditions() -> None:
    """d = 1 with 10 and 10 runs: the interval of Cohen's d is 0.0462 to 1.9245 (Steiger and Fouladi's noncentral t)."""
    t = math.sqrt(10 / 2)
    spread = math.sqrt(2)
    found = difference(Summary(1.0, 1.0, 10), Summary(0.0, 1.0, 10))
    assert found.value / found.stderr == pytest.approx(t)
    assert found.freedom == pytest.approx(18)
    d = found.concordance()
    ends = [stats.norm.ppf((each + 1) / 2) * spread for each in (d.low, d.high)]
    assert [stats.nct.sf(t, 18, each * t) for each in ends] == pytest.approx([0.025, 0.975], rel=1e-5)
    assert d.value == pytest.approx(2 * stats.norm.cdf(1 / spread) - 1)
    strong = difference(Summary(100.0, 1.0, 3), Summary(0.0, 1.0, 3)).concordance()
    assert 0.9 < strong.low <= strong.value <= strong.high == 1.0


def test_ratios() -> None:
    found = log_ratio(Summary(2.0, 0.2, 5), Summary(1.0, 0.05, 5))
    assert found.value == pytest.approx(math.log(2))
    assert found.stderr == pytest.approx(math.hypot(0.1, 0.05) / math.sqrt(5))
    half = log_ratio([0.5, 0.7, 0.6], [1.0, 1.0, 1.0], pairs=True).shifted(-math.log(0.5))
    assert half.value == pytest.approx(np.log([0.5, 0.7, 0.6]).mean() + math.log(2))
    with pytest.raises(OperandError, match="positive"):
        log_ratio([0.0, 1.0], [1.0, 2.0])
    with pytest.raises(OperandError, match="the runs themselves"):
        log_ratio(Summary(1.0, 0.1, 3), [1.0, 2.0], pairs=True)


def test_what_is_refused() -> None:
    for make in (
        lambda: mean([1.0]),
        lambda: mean([1.0, 1.0, 1.0]),
        lambda: difference([1.0, 2.0], [1.0]),
        lambda: mean([1.0, math.nan]),
        lambda: paired([1.0, 2.0], [1.0]),
        lambda: Order(1.2, 10),
        lambda: Order(0.5, 10).differs_from(mean([1.0, 2.0])),
        lambda: mean([1.0, 2.0]).interval(1.0),
    ):
        with pytest.raises(OperandError):
            make()


@pytest.mark.parametrize(("tau", "n"), [(0.0, 8), (0.4, 12), (0.7, 12), (0.5, 24), (0.9, 50)])
def test_the_interval_of_an_order_covers(tau: float, n: int) -> None:
    rng, r, held = np.random.default_rng(n), math.sin(math.pi * tau / 2), []
    for _ in range(400):
        x, noise = rng.normal(size=(2, n))
        found = stats.kendalltau(x, r * x + math.sqrt(1 - r * r) * noise).statistic
        low, high = Order(float(found), n).interval()
        held.append(low <= tau <= high)
    assert np.mean(held) > 0.95 - 3 * math.sqrt(0.95 * 0.05 / 400)
    assert kendall_spread(tau, n) > 0
