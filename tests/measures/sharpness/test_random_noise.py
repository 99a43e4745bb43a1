"""Random perturbations: random-direction and average-case sharpness, and the PAC-Bayes noise scale."""

from __future__ import annotations

import math

import pytest
import torch
from perturbation_nets import NETWORKS, linear_probe, probe_of, quadratic_probe, slow_losses
from torch import Tensor, nn

from landscope.core.estimate import Estimate, Status
from landscope.curvature import dense
from landscope.measures.base import Measure
from landscope.measures.sharpness.pac_bayes import Bracket, PacBayesSigma, first_crossing
from landscope.measures.sharpness.random_noise import AverageSharpness, RandomSharpness
from landscope.probe.perturbed import direction
from landscope.probe.probe import Probe

EIGENVALUES = [0.5, 1.0, 2.0, 4.5]


@pytest.mark.parametrize("name", NETWORKS)
def test_random_sharpness_is_the_statistic_of_the_loss_on_the_sphere(name: str) -> None:
    probe = probe_of(name)
    at_rest = slow_losses(name, torch.zeros(probe.n_params)).mean()
    changes = []
    for j in range(6):
        z = direction(probe, 7, j)
        changes.append(float(slow_losses(name, 0.2 * z / z.norm()).mean() - at_rest))
    expected = {"max": max(changes), "mean": sum(changes) / 6, "mean_abs": sum(map(abs, changes)) / 6}
    for statistic, value in expected.items():
        estimate = RandomSharpness(rho=0.2, samples=6, statistic=statistic, seed=7)(probe)  # type: ignore[arg-type]
        assert math.isclose(estimate.value, value, rel_tol=1e-8, abs_tol=1e-12)
        assert math.isclose(estimate.details[f"{statistic}_per_rho"], value / 0.2, rel_tol=1e-8, abs_tol=1e-11)  # type: ignore[arg-type]
        assert (estimate.stderr is None) == (statistic == "max")
    assert "no standard error" in RandomSharpness(samples=2)(probe).reason


def test_mean_on_the_sphere_of_a_quadratic_is_its_trace() -> None:
    probe = quadratic_probe(EIGENVALUES)
    rho, p = 0.3, len(EIGENVALUES)
    estimate = RandomSharpness(rho=rho, samples=4000, statistic="mean")(probe)
    assert abs(estimate.value - rho**2 * sum(EIGENVALUES) / (2 * p)) < 4 * estimate.stderr
    changes = torch.tensor(estimate.details["changes"])
    assert float(changes.max()) <= rho**2 * max(EIGENVALUES) / 2 * (1 + 1e-12)
    assert float(changes.min()) >= rho**2 * min(EIGENVALUES) / 2 * (1 - 1e-12)


@pytest.mark.parametrize("name", ["mlp", "batchnorm", "regression"])
@pytest.mark.parametrize("adaptive", [False, True])
def test_average_sharpness_tends_to_the_scaled_trace(name: str, adaptive: bool) -> None:
    probe = probe_of(name)
    diagonal = dense.hessian(probe).diagonal()
    scale = probe.vector().abs() if adaptive else torch.ones(probe.n_params)
    expected = float((scale**2 * diagonal).sum())
    estimate = AverageSharpness(rho=1e-4, samples=600, adaptive=adaptive)(probe)
    error = estimate.details["curvature_stderr"]
    assert isinstance(error, float)
    assert error < 0.4 * abs(expected)
    assert abs(estimate.details["curvature"] - expected) < 4 * error  # type: ignore[operator]


def test_average_sharpness_of_a_quadratic_is_exact_and_its_error_bar_covers() -> None:
    probe = quadratic_probe(EIGENVALUES)
    truth = 0.3**2 * sum(EIGENVALUES) / 2
    estimates = [AverageSharpness(rho=0.3, samples=60, seed=seed)(probe) for seed in range(150)]
    values = torch.tensor([e.value for e in estimates], dtype=torch.float64)
    errors = torch.tensor([e.stderr for e in estimates], dtype=torch.float64)
    # A score (value − truth)/stderr is skewed, since value and stderr rise together: the values themselves are unbiased.
    assert abs(float(values.mean()) - truth) < 4 * float(values.std()) / math.sqrt(150)
    assert 0.8 < float(errors.square().mean().sqrt() / values.std()) < 1.25
    assert 0.87 <= float(((values - truth).abs() < 2 * errors).double().mean()) <= 0.995


def test_pairs_cancel_the_gradient() -> None:
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0)).double()

    def linear(outputs: Tensor, targets: Tensor) -> Tensor:
        return outputs[:, 0] - targets[:, 0]

    estimate = AverageSharpness(rho=0.1, samples=8)(linear_probe([1.0, -2.0, 3.0], x, loss=linear))
    assert abs(estimate.value) < 1e-15
    assert estimate.stderr < 1e-15


def test_adaptive_noise_leaves_zero_weights_alone() -> None:
    x = torch.eye(3).double()
    assert AverageSharpness(rho=0.1, adaptive=True)(linear_probe([0.0, 0.0, 0.0], x)).value == 0.0
    with_eta = AverageSharpness(rho=0.1, adaptive=True, eta=1.0, seed=2)(linear_probe([0.0, 0.0, 0.0], x))
    plain = AverageSharpness(rho=0.1, seed=2)(linear_probe([0.0, 0.0, 0.0], x))
    assert math.isclose(with_eta.value, plain.value, rel_tol=1e-12)


@pytest.mark.parametrize("task", ["regression", "separable"])
def test_the_rounding_of_the_loss_is_part_of_the_bar_of_a_small_change(task: str) -> None:
    """What is left of a loss of 5,500, or of one of probabilities near one, in float32."""
    scores = []
    for seed in range(12):
        rng = torch.Generator().manual_seed(seed)
        x = torch.randn(200, 5, generator=rng).double()
        net = nn.Linear(5, 1 if task == "regression" else 2).double()
        with torch.no_grad():
            for p in net.parameters():
                p.copy_(torch.randn(p.shape, generator=rng).double())
            if task == "separable":
                net.weight.mul_(8)
        y = 75 + torch.randn(200, 1, generator=rng).double() if task == "regression" else net(x).argmax(1)
        loss = "mse" if task == "regression" else "cross_entropy"
        exact = AverageSharpness(rho=1e-5, seed=seed)(Probe(net, (x, y), loss, dtype=torch.float64))
        single = AverageSharpness(rho=1e-5, seed=seed)(Probe(net, (x, y), loss, dtype=torch.float32))
        assert single.stderr is not None
        scores.append(abs(single.value - exact.value) / single.stderr)
    assert sum(score <= 2 for score in scores) >= 11


# PAC-Bayes


def test_sigma_of_a_quadratic_and_its_error_bar() -> None:
    probe = quadratic_probe(EIGENVALUES)
    truth = math.sqrt(2 * 0.05 / sum(EIGENVALUES))
    scores = []
    for seed in range(60):
        estimate = PacBayesSigma(target=0.05, samples=60, seed=seed)(probe)
        scores.append((estimate.value - truth) / estimate.stderr)
        low, high = estimate.details["bracket"]  # type: ignore[misc]
        assert low <= estimate.value <= high
        assert high / low <= 1.02 + 1e-9
    assert float((torch.tensor(scores).abs() < 2).double().mean()) >= 0.85


@pytest.mark.parametrize("name", ["mlp", "conv", "transformer", "regression"])
def test_the_loss_rises_by_the_target_at_sigma(name: str) -> None:
    probe = probe_of(name)
    estimate = PacBayesSigma(target=0.1, samples=10, seed=3)(probe)
    at_rest = slow_losses(name, torch.zeros(probe.n_params)).mean()
    rises = [
        slow_losses(name, sign * estimate.value * direction(probe, 3, j)).mean() - at_rest
        for j in range(5)
        for sign in (1, -1)
    ]
    assert abs(float(sum(rises)) / 10 - 0.1) < 0.005


def test_accuracy_drops_by_the_target_at_sigma() -> None:
    torch.manual_seed(0)
    x = torch.randn(300, 2).double()
    y = (x.sum(1) > 0).long()
    net = nn.Linear(2, 2).double()
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[-1.0, -1.0], [1.0, 1.0]]))
        net.bias.zero_()
    probe = Probe(net, (x, y))
    estimate = PacBayesSigma(target=0.1, metric="accuracy", samples=40)(probe)
    assert estimate.details["at_rest"] == 0.0
    wrong = []
    for j in range(20):
        for sign in (1, -1):
            d = probe.space.unflatten(sign * estimate.value * direction(probe, 0, j))
            wrong.append(((x @ (net.weight + d["weight"]).T + net.bias + d["bias"]).argmax(1) != y).double().mean())
    assert abs(float(torch.stack(wrong).mean()) - 0.1) < 0.01
    assert PacBayesSigma(metric="accuracy")(probe_of("regression")).status is Status.NOT_APPLICABLE


def test_a_target_out_of_reach_is_not_applicable() -> None:
    flat = Probe(nn.Linear(2, 2), (torch.zeros(4, 2), torch.arange(4) % 2), params="weight")
    estimate = PacBayesSigma(samples=4)(flat)
    assert estimate.status is Status.NOT_APPLICABLE
    assert "no noise scale was found" in estimate.reason


def crossing(*args: object) -> Bracket | None:
    search = first_crossing(*args)  # type: ignore[arg-type]
    while True:
        try:
            next(search)
        except StopIteration as end:
            return end.value


def test_crossing_is_found_from_either_side_and_past_overflow() -> None:
    for start in (1e-6, 0.3, 1e6):
        bracket = crossing(lambda s: s**2 if s < 100 else math.inf, 0.09, start, 0.001)
        assert bracket is not None
        assert math.isclose(bracket.crossing(0.09), 0.3, rel_tol=1e-5)
    assert crossing(lambda s: 0.0, 0.1, 1.0, 0.01) is None
    assert crossing(lambda s: 1.0, 0.1, 1.0, 0.01) is None


def test_a_crossing_takes_few_values_and_stays_the_first() -> None:
    for exponent in (1.0, 2.0, 3.5, 6.0):
        for bend in (0.0, 3.0):
            bracket = crossing(lambda s, q=exponent, b=bend: s**q * (1 + b * s**2), 0.1, 0.25, 0.02)
            assert bracket is not None
            assert bracket.low**exponent * (1 + bend * bracket.low**2) <= 0.1
            assert bracket.high**exponent * (1 + bend * bracket.high**2) > 0.1
            assert bracket.high / bracket.low <= 1.02
            assert bracket.evaluations <= 8
    steps = crossing(lambda s: math.floor(20 * s**2) / 20, 0.1, 1.0, 0.02)  # as an accuracy rises
    assert steps is not None
    assert steps.low < math.sqrt(0.15) <= steps.high
    assert crossing(lambda s: max(0.0, 50 * (s - 1)), 0.1, 0.25, 0.02).evaluations <= 12  # type: ignore[union-attr]


# What they share

MEASURES = [
    RandomSharpness(samples=5),
    RandomSharpness(samples=5, statistic="mean_abs", include="weights"),
    AverageSharpness(samples=6),
    AverageSharpness(samples=6, adaptive=True, include=("*.weight",)),
    PacBayesSigma(samples=4),
]


@pytest.mark.parametrize("measure", MEASURES, ids=lambda m: m.key)
def test_same_seed_same_value_in_any_batches_and_json(measure: Measure) -> None:
    model, x, y, loss = NETWORKS["batchnorm"]
    before = {k: v.clone() for k, v in model.state_dict().items()}
    estimate = measure(probe_of("batchnorm"))
    again = measure(Probe(model, [(x[i : i + 5], y[i : i + 5]) for i in range(0, 12, 5)], loss))
    assert math.isclose(estimate.value, again.value, rel_tol=1e-9)
    assert estimate.data_stderr is not None
    assert again.data_stderr is not None
    assert math.isclose(estimate.data_stderr, again.data_stderr, rel_tol=1e-6)
    assert measure(probe_of("batchnorm")).value == estimate.value
    assert Estimate.from_json(estimate.to_json()) == estimate
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    single = measure(probe_of("batchnorm", dtype=torch.float32))
    assert math.isclose(single.value, estimate.value, rel_tol=0.05, abs_tol=1e-6)
    if not isinstance(measure, PacBayesSigma):
        rows_first = 1  # one forward pass for the order of the rows
        assert math.isclose(estimate.cost.passes, (measure.settings["samples"] + 1 + rows_first) / 3, rel_tol=1e-9)


def test_an_overflowing_loss_is_not_applicable_with_a_reason() -> None:
    def explosive(outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs * 100).exp().mean(1)

    model, x, y, _ = NETWORKS["regression"]
    for measure in (RandomSharpness(rho=1e4), AverageSharpness(rho=1e4)):
        estimate = measure(Probe(model, (x, y), explosive))
        assert estimate.status is Status.NOT_APPLICABLE
        assert "too large" in estimate.reason


def test_logits_shifted_alike_change_nothing() -> None:
    model, x, y, loss = NETWORKS["mlp"]
    shifted = nn.Sequential(
        *(nn.Linear(m.in_features, m.out_features) if isinstance(m, nn.Linear) else m for m in model)
    ).double()
    shifted.load_state_dict(model.state_dict())
    with torch.no_grad():
        shifted[2].weight += torch.randn(1, 6).double()  # type: ignore[union-attr]
        shifted[2].bias += 0.7  # type: ignore[union-attr]
    for measure in (RandomSharpness(), AverageSharpness(), PacBayesSigma(samples=4)):
        a, b = measure(probe_of("mlp")), measure(Probe(shifted, (x, y), loss))
        assert math.isclose(a.value, b.value, rel_tol=1e-7, abs_tol=1e-12)


def test_bad_settings_say_what_is_wrong() -> None:
    for make, words in (
        (lambda: RandomSharpness(rho=0.0), "rho must be a positive number"),
        (lambda: RandomSharpness(statistic="median"), "statistic must be"),  # type: ignore[arg-type]
        (lambda: RandomSharpness(samples=1, statistic="mean"), "samples"),
        (lambda: AverageSharpness(samples=5), "even number"),
        (lambda: AverageSharpness(eta=1.0), "adaptive=True"),
        (lambda: PacBayesSigma(metric="f1"), "metric must be"),  # type: ignore[arg-type]
        (lambda: PacBayesSigma(target=-1.0), "target must be"),
    ):
        with pytest.raises(ValueError, match=words):
            make()


@pytest.mark.parametrize("samples", [4, 8])
def test_two_errors_cover_the_truth_with_few_pairs(samples: int) -> None:
    probe = Probe(nn.Linear(8, 1, bias=False).double(), (torch.eye(8).double(), torch.zeros(8, 1).double()), "mse")
    truth = 0.1**2  # L = ‖w‖²/8: tr H = 2
    found = [AverageSharpness(rho=0.1, samples=samples, seed=seed)(probe) for seed in range(300)]
    inside = sum(abs(e.value - truth) <= 2 * e.stderr for e in found) / len(found)
    assert 0.91 < inside < 0.99
