"""Worst cases: SAM, adaptive and Keskar sharpness against closed forms, limits and brute force."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from perturbation_nets import NETWORKS, linear_probe, probe_of, quadratic_probe, slow_losses
from torch import Tensor, nn

from landscope.core.estimate import Estimate, Status
from landscope.curvature import dense
from landscope.measures.base import Measure
from landscope.measures.invariance import movements
from landscope.measures.sharpness import search
from landscope.measures.sharpness.ascent import NormBall, ascend
from landscope.measures.sharpness.pac_bayes import PacBayesSigma
from landscope.measures.sharpness.random_noise import AverageSharpness
from landscope.measures.sharpness.search import Search, WorstCase, worst_cases
from landscope.measures.sharpness.worst_case import AdaptiveSharpness, KeskarSharpness, SAMSharpness
from landscope.probe import perturbed as perturbation
from landscope.probe import points
from landscope.probe.probe import Probe
from landscope.probe.rows.samples import m_batches

W = [0.7, -1.3, 0.0, 2.0]


def data(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=rng).double(), torch.randn(n, 1, generator=rng).double()


def mean_output(outputs: Tensor, targets: Tensor) -> Tensor:
    return outputs[:, 0] - targets[:, 0]


# Closed forms


@pytest.mark.parametrize("method", ["apgd", "pga"])
@pytest.mark.parametrize("eta", [0.0, 0.1])
def test_a_loss_linear_in_the_weights_has_the_dual_norm(method: str, eta: float) -> None:
    x, y = data(16)
    probe = linear_probe(W, x, y, mean_output)
    c = torch.tensor(W, dtype=torch.float64).abs() + eta
    slope = c * x.mean(0)
    for p, expected in (("inf", slope.abs().sum()), (2, slope.norm())):
        estimate = AdaptiveSharpness(rho=0.2, p=p, batch_size=None, eta=eta, method=method)(probe)  # type: ignore[arg-type]
        assert math.isclose(estimate.value, 0.2 * float(expected), rel_tol=1e-9)
        assert math.isclose(estimate.details["per_rho"], float(expected), rel_tol=1e-9)  # type: ignore[arg-type]
    assert math.isclose(SAMSharpness(rho=0.2)(probe).value, 0.2 * float(x.mean(0).norm()), rel_tol=1e-9)
    box = 0.2 * float(((torch.tensor(W).abs() + 1) * x.mean(0).abs()).sum())
    loss = float((x @ torch.tensor(W).double()).mean() - y.mean())
    assert math.isclose(KeskarSharpness(epsilon=0.2)(probe).value, 100 * box / (1 + loss), rel_tol=1e-9)


def test_m_sharpness_is_the_mean_over_batches_of_m() -> None:
    x, y = data(23)
    probe = linear_probe(W, x, y, mean_output)
    w = torch.tensor(W, dtype=torch.float64)
    per_batch = [0.1 * float((w * batch.raw[0].mean(0)).abs().sum()) for batch in m_batches(probe, 5, seed=3)]  # type: ignore[index]
    estimate = AdaptiveSharpness(rho=0.1, batch_size=5, seed=3)(probe)
    assert len(per_batch) == 4
    torch.testing.assert_close(torch.tensor(estimate.details["per_batch"]), torch.tensor(per_batch), rtol=1e-6, atol=0)
    assert math.isclose(estimate.value, sum(per_batch) / 4, rel_tol=1e-9)
    assert estimate.data_stderr is not None
    assert math.isclose(estimate.data_stderr, float(torch.tensor(per_batch).std()) / 2, rel_tol=1e-6)
    two = AdaptiveSharpness(rho=0.1, batch_size=5, seed=3, batches=2)(probe)
    assert math.isclose(two.value, sum(per_batch[:2]) / 2, rel_tol=1e-9)


def test_regression_on_one_sample_in_closed_form() -> None:
    x, y = data(1)
    probe = linear_probe(W, x, y)
    w = torch.tensor(W, dtype=torch.float64)
    residual = abs(float(x @ w - y))
    for rho in (1e-3, 0.1, 2.0):
        for p, reach in (("inf", (w * x).abs().sum()), (2, (w * x).norm())):
            expected = (residual + rho * float(reach)) ** 2 - residual**2
            estimate = AdaptiveSharpness(rho=rho, p=p, batch_size=None)(probe)  # type: ignore[arg-type]
            assert math.isclose(estimate.value, expected, rel_tol=1e-9)


@pytest.mark.parametrize("rho", [0.05, 0.5, 3.0])
def test_regression_against_every_corner_of_the_box(rho: float) -> None:
    x, y = data(20, seed=1)
    probe = linear_probe(W, x, y)
    w = torch.tensor(W, dtype=torch.float64)

    def loss(v: Tensor) -> float:
        return float((x @ v - y[:, 0]).square().mean())

    def worst(c: Tensor, radius: float) -> float:
        corners = itertools.product((-1.0, 1.0), repeat=4)  # a convex function is largest at a corner
        return max(loss(w + radius * c * torch.tensor(s).double()) for s in corners) - loss(w)

    adaptive = AdaptiveSharpness(rho=rho, batch_size=None, restarts=16)(probe)
    assert math.isclose(adaptive.value, worst(w.abs(), rho), rel_tol=1e-9)
    keskar = KeskarSharpness(epsilon=rho, restarts=16)(probe)
    assert math.isclose(keskar.value, 100 * worst(w.abs() + 1, rho) / (1 + loss(w)), rel_tol=1e-9)


# Limits


@pytest.mark.parametrize("name", NETWORKS)
def test_small_balls_see_the_gradient_in_the_dual_norm(name: str) -> None:
    probe = probe_of(name)
    g, theta = probe.gradient(), probe.vector()
    rho = 1e-6
    sam = SAMSharpness(rho=rho)(probe)
    assert math.isclose(sam.value / rho, float(g.norm()), rel_tol=1e-3)
    for p, expected in (("inf", (theta * g).abs().sum()), (2, (theta * g).norm())):
        value = AdaptiveSharpness(rho=rho, p=p, batch_size=None, steps=2)(probe).value  # type: ignore[arg-type]
        assert math.isclose(value / rho, float(expected), rel_tol=1e-3)


def test_at_a_minimum_sam_sharpness_is_half_the_top_eigenvalue() -> None:
    eigenvalues = [0.5, 1.0, 2.0, 4.5]
    estimate = SAMSharpness(rho=0.1, steps=60)(quadratic_probe(eigenvalues))  # the gradient is exactly zero
    assert math.isclose(2 * estimate.value / 0.1**2, 4.5, rel_tol=1e-4)
    x, y = data(30)
    w = torch.linalg.lstsq(x, y).solution[:, 0]
    probe = linear_probe(w.tolist(), x, y)  # zero up to rounding
    top = float(torch.linalg.eigvalsh(dense.hessian(probe))[-1])
    for measure in (SAMSharpness(rho=1e-3, steps=60), SAMSharpness(rho=1e-3, steps=60, restarts=3)):
        assert math.isclose(2 * measure(probe).value / 1e-6, top, rel_tol=1e-3)


def test_at_a_trained_minimum_of_a_network_the_top_eigenvalue_is_found() -> None:
    torch.manual_seed(1)
    x = torch.randn(40, 3).double()
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()
    with torch.no_grad():
        y = net(x)  # realised exactly: a global minimum with zero loss
    probe = Probe(net, (x, y), "mse")
    top = float(torch.linalg.eigvalsh(dense.hessian(probe))[-1])
    estimate = SAMSharpness(rho=1e-4, steps=80, restarts=2)(probe)
    assert math.isclose(2 * estimate.value / 1e-8, top, rel_tol=1e-2)


# The search


def test_more_effort_finds_more() -> None:
    total = dict.fromkeys(("single", "pga", "apgd", "restarts"), 0.0)
    for name in NETWORKS:
        probe = probe_of(name)
        for rho in (0.1, 0.5):
            single = AdaptiveSharpness(rho=rho, batch_size=None, steps=1, method="pga")(probe).value
            pga = AdaptiveSharpness(rho=rho, batch_size=None, steps=20, method="pga")(probe).value
            apgd = AdaptiveSharpness(rho=rho, batch_size=None, steps=20)(probe).value
            many = AdaptiveSharpness(rho=rho, batch_size=None, steps=20, restarts=4)(probe).value
            assert apgd >= single * (1 - 1e-9)
            assert many >= apgd * (1 - 1e-9)
            for key, value in zip(total, (single, pga, apgd, many), strict=True):
                total[key] += value
    assert total["single"] < total["pga"] < total["apgd"] <= total["restarts"]


@pytest.mark.parametrize("p", [2, "inf"])
@pytest.mark.parametrize("method", ["pga", "apgd"])
def test_every_point_stays_in_the_ball(p: float, method: str) -> None:
    ball = NormBall(0.3, 2 if p == 2 else math.inf)
    centre = torch.tensor([[1.0, -2.0, 0.5], [0.0, 0.1, -0.1]], dtype=torch.float64)
    seen = []

    def evaluate(u: Tensor, slopes: bool) -> tuple[Tensor, Tensor]:
        seen.append(u)
        return -(u - centre).square().sum(1), -2 * (u - centre)

    found = ascend(evaluate, torch.zeros(2, 3).double(), torch.ones(2, 3).double(), ball, 30, method)  # type: ignore[arg-type]
    assert all(float(torch.linalg.vector_norm(u, ord=ball.p, dim=1).max()) <= 0.3 * (1 + 1e-12) for u in seen)
    values = torch.stack([-(u - centre).square().sum(1) for u in seen])
    torch.testing.assert_close(found.value, values.max(0).values, rtol=0, atol=0)
    torch.testing.assert_close(found.value, -(found.point - centre).square().sum(1), rtol=0, atol=0)
    torch.testing.assert_close(
        found.point[0],
        ball.project(centre)[0] if p == "inf" else centre[0] * 0.3 / centre[0].norm(),
        rtol=1e-2,
        atol=1e-3,
    )


def test_plain_steps_are_those_of_projected_gradient_ascent() -> None:
    x, y = data(6)
    w = torch.tensor(W, dtype=torch.float64)
    v, best = w.clone(), -math.inf
    loss = lambda u: float((x @ u - y[:, 0]).square().mean())  # noqa: E731
    for _ in range(5):
        v = v + 0.02 * 2 * x.T @ (x @ v - y[:, 0]) / 6
        v = torch.maximum(torch.minimum(v, w + 0.1 * w.abs()), w - 0.1 * w.abs())
        best = max(best, loss(v))
    settings = {"rho": 0.1, "batch_size": 6, "steps": 5, "method": "pga", "step_size": 0.02}
    estimate = AdaptiveSharpness(**settings)(linear_probe(W, x, y))  # type: ignore[arg-type]
    assert math.isclose(estimate.value, best - loss(w), rel_tol=1e-9)


def test_it_is_never_below_zero_and_failures_are_counted() -> None:
    def peak(outputs: Tensor, targets: Tensor) -> Tensor:
        return -outputs.square().sum(1)

    probe = linear_probe([0.0] * 4, data(10)[0], loss=peak)  # a maximum: every step goes down
    for measure in (
        SAMSharpness(),
        SAMSharpness(batch_size=5),
        KeskarSharpness(restarts=2),
        AdaptiveSharpness(eta=1.0, restarts=2),
    ):
        estimate = measure(probe)
        assert estimate.value == 0.0
        assert estimate.details["failed_ascents"] == 1.0
        assert "no ascent" in estimate.reason
    ok = SAMSharpness(steps=3, restarts=2)(probe_of("mlp"))
    assert ok.details["failed_ascents"] == 0.0
    assert ok.value > 0


def test_zero_weights_stay_where_they_are() -> None:
    x, y = data(10)
    w = torch.tensor(W, dtype=torch.float64)
    estimate = AdaptiveSharpness(rho=0.5, p=2, batch_size=None, restarts=3)(linear_probe(W, x, y))
    without = AdaptiveSharpness(rho=0.5, p=2, batch_size=None, restarts=3)(
        linear_probe([0.7, -1.3, 2.0], x[:, [0, 1, 3]], y)
    )
    assert math.isclose(estimate.value, without.value, rel_tol=1e-4)
    assert estimate.details["parameters_at_zero"] == 1
    nothing = AdaptiveSharpness(rho=0.5)(linear_probe([0.0] * 4, x, y))
    assert nothing.value == 0.0
    assert nothing.status is Status.EXACT
    assert float(w[2]) == 0.0


def test_the_reported_rise_is_reached_by_a_real_perturbation() -> None:
    probe = probe_of("conv")
    *_, found = worst_cases(probe, probe.vector().abs(), NormBall(0.2, math.inf), Search(10, 3, "apgd", seed=1))
    assert isinstance(found, WorstCase)
    g = probe.gradient()
    corner = 0.2 * probe.vector().abs() * g.sign()
    rise = float(slow_losses("conv", corner).mean() - slow_losses("conv", torch.zeros_like(corner)).mean())
    assert found.mean >= rise * (1 - 1e-9)
    assert found.data_stderr is not None
    assert found.data_stderr > 0


# At once and one by one


@pytest.mark.parametrize("name", NETWORKS)
def test_at_once_equals_one_by_one(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    measures = [
        AdaptiveSharpness(rho=0.05, batch_size=4, steps=5, restarts=2),
        AdaptiveSharpness(rho=0.05, p=2, batch_size=None, steps=5, restarts=3),
        SAMSharpness(steps=4, restarts=2, batch_size=6),
        KeskarSharpness(restarts=2, steps=4),
    ]
    values = []
    for at_once in (True, False):
        for module in (perturbation, search):
            monkeypatch.setattr(module, "together", lambda probe, samples, at_once=at_once: at_once)
        monkeypatch.setattr(points, "REFUSALS", ())
        values.append([measure(probe_of(name)).value for measure in measures])
    torch.testing.assert_close(torch.tensor(values[0]), torch.tensor(values[1]), rtol=1e-6, atol=1e-12)


def test_what_vmap_refuses_goes_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = AdaptiveSharpness(batch_size=4, restarts=2)(probe_of("mlp")).value

    def refuse(*args: object, **kwargs: object) -> None:
        raise RuntimeError("vmap: no")

    monkeypatch.setattr(search, "together", lambda probe, samples: True)
    monkeypatch.setattr(perturbation, "vmap", refuse)
    assert math.isclose(AdaptiveSharpness(batch_size=4, restarts=2)(probe_of("mlp")).value, expected, rel_tol=1e-6)
    assert SAMSharpness(restarts=2, steps=2)(probe_of("mlp")).value > 0


# What they share

MEASURES = [
    SAMSharpness(),
    SAMSharpness(steps=3, restarts=2, include="weights"),
    SAMSharpness(batch_size=5),
    AdaptiveSharpness(batch_size=4, steps=3),
    AdaptiveSharpness(batch_size=None, p=2, steps=3, include=("*.weight",)),
    KeskarSharpness(steps=3),
]


@pytest.mark.parametrize("measure", MEASURES, ids=lambda m: m.key)
def test_same_seed_same_value_in_any_batches_and_json(measure: Measure) -> None:
    model, x, y, loss = NETWORKS["batchnorm"]
    before = {k: v.clone() for k, v in model.state_dict().items()}
    estimate = measure(probe_of("batchnorm"))
    order = torch.tensor([7, 3, 11, 0, 1, 9, 2, 10, 4, 8, 6, 5])
    again = measure(Probe(model, [(x[i], y[i]) for i in order.split(5)], loss))
    assert math.isclose(estimate.value, again.value, rel_tol=1e-6)
    assert measure(probe_of("batchnorm")).value == estimate.value
    assert Estimate.from_json(estimate.to_json()) == estimate
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    single = measure(probe_of("batchnorm", dtype=torch.float32))
    assert math.isclose(single.value, estimate.value, rel_tol=0.02)
    warm = measure(probe_of("batchnorm", temperature=2.0))
    assert warm.value != estimate.value
    assert warm.value > 0


def test_the_passes_spent_are_those_of_the_gradients() -> None:
    probe = probe_of("mlp")
    probe.value()
    third = 1 / 3
    for measure, passes in (
        (SAMSharpness(steps=3, restarts=2), 2 * (3 + third) + 3 * third),
        (KeskarSharpness(), 10 + 3 * third),
        (AdaptiveSharpness(batch_size=4), 20 + third),
        (AdaptiveSharpness(batch_size=4, batches=2), (20 + third) * 8 / probe.n_samples),
    ):
        assert measure(probe).cost.passes == pytest.approx(passes, abs=0.4)


def test_a_spent_budget_leaves_the_best_so_far() -> None:
    for measure in (SAMSharpness(steps=30), AdaptiveSharpness(batch_size=4, steps=20)):
        probe = probe_of("conv")
        with probe.ledger.limited(passes=8.0):
            estimate = measure(probe)
        assert estimate.status in (Status.BUDGET_SPENT, Status.LOWER_BOUND)
        assert estimate.value >= 0
        assert estimate.cost.passes < 10


def rescaled(factors: Tensor) -> nn.Sequential:
    """The small ReLU network with each hidden neuron scaled and the next layer scaled back."""
    model = NETWORKS["mlp"][0]
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    state = {k: v.clone() for k, v in model.state_dict().items()}
    state["0.weight"] *= factors[:, None]
    state["0.bias"] *= factors
    state["2.weight"] /= factors
    net.load_state_dict(state)
    return net


def test_adaptive_sharpness_does_not_see_rescaling_and_sam_sharpness_does() -> None:
    _, x, y, loss = NETWORKS["mlp"]
    factors = torch.tensor([0.1, 3.0, 1.0, 10.0, 0.5, 2.0]).double()
    for p in (2, "inf"):
        for measure in (
            AdaptiveSharpness(rho=0.1, p=p, batch_size=6, restarts=2),
            AdaptiveSharpness(rho=0.1, p=p, batch_size=None),
        ):  # type: ignore[arg-type]
            a, b = measure(probe_of("mlp")).value, measure(Probe(rescaled(factors), (x, y), loss)).value
            assert math.isclose(a, b, rel_tol=1e-6)
    sam = SAMSharpness()
    assert not math.isclose(sam(probe_of("mlp")).value, sam(Probe(rescaled(factors), (x, y), loss)).value, rel_tol=0.05)


def test_claims_of_invariance_follow_the_settings() -> None:
    rescalings = {"layer_rescaling", "neuron_rescaling", "batchnorm_scaling"}
    for measure, claims in (
        (AdaptiveSharpness(), {*rescalings, "permutation"}),
        (AdaptiveSharpness(restarts=2), rescalings),
        (AdaptiveSharpness(eta=0.1), {"permutation"}),
        (AdaptiveSharpness(method="pga", step_size=0.1), {"permutation"}),
        (SAMSharpness(), {"logit_shift", "permutation"}),
        (SAMSharpness(restarts=2), {"logit_shift"}),
        (AverageSharpness(), {"logit_shift"}),
        (AverageSharpness(adaptive=True), rescalings),
        (PacBayesSigma(adaptive=True, samples=4), rescalings),
        (KeskarSharpness(restarts=2), set()),
    ):
        assert measure.invariances == claims
        for name, movement in movements(measure, probe_of("mlp")).items():
            if name in claims and movement is not None:
                assert movement.change < 1e-6, (measure, name)


def test_batch_statistics_mode_takes_the_batches_as_they_are() -> None:
    model, x, y, loss = NETWORKS["batchnorm"]
    probe = Probe(model, [(x[:8], y[:8]), (x[8:], y[8:])], loss, mode="batch_statistics")
    estimate = AdaptiveSharpness(batch_size=4, steps=3)(probe)
    assert len(estimate.details["per_batch"]) == 2
    assert estimate.value > 0
    assert SAMSharpness()(probe).value > 0


def test_an_error_in_the_loss_leaves_the_model_untouched() -> None:
    model, x, y, _ = NETWORKS["mlp"]
    left = [10**6]

    def failing(outputs: Tensor, targets: Tensor) -> Tensor:
        left[0] -= 1
        if left[0] < 0:
            raise KeyboardInterrupt
        return nn.functional.cross_entropy(outputs, targets, reduction="none")

    before = {k: v.clone() for k, v in model.state_dict().items()}
    probe = Probe(model, (x, y), failing)
    left[0] = 2
    inner = {k: v.clone() for k, v in probe.modules[""].state_dict().items()}
    with pytest.raises(KeyboardInterrupt):
        AdaptiveSharpness(batch_size=4)(probe)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(torch.equal(v, inner[k]) for k, v in probe.modules[""].state_dict().items())
    assert not any(p.requires_grad or p.grad is not None for p in probe.modules[""].parameters())


def test_bad_settings_say_what_is_wrong() -> None:
    for make, words in (
        (lambda: SAMSharpness(rho=-1.0), "rho must be a positive number"),
        (lambda: SAMSharpness(steps=0), "steps must be at least 1"),
        (lambda: AdaptiveSharpness(p=3), "p must be 2 or 'inf'"),
        (lambda: AdaptiveSharpness(eta=-1.0), "eta must not be negative"),
        (lambda: AdaptiveSharpness(method="lbfgs"), "method must be"),  # type: ignore[arg-type]
        (lambda: AdaptiveSharpness(step_size=0.1), "step_size is for method='pga'"),
        (lambda: KeskarSharpness(epsilon=math.nan), "epsilon must be"),
    ):
        with pytest.raises(ValueError, match=words):
            make()
    assert AdaptiveSharpness(p=math.inf) == AdaptiveSharpness(p="inf")
    assert SAMSharpness(include=["0"]).include == ("0",)  # type: ignore[arg-type]
