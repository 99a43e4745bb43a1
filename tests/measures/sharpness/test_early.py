"""Early answers about a curvature matrix: quadratic forms of rows, the bracket of λ₁, traces from fresh probes."""

from __future__ import annotations

import pytest
import torch
from networks import BY_NAME
from torch import nn

from landscope import MEASURES, Hessian, Probe, Status
from landscope.curvature import dense
from landscope.measures.sharpness.early import early_brackets, has_row_quadratics, row_quadratics
from landscope.probe import points

ROWS, SEEDS = 400, 40


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(ROWS, 6, dtype=torch.float64)
    y = (x[:, :3] + 0.5 * torch.randn(ROWS, 3, dtype=torch.float64)).argmax(1)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    optimizer = torch.optim.Adam(net.parameters(), 2e-2)
    for _ in range(300):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net, x, y


@pytest.fixture(autouse=True)
def nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "SMALL_WORK", 0)


@pytest.mark.parametrize("name", ["relu_mlp", "gelu_mlp", "layernorm", "residual_batchnorm", "transformer_encoder"])
@pytest.mark.parametrize("matrix", ["hessian", "ggn", "fisher"])
def test_quadratic_forms_of_rows_are_those_of_the_matrix(name: str, matrix: str) -> None:
    net = BY_NAME[name]
    probe = Probe(net.model(), net.data(12))
    v = torch.randn(probe.n_params, dtype=probe.dtype, generator=torch.Generator().manual_seed(0))
    assert has_row_quadratics(probe, matrix)
    with probe.measuring():
        rows = row_quadratics(probe, matrix, next(probe.batches()), [v])
    truth = float(v @ getattr(dense, matrix)(probe) @ v)
    assert float(rows.detach().mean()) == pytest.approx(truth, rel=1e-9, abs=1e-12)


def test_the_bracket_of_the_top_eigenvalue_covers(trained) -> None:
    net, x, y = trained
    top = float(torch.linalg.eigvalsh(Hessian(Probe(net, (x, y))).dense())[-1])
    held = found = 0
    for seed in range(SEEDS):
        for bracket in early_brackets(Probe(net, (x, y), seed=seed), "hessian", 1.0, seed):
            if bracket is not None:
                held, found = held + (bracket.low <= top <= bracket.high), found + 1
    assert found >= SEEDS
    assert held >= 0.9 * found


@pytest.mark.slow
def test_traces_from_fresh_probes_cover(trained) -> None:
    net, x, y = trained
    truth = float(Hessian(Probe(net, (x, y))).dense().trace())
    held = 0
    for seed in range(SEEDS):
        estimate = MEASURES["hessian_trace"](seed=seed, tol=0.1)(Probe(net, (x, y), seed=seed))
        assert estimate.status in (Status.CONVERGED, Status.EXACT)
        held += abs(estimate.value - truth) <= 2 * estimate.stderr + 1e-9
    assert held >= 0.88 * SEEDS  # 0.95 less two standard errors of a share of 40


def test_every_early_estimate_of_a_stream_is_honest(trained) -> None:
    net, x, y = trained
    truth = {
        "hessian_top_eigenvalue": float(torch.linalg.eigvalsh(Hessian(Probe(net, (x, y))).dense())[-1]),
        "hessian_trace": float(Hessian(Probe(net, (x, y))).dense().trace()),
    }
    for name, value in truth.items():
        for seed in range(4):
            for estimate in MEASURES[name](seed=seed).refine(Probe(net, (x, y), seed=seed)):
                if estimate is not None and estimate.status is Status.LOWER_BOUND:
                    assert estimate.value <= value * 1.02, name
