"""Error bars of calibration errors: what they cover, what they do not, and that they are the same whoever asks."""

from __future__ import annotations

import math

import calibration_truths as truth
import numpy as np
import pytest
import torch

from landscope.measures import calibration as cal
from landscope.measures.calibration import scores as resampling
from landscope.measures.calibration.scores import bootstrap, mean_estimate

BINNED = ["ece", "ace", "classwise_ece"]


@pytest.mark.parametrize("name", BINNED)
def test_the_bootstrap_error_is_the_spread_over_data_sets(name: str) -> None:
    function = getattr(cal, name)
    found = []
    for seed in range(60):
        z, y = truth.drawn(1500, seed=seed)
        found.append(function(2 * z, y, resamples=100, seed=seed))
    spread = np.std([e.value for e in found], ddof=1)
    stated = np.sqrt(np.mean([e.stderr**2 for e in found]))
    assert 0.75 < stated / spread < 1.33  # 60 data sets know the spread to 9 %


def test_an_interval_covers_the_error_of_a_miscalibrated_model() -> None:
    big = truth.drawn(200_000, seed=1000)
    exact = cal.ece(2 * big[0], big[1], resamples=0).value
    hits = 0
    for seed in range(100):
        z, y = truth.drawn(1000, seed=seed)
        e = cal.ece(2 * z, y, resamples=100, seed=seed)
        hits += abs(e.value - exact) < 1.96 * e.stderr
    assert 88 <= hits <= 100


@pytest.mark.parametrize("name", BINNED)
@pytest.mark.parametrize("n", [300, 3000])
def test_what_a_calibrated_model_would_get(name: str, n: int) -> None:
    function = getattr(cal, name)
    got = [function(*truth.drawn(n, seed=seed), resamples=0) for seed in range(30)]
    mean, error = np.mean([e.value for e in got]), np.std([e.value for e in got]) / math.sqrt(30)
    predicted = np.mean([e.details["if_calibrated"] for e in got])
    assert abs(predicted - mean) < 4 * error + 0.05 * mean


@pytest.mark.parametrize("name", ["nll", "brier", "accuracy", "error"])
def test_means_have_the_error_of_a_mean(name: str) -> None:
    z, y = truth.drawn(400)
    estimate = getattr(cal, name)(z, y)
    p = z.softmax(1)
    each = {
        "nll": -p.gather(1, y[:, None])[:, 0].log(),
        "brier": (p - torch.eye(5)[y]).square().sum(1),
        "accuracy": (z.argmax(1) == y).double(),
        "error": (z.argmax(1) != y).double(),
    }[name]
    assert estimate.stderr == estimate.data_stderr == pytest.approx(float(each.std()) / 20)
    drawn = np.random.default_rng(0).integers(0, 400, (4000, 400))
    assert estimate.stderr == pytest.approx(each.numpy()[drawn].mean(1).std(), rel=0.05)


def test_groups_of_samples_give_the_error_of_single_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = truth.drawn(6000)
    in_groups = cal.ece(2 * z, y, resamples=2000).stderr
    monkeypatch.setattr(resampling, "GROUPS", 10**9)
    assert in_groups == pytest.approx(cal.ece(2 * z, y, resamples=2000, seed=1).stderr, rel=0.1)


@pytest.mark.parametrize("name", [*BINNED, "mce", "brier", "nll"])
@pytest.mark.parametrize("n", [200, 2500])
def test_the_order_of_samples_changes_nothing(name: str, n: int) -> None:
    z, y = truth.drawn(n)
    order = torch.randperm(n, generator=torch.Generator().manual_seed(5))
    first, second = (getattr(cal, name)(*pair) for pair in ((z, y), (z[order], y[order])))
    assert second.value == pytest.approx(first.value, rel=1e-12)
    assert second.stderr == pytest.approx(first.stderr, rel=1e-9)


def test_seeds_and_global_state() -> None:
    z, y = truth.drawn(200)
    state = torch.get_rng_state()
    assert cal.ece(z, y, seed=3) == cal.ece(z, y, seed=3)
    assert cal.ece(z, y, seed=3).stderr != cal.ece(z, y, seed=4).stderr
    assert torch.equal(state, torch.get_rng_state())


def test_chunks_of_draws_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    z, y = truth.drawn(300)
    whole = cal.ece(z, y, resamples=50)
    monkeypatch.setattr(resampling, "CHUNK", 7 * 300)
    assert cal.ece(z, y, resamples=50).stderr == pytest.approx(whole.stderr, rel=1e-12)


def test_no_error_bar_on_request_and_no_single_draw() -> None:
    z, y = truth.drawn(50)
    assert cal.ece(z, y, resamples=0).data_stderr is None
    with pytest.raises(ValueError, match="resamples"):
        cal.ece(z, y, resamples=1)


def test_bootstrap_of_a_mean_is_the_mean_estimate() -> None:
    x = torch.randn(500, dtype=torch.float64, generator=torch.Generator().manual_seed(0))

    def add_up(group: torch.Tensor, groups: int) -> torch.Tensor:
        return torch.zeros(groups, dtype=torch.float64).index_add(0, group, x)

    drawn = bootstrap(500, add_up, lambda sums: sums / 500, resamples=4000)
    assert drawn.value == pytest.approx(mean_estimate(x).value)
    assert drawn.stderr == pytest.approx(mean_estimate(x).stderr, rel=0.05)
