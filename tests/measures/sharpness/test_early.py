"""Early answers about a curvature matrix: quadratic forms of rows, the bracket of λ₁, traces from fresh probes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from networks import BY_NAME
from torch import nn

from landscope import GGN, MEASURES, Hessian, Probe, Status
from landscope.curvature import dense
from landscope.measures.sharpness import early
from landscope.measures.sharpness.early import EarlyBracket, early_brackets, has_row_quadratics, row_quadratics
from landscope.probe import points

ROWS, SEEDS = 400, 40


@pytest.fixture(scope="module")
def trained() -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    return network(ROWS, steps=300)


def network(rows: int, steps: int) -> tuple[nn.Module, torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    x = torch.randn(rows, 6, dtype=torch.float64)
    y = (x[:, :3] + 0.5 * torch.randn(rows, 3, dtype=torch.float64)).argmax(1)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3)).double()
    optimizer = torch.optim.Adam(net.parameters(), 2e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    return net, x, y


@pytest.fixture(scope="module")
def matrix(trained: tuple[nn.Module, torch.Tensor, torch.Tensor]) -> torch.Tensor:
    net, x, y = trained
    return Hessian(Probe(net, (x, y))).dense()


@pytest.fixture(autouse=True)
def nothing_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "SMALL_WORK", 0)


class _NormalisedPositions(nn.Module):
    """Batch norm of every sample by itself, on its own statistics."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.batch_norm(x.transpose(0, 1), None, None, training=True).transpose(0, 1)


NORMS_AND_GATES = {  # torch's forward derivatives of forward derivatives are wrong or missing for these
    "layer_norm": lambda: nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6), nn.Tanh()),
    "layer_norm_2d": lambda: nn.Sequential(
        nn.Linear(6, 6), nn.Unflatten(1, (2, 3)), nn.LayerNorm((2, 3), bias=False), nn.Flatten()
    ),
    "instance_norm": lambda: nn.Sequential(
        nn.Linear(6, 6), nn.Tanh(), nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2, affine=True), nn.Flatten()
    ),
    "instance_norm_of_all_data": lambda: nn.Sequential(
        nn.Linear(6, 6), nn.Unflatten(1, (2, 3)), nn.InstanceNorm1d(2, track_running_stats=True), nn.Flatten()
    ),
    "batch_norm_of_positions": lambda: nn.Sequential(
        nn.Linear(6, 6), nn.Tanh(), nn.Unflatten(1, (2, 3)), _NormalisedPositions(), nn.Flatten()
    ),
    "gated": lambda: nn.Sequential(nn.Linear(6, 12), nn.GLU(1)),
}


@pytest.mark.parametrize("name", NORMS_AND_GATES)
def test_quadratic_forms_of_rows_behind_norms_and_gates(name: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(NORMS_AND_GATES[name](), nn.Linear(6, 3)).double()
    probe = Probe(net, (torch.randn(12, 6, dtype=torch.float64), torch.arange(12) % 3))
    v = torch.randn(probe.n_params, dtype=torch.float64)
    assert has_row_quadratics(probe, "hessian")
    with probe.measuring():
        rows = row_quadratics(probe, "hessian", next(probe.batches()), [v])
    assert float(rows.detach().mean()) == pytest.approx(float(v @ dense.hessian(probe) @ v), rel=1e-9)


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


@pytest.mark.parametrize("scale", [1.0, 160.0])
def test_rows_that_are_all_but_certain_have_quadratic_forms(scale: float) -> None:
    """Rounding hides in float32 what their curvature is, by either way."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    x = torch.randn(200, 6)
    with torch.no_grad():
        net[2].weight.mul_(scale)
    assert has_row_quadratics(Probe(net, (x, net(x).argmax(1))), "hessian")


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
@pytest.mark.parametrize(
    "kind", [nn.SiLU, nn.Mish, nn.GELU, nn.Softplus, nn.ELU, nn.Hardswish], ids=lambda kind: kind.__name__
)
def test_traces_behind_smooth_rectifiers(kind: type[nn.Module]) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), kind(), nn.Linear(8, 3)).double()
    probe = Probe(net, (torch.randn(ROWS, 6, dtype=torch.float64), torch.arange(ROWS) % 3))
    found, truth = MEASURES["hessian_trace"](tol=0.05)(probe), float(dense.hessian(probe).trace())
    assert abs(found.value - truth) <= 4 * found.stderr + 1e-9 * abs(truth)


@pytest.mark.parametrize("name", ["hessian_top_eigenvalue", "hessian_spectrum"])
def test_products_on_all_rows_raise_the_lower_end_of_the_bracket(name: str) -> None:
    net, x, y = network(4 * ROWS, steps=40)
    truth = float(torch.linalg.eigvalsh(dense.hessian(Probe(net, (x, y)))).max())
    found = [e for e in MEASURES[name]().refine(Probe(net, (x, y))) if e is not None]
    lows = [e.bracket[0] for e in found if e.bracket is not None]
    assert len(lows) > 10
    assert max(lows) <= truth * (1 + 1e-9)
    assert lows[0] < 0.9 * truth < 0.99 * truth < lows[10]


def test_a_bracket_that_products_refute_is_given_up() -> None:
    found = EarlyBracket(1.0, 0.5, 1.5, torch.ones(1), 100, reliable=True)
    assert found.above(0.4) is found
    assert found.above(1.2) == replace(found, low=1.2, point=1.2)
    assert found.above(1.6) is None


def test_traces_from_fresh_probes_cover(trained, matrix: torch.Tensor) -> None:
    net, x, y = trained
    truth = float(matrix.trace())
    held = 0
    for seed in range(SEEDS):
        estimate = MEASURES["hessian_trace"](seed=seed, tol=0.1)(Probe(net, (x, y), seed=seed))
        assert estimate.status in (Status.CONVERGED, Status.EXACT)
        held += abs(estimate.value - truth) <= 2 * estimate.stderr + 1e-9
    assert held >= 0.88 * SEEDS  # 0.95 less two standard errors of a share of 40


def test_a_trace_is_read_to_its_tolerance_and_no_further(trained) -> None:
    """Row by row it would be exact after all rows; most of it lies in a few."""
    net, x, y = trained
    truth, held = float(GGN(Probe(net, (x, y))).dense().trace()), 0
    for seed in range(3 * SEEDS):
        found = MEASURES["ggn_trace"](tol=0.1)(Probe(net, (x, y), seed=seed))
        assert found.status is Status.CONVERGED
        assert found.bracket is not None
        assert found.stderr <= 0.1 * found.value
        assert found.cost.passes < 0.7 * 4
        held += found.bracket[0] <= truth <= found.bracket[1]
    assert held >= 0.91 * 3 * SEEDS  # 0.95 less two standard errors of a share of 120
    assert abs(MEASURES["ggn_trace"](tol=1e-9)(Probe(net, (x, y))).value - truth) <= 1e-9 * truth


def test_a_tolerance_is_met_at_the_same_rows_whoever_read_them_before(trained) -> None:
    net, x, y = trained
    alone = MEASURES["ggn_trace"](tol=0.1)(Probe(net, (x, y)))
    for before in (0.5, 1e-3):
        probe = Probe(net, (x, y))
        MEASURES["fisher_trace"](tol=before)(probe)
        assert MEASURES["ggn_trace"](tol=0.1)(probe).value == alone.value


def test_every_early_estimate_of_a_stream_is_honest(trained, matrix: torch.Tensor) -> None:
    net, x, y = trained
    truth = {
        "hessian_top_eigenvalue": float(torch.linalg.eigvalsh(matrix)[-1]),
        "hessian_trace": float(matrix.trace()),
    }
    for name, value in truth.items():
        for seed in range(4):
            for estimate in MEASURES[name](seed=seed).refine(Probe(net, (x, y), seed=seed)):
                if estimate is not None and estimate.status is Status.LOWER_BOUND:
                    assert estimate.value <= value * 1.02, name


class _TanhWithoutTangents(torch.autograd.Function):
    """tanh, twice differentiable backwards and not at all forwards."""

    @staticmethod
    def forward(x):
        return x.tanh()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, slope):
        (output,) = ctx.saved_tensors
        return slope * (1 - output.square())


class _AnotherWay(nn.Module):
    """tanh, by another operation for the rows that few look like."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        rare = x.detach().abs().amax(1) > 100
        return (
            torch.where(rare[:, None], _TanhWithoutTangents.apply(x / 100), x.tanh()) if bool(rare.any()) else x.tanh()
        )


@pytest.mark.parametrize("name", ["hessian_trace", "hessian_top_eigenvalue", "ggn_top_eigenvalue", "hessian_frobenius"])
def test_products_take_over_where_quadratic_forms_of_rows_fail_later(name: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(300, 6, dtype=torch.float64)
    x[7] *= 1000
    net = nn.Sequential(nn.Linear(6, 8), _AnotherWay(), nn.Linear(8, 3)).double()
    with torch.no_grad():
        y = net(x).argmax(1)  # so that the odd row is none of the telling ones
        y[:7] = (y[:7] + 1) % 3
    probe = Probe(net, (x, y))
    assert has_row_quadratics(probe, "hessian")
    found = MEASURES[name]()(probe)
    matrix = dense.hessian(probe) if name.startswith("hessian") else dense.ggn(probe)
    truth = {
        "hessian_trace": matrix.trace,
        "hessian_frobenius": matrix.norm,
    }.get(name, lambda: torch.linalg.eigvalsh(matrix)[-1])()
    assert found.status in (Status.CONVERGED, Status.EXACT), found.reason
    assert found.value == pytest.approx(float(truth), abs=4 * max(found.stderr or 0.0, 1e-9))


def test_nothing_is_asked_of_few_rows_where_products_are_as_fast_and_nobody_waits(trained, monkeypatch) -> None:
    """As on a GPU, where launching operations takes as long for few rows as for many."""
    net, x, y = trained
    probe = Probe(net, (x, y))
    monkeypatch.setitem(early.LAUNCHES, "cpu", probe.activation_bytes * ROWS / 10)
    assert not list(early_brackets(probe, "hessian", 1.0, 0))
    hurried = Probe(net, (x, y))
    with hurried.ledger.limited(passes=100):
        found = [bracket for bracket in early_brackets(hurried, "hessian", 1.0, 0) if bracket is not None]
    assert [bracket.reliable for bracket in found] == [False]
    assert MEASURES["hessian_top_eigenvalue"]()(probe).status is Status.CONVERGED
