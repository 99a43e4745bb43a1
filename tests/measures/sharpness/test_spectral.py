"""Spectral measures against the eigenvalues of the dense float64 matrices."""

from __future__ import annotations

import math

import pytest
import torch
from networks import BY_NAME
from torch import nn

from landscope import MEASURES, Probe, Status, measure
from landscope.curvature import dense
from landscope.curvature.per_sample import second_derivative_moments, trace_data_error

NETS = ["relu_mlp", "conv_strided_grouped", "residual_batchnorm", "transformer_encoder", "lstm", "tied_weights"]
TRUTHS = {"hessian": dense.hessian, "ggn": dense.ggn, "fisher": dense.fisher}


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.slow) if name in ("transformer_encoder", "lstm") else name for name in NETS],
)
def test_all_numbers_of_a_matrix(name: str) -> None:
    net = BY_NAME[name]
    probe = Probe(net.model(), net.data(20))
    for matrix, truth in TRUTHS.items():
        values = torch.linalg.eigvalsh(truth(probe))
        keys = ["top_eigenvalue", "bottom_eigenvalue", "trace", "frobenius", "spectrum"]
        report = measure(Probe(net.model(), net.data(20)), measures=[f"{matrix}_{key}" for key in keys])
        exact = {
            "top_eigenvalue": values[-1],
            "bottom_eigenvalue": values[0],
            "trace": values.sum(),
            "frobenius": values.square().sum().sqrt(),
            "spectrum": values[-1],
        }
        for key, expected in exact.items():
            estimate = report[f"{matrix}_{key}"]
            slack = 1 if "eigen" in key or key == "spectrum" else 3
            assert abs(estimate.value - float(expected)) <= slack * estimate.stderr + 1e-9 * float(
                values.abs().max()
            ), key


@pytest.mark.parametrize("name", [*NETS, "no_forward_derivative"])
def test_the_trace_of_the_fisher_matrix_is_exact(name: str) -> None:
    net = BY_NAME[name]
    probe = Probe(net.model(), net.data(20))
    value = MEASURES["fisher_trace"]()(probe).value
    assert value == pytest.approx(float(dense.fisher(probe).trace()), rel=1e-9)
    estimate = MEASURES["ggn_trace"]()(probe)
    assert estimate.status is Status.EXACT
    assert estimate.value == pytest.approx(value, rel=1e-12)


@pytest.mark.parametrize("loss", ["mse", "binary_cross_entropy"])
def test_the_trace_of_the_fisher_matrix_of_other_likelihoods(loss: str) -> None:
    net = BY_NAME["gelu_mlp"]
    x, _ = net.data(20)
    probe = Probe(net.model(), (x, (torch.rand(20, 3) > 0.5).double()), loss)
    assert MEASURES["fisher_trace"]()(probe).value == pytest.approx(float(dense.ggn(probe).trace()), rel=1e-9)


def test_fisher_and_gauss_newton_with_label_smoothing() -> None:
    """Smoothing changes the labels, which the second derivative at the outputs does not hold: both are one matrix."""
    net = BY_NAME["gelu_mlp"]
    probe = Probe(net.model(), net.data(20), nn.CrossEntropyLoss(label_smoothing=0.2))
    report = measure(probe, measures=["ggn_trace", "fisher_trace"])
    assert report["ggn_trace"].value == pytest.approx(
        float(dense.ggn(probe).trace()), abs=3 * report["ggn_trace"].stderr + 1e-9
    )
    assert report["fisher_trace"].value == pytest.approx(float(dense.fisher(probe).trace()), rel=1e-9)


def test_log_volume() -> None:
    net = BY_NAME["relu_mlp"]
    probe = Probe(net.model(), net.data(20))
    values = torch.linalg.eigvalsh(dense.hessian(probe)).flip(0)
    estimate = MEASURES["log_volume"](k=4, tol=1e-8)(probe)
    assert estimate.value == pytest.approx(float(values[:4].log().sum()), abs=1e-6)
    few = MEASURES["log_volume"](k=probe.n_params)(probe)
    assert few.status is Status.NOT_APPLICABLE
    assert "positive" in few.reason


@pytest.mark.parametrize("name", ["gelu_mlp", "layernorm"])
def test_per_sample_second_derivatives(name: str) -> None:
    net = BY_NAME[name]
    x, y = net.data(12)
    probe = Probe(net.model(), (x, y))
    v = torch.randn(2, probe.n_params, dtype=torch.float64)
    truth = torch.stack(
        [
            torch.einsum("kp,pq,kq->k", v, dense.hessian(Probe(net.model(), (x[i : i + 1], y[i : i + 1]))), v)
            for i in range(12)
        ]
    )
    mean, covariance = second_derivative_moments(probe, v)
    assert torch.allclose(mean, truth.mean(0), rtol=1e-9)
    assert torch.allclose(covariance, torch.cov(truth.T), rtol=1e-9)


def test_the_error_over_much_data_is_that_of_its_telling_rows() -> None:
    """Of 1,500 rows, a tenth with most of the curvature, 500 are looked at: on average over orders they say what all say."""
    torch.manual_seed(0)
    x = torch.randn(1500, 4, dtype=torch.float64) * (1 + 3 * (torch.rand(1500, 1) < 0.1))
    y, model = torch.randint(0, 3, (1500,)), nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    v = torch.randn(2, 51, dtype=torch.float64)
    each = torch.func.vmap(lambda a, b: dense_quadratics(model, v, a[None], b[None]))(x, y)
    found = [second_derivative_moments(Probe(model, (x, y), seed=seed), v) for seed in range(20)]
    for got, true in (
        (torch.stack([mean for mean, _ in found]), each.mean(0)),
        (torch.stack([covariance.diagonal() for _, covariance in found]), each.var(0)),
    ):
        assert float(((got.mean(0) - true).abs() / (got.std(0) / 20**0.5)).max()) < 3


def dense_quadratics(model: nn.Module, directions: torch.Tensor, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """vᵀHv of one row along each direction, by plain torch."""
    names = [name for name, _ in model.named_parameters()]
    theta = torch.nn.utils.parameters_to_vector(model.parameters()).detach()

    def loss(at: torch.Tensor) -> torch.Tensor:
        parts = at.split([p.numel() for p in model.parameters()])
        values = {n: part.view_as(p) for n, part, p in zip(names, parts, model.parameters(), strict=True)}
        return nn.functional.cross_entropy(torch.func.functional_call(model, values, (x,)), y)

    return torch.einsum("kp,pq,kq->k", directions, torch.func.hessian(loss)(theta), directions)


@pytest.mark.slow
def test_the_error_over_the_data_is_that_of_fresh_samples() -> None:
    """λ₁ and the trace on 40 fresh sets of 100 samples scatter as one set says they would."""
    net = BY_NAME["gelu_mlp"]
    model = net.model()
    sets = [net.data(100, seed=s) for s in range(40)]
    found = [measure(model, data, ["hessian_top_eigenvalue", "hessian_trace"], seed=s) for s, data in enumerate(sets)]
    for key in ("hessian_top_eigenvalue", "hessian_trace"):
        values = torch.tensor([r[key].value for r in found])
        said = torch.tensor([r[key].data_stderr for r in found]).mean()
        assert 0.7 < float(said / values.std()) < 1.4, key


def test_trace_error_needs_two_directions_and_a_loss_per_sample() -> None:
    net = BY_NAME["gelu_mlp"]
    probe = Probe(net.model(), net.data(12), lambda z, y: nn.functional.cross_entropy(z, y))
    assert probe.loss.reduction == "mean"
    assert trace_data_error(probe, torch.ones(2, probe.n_params, dtype=torch.float64)) is None
    assert MEASURES["hessian_top_eigenvalue"]()(probe).data_stderr is None


def test_a_small_budget_is_said_to_be_spent() -> None:
    net = BY_NAME["transformer_encoder"]
    probe = Probe(net.model(), net.data(20))
    estimate = MEASURES["hessian_top_eigenvalue"](max_matvecs=3)(probe)
    assert estimate.status is Status.BUDGET_SPENT
    assert "3 products" in estimate.reason
    truth = torch.linalg.eigvalsh(dense.hessian(probe))
    assert float((truth - estimate.value).abs().min()) <= estimate.stderr
    assert math.isfinite(estimate.value)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize("samples", [3, 9])
def test_few_samples_give_the_fisher_matrix_exactly(name: str, samples: int) -> None:
    """Through the Gram matrix where samples are few: against the eigenvalues of the dense matrix."""
    net = BY_NAME[name]
    x, y = net.data(samples)
    probe = Probe(net.model(), (x, y))
    truth = torch.linalg.eigvalsh(dense.fisher(probe)).flip(0)
    report = measure(
        probe, measures=[f"fisher_{what}" for what in ("top_eigenvalue", "bottom_eigenvalue", "frobenius", "trace")]
    )
    assert report["fisher_top_eigenvalue"].details["from"] == "gram matrix"
    assert report["fisher_top_eigenvalue"].value == pytest.approx(float(truth[0]), rel=1e-9)
    assert report["fisher_bottom_eigenvalue"].value == pytest.approx(float(truth[-1]), abs=1e-9 * float(truth[0]))
    assert report["fisher_frobenius"].value == pytest.approx(float(truth.square().sum().sqrt()), rel=1e-9)
    assert report["fisher_trace"].value == pytest.approx(float(truth.sum()), rel=1e-9)
    five = MEASURES["fisher_top_eigenvalue"](k=5)(probe)
    assert five.details["values"] == pytest.approx(truth[:5].tolist(), rel=1e-7, abs=1e-12)


def test_targets_that_do_not_add_up_to_one_keep_fisher_and_gauss_newton_apart() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    soft = torch.rand(60, 3, dtype=torch.float64)
    soft[:40] /= soft[:40].sum(1, keepdim=True)
    probe = Probe(net, (torch.randn(60, 4, dtype=torch.float64), soft), nn.CrossEntropyLoss())
    values = torch.linalg.eigvalsh(dense.ggn(probe))
    keys = {"trace": values.sum(), "top_eigenvalue": values[-1], "frobenius": values.norm(), "spectrum": values[-1]}
    report = measure(probe, measures=[f"ggn_{key}" for key in keys])
    for key, truth in keys.items():
        estimate = report[f"ggn_{key}"]
        assert abs(estimate.value - float(truth)) <= 3 * estimate.stderr + 1e-9, key


@pytest.mark.slow
@pytest.mark.parametrize("tol", [0.05, 0.01])
@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_the_error_bar_of_the_volume_holds_the_truth(tol: float, shift: float) -> None:
    for seed in range(8):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 8), nn.Tanh(), nn.Linear(8, 4)).double()
        probe = Probe(net, (torch.randn(100, 6, dtype=torch.float64) + shift, torch.randint(0, 4, (100,))))
        truth = torch.linalg.eigvalsh(dense.hessian(probe))[-8:].log().sum()
        estimate = MEASURES["log_volume"](k=8, tol=tol, seed=seed)(probe)
        if estimate.status is Status.NOT_APPLICABLE:
            assert "known to be positive; lower tol" in estimate.reason
        else:
            assert -1e-9 <= float(truth) - estimate.value <= estimate.stderr, (seed, estimate)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("gap", [3, 9, 25, 30, 36, 60, 95, 300])
@pytest.mark.parametrize("loss", ["cross_entropy", "binary_cross_entropy"])
def test_curvature_below_rounding_is_said_to_be_that(loss: str, gap: float, dtype: torch.dtype) -> None:
    """Of rows so sure that p − y is rounded away for the label but not for the other class; smaller ones are zero."""
    x = torch.randn(60, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(int(gap)))
    signs, rows = x[:, 0].sign(), torch.cat((x, torch.ones(60, 1, dtype=torch.float64)), 1)
    binary = loss == "binary_cross_entropy"
    net = nn.Linear(5, 1 if binary else 2).double()
    with torch.no_grad():
        net.bias.zero_()
        net.weight.zero_()
        x[:, 0] = signs * (1 + 0.1 * x[:, 0].abs())
        net.weight[-1, 0] = gap
    rows[:, 0] = x[:, 0]
    away = torch.sigmoid(-gap * x[:, 0].abs())  # that of the wrong class
    hessian = torch.einsum("n,ni,nj->ij", away * (1 - away), rows, rows) / 60
    values = torch.linalg.eigvalsh(hessian).tolist()
    ends = (values[-1], values[0]) if binary else (2 * values[-1], 0.0)
    y = (signs > 0).to(dtype)[:, None] if binary else (signs > 0).long()
    report = measure(
        net.to(dtype), (x.to(dtype), y), ["hessian_top_eigenvalue", "hessian_bottom_eigenvalue"], loss=loss
    )
    for estimate, truth in zip(report.estimates.values(), ends, strict=True):
        sure = math.exp(-gap) < 5 * torch.finfo(dtype).eps
        assert estimate.status is (Status.SATURATED if sure else Status.CONVERGED), estimate
        assert sure or abs(estimate.value - truth) <= 2 * estimate.stderr, estimate
