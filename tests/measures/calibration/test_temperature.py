"""Temperature scaling: the fit against known temperatures, another optimiser, and the cases without an optimum."""

from __future__ import annotations

import math

import calibration_truths as truth
import numpy as np
import pytest
import torch
from scipy.optimize import minimize_scalar

from landscope.core.errors import DataError, OperandError
from landscope.core.estimate import Status
from landscope.measures.calibration import calibrated, ece, fit_temperature, nll


@pytest.mark.parametrize("factor", [0.5, 2.0, 4.0, 10.0])
def test_a_known_temperature_comes_back_within_its_error(factor: float) -> None:
    deviations, robust = [], []
    for seed in range(60):
        z, y = truth.drawn(600, seed=seed)
        fit = fit_temperature(factor * z, y)
        assert fit.converged
        deviations.append(math.log(fit.temperature / factor) / fit.log_stderr)
        robust.append(math.log(fit.temperature / factor) / fit.log_stderr_robust)
    for scores in (deviations, robust):  # standard normal, 60 of them
        assert 0.7 < np.std(scores) < 1.3
        assert abs(np.mean(scores)) < 0.55
        assert np.mean(np.abs(scores) < 1.96) > 0.85


@pytest.mark.parametrize("factor", [1e-6, 0.1, 1.0, 30.0, 1e6])
def test_the_optimum_is_the_one_that_another_search_finds(factor: float) -> None:
    z, y = truth.drawn(300, 4, seed=2)
    fit = fit_temperature(factor * z, y)
    other = minimize_scalar(
        lambda u: nll(z / math.exp(u), y).value, bounds=(-5, 5), method="bounded", options={"xatol": 1e-9}
    )
    assert fit.temperature == pytest.approx(factor * math.exp(other.x), rel=1e-6)
    assert fit.nll_after == pytest.approx(other.fun, abs=1e-12)
    assert fit.nll_before == pytest.approx(nll(factor * z, y).value, rel=1e-10)
    assert fit.gradient < 1e-9
    assert fit.iterations <= 15


def test_the_errors_are_those_of_the_curvature() -> None:
    z, y = truth.drawn(500, seed=3)
    fit = fit_temperature(z, y)

    def losses(u: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(z * torch.exp(-u), y, reduction="none")

    at = torch.tensor(math.log(fit.temperature), dtype=torch.float64)
    second = float(torch.autograd.functional.hessian(lambda u: losses(u).sum(), at))
    slopes = torch.autograd.functional.jacobian(losses, at)
    assert fit.log_stderr == pytest.approx(1 / math.sqrt(second), rel=1e-8)
    assert fit.log_stderr_robust == pytest.approx(float(slopes.square().sum().sqrt()) / second, rel=1e-8)
    assert fit.estimate.stderr == pytest.approx(fit.temperature * fit.log_stderr_robust)


@pytest.mark.parametrize(("n", "classes", "seed"), [(1, 2, 0), (3, 2, 1), (10, 50, 2), (200, 3, 3)])
@pytest.mark.parametrize("spread", [1e-8, 1e-3, 1.0, 1e4])
def test_every_fit_ends_with_a_status(n: int, classes: int, seed: int, spread: float) -> None:
    rng = torch.Generator().manual_seed(seed)
    z = spread * torch.randn(n, classes, generator=rng).double().exp()  # heavy tails
    y = torch.randint(0, classes, (n,), generator=rng)
    fit = fit_temperature(z, y)
    assert fit.status is not Status.BUDGET_SPENT
    if fit.converged:
        for nearby in (0.99, 1.01):
            assert nll(z / (fit.temperature * nearby), y).value >= fit.nll_after - 1e-13


def test_one_outlier_in_scale_does_not_stop_the_search() -> None:
    z, y = truth.drawn(200, 3)
    z[0] *= 1e7
    y[0] = z[0].argmax()
    fit = fit_temperature(z, y)
    assert fit.converged
    assert fit.temperature == pytest.approx(fit_temperature(z[1:], y[1:]).temperature, rel=1e-6)


def test_separable_labels_have_no_optimum() -> None:
    z = torch.tensor([[1.0, 0.0], [0.0, 2.0], [5.0, 1.0]])
    fit = fit_temperature(z, torch.tensor([0, 1, 0]))
    assert (fit.temperature, fit.status, fit.nll_after) == (0.0, Status.FAILED, 0.0)
    assert "goes to 0" in fit.reason
    assert not fit.estimate.status.has_value
    with pytest.raises(DataError, match="no finite temperature"):
        fit.scale(z)


def test_separable_up_to_ties() -> None:
    fit = fit_temperature(torch.tensor([[1.0, 1.0, 0.0]]), torch.tensor([0]))
    assert fit.temperature == 0.0
    assert fit.nll_after == pytest.approx(math.log(2))


def test_labels_worse_than_chance_want_no_confidence_at_all() -> None:
    fit = fit_temperature(torch.tensor([[1.0, 0.0], [0.0, 2.0]]), torch.tensor([1, 0]))
    assert (fit.temperature, fit.status) == (math.inf, Status.FAILED)
    assert fit.nll_after == pytest.approx(math.log(2))


def test_equal_logits_make_the_temperature_irrelevant() -> None:
    fit = fit_temperature(torch.ones(5, 3), torch.tensor([0, 1, 2, 0, 1]))
    assert (fit.temperature, fit.status) == (1.0, Status.SATURATED)
    assert fit.nll_after == fit.nll_before == pytest.approx(math.log(3))
    assert fit.estimate.status is Status.SATURATED


def test_running_out_of_iterations_is_said() -> None:
    fit = fit_temperature(*truth.drawn(100), max_iterations=1)
    assert fit.status is Status.BUDGET_SPENT
    assert "1 iterations" in fit.reason


def test_fitted_on_one_half_and_scored_on_the_other() -> None:
    z, y = truth.drawn(4000)
    z = 3 * z
    scaled = calibrated(z[:2000], y[:2000], z[2000:].numpy())
    assert torch.equal(scaled.logits, z[2000:] / scaled.fit.temperature)
    assert ece(scaled.logits, y[2000:]).value < 0.05 < 0.2 < ece(z[2000:], y[2000:]).value


def test_the_same_samples_are_refused() -> None:
    z, y = truth.drawn(100)
    for test in (z, z.clone(), z[:10], z.numpy().copy(), torch.cat([truth.drawn(500, seed=1)[0], z[:6]])):
        if len(test) == 10:
            calibrated(z[20:], y[20:], test)
        with pytest.raises(DataError, match="validation samples are among the test samples"):
            calibrated(z, y, test)


def test_a_few_duplicates_are_no_mistake() -> None:
    z, y = truth.drawn(100)
    assert calibrated(z, y, torch.cat([truth.drawn(50, seed=1)[0], z[:5]])).fit.converged


def test_classes_must_match() -> None:
    z, y = truth.drawn(10, 3)
    with pytest.raises(OperandError, match="3 classes"):
        calibrated(z, y, torch.zeros(4, 5))
