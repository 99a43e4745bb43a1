"""IGS at every rank against the dense pseudo-inverse, its saturated value, its batches and its statuses."""

from __future__ import annotations

import copy
import math
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from landscope.core.errors import OperandError
from landscope.core.estimate import Estimate, Status
from landscope.curvature import dense
from landscope.curvature.gram import gram
from landscope.measures.base import MEASURES
from landscope.measures.measuring import measure
from landscope.measures.sharpness import igs
from landscope.measures.sharpness.igs import InformationGeometricSharpness, igs_curve, saturated_igs
from landscope.probe.probe import Probe
from landscope.probe.rows.samples import m_batches

CLASSES = 3


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(9, 4)
        self.encoder = nn.TransformerEncoderLayer(4, 2, 6, batch_first=True)
        self.head = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(x)).mean(1))


def network(name: str) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(1)
    if name == "mlp":
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, CLASSES)), torch.randn(8, 4)
    if name == "conv":
        net = nn.Sequential(
            *(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.AvgPool2d(2)),
            *(nn.Flatten(), nn.Linear(12, CLASSES)),
        )
        return net, torch.randn(8, 1, 6, 6)
    return Tokens(), torch.randint(0, 9, (8, 5))


def probe_of(name: str, **options: float) -> Probe:
    net, x = network(name)
    return Probe(net.double(), (x, torch.arange(len(x)) % CLASSES), **options)  # type: ignore[arg-type]


def dense_igs(probe: Probe, rank: int) -> float:
    """(1/n) Σ_i g_iᵀ F_m⁺ g_i with F_m the dense Fisher matrix cut to its largest eigenpairs."""
    values, vectors = torch.linalg.eigh(dense.fisher(probe))
    values, vectors = values[-rank:], vectors[:, -rank:]
    inverse = vectors @ torch.diag(1 / values) @ vectors.T
    total = 0.0
    for sample in next(probe.batches()).pieces(1):
        leaves = {name: p.clone().requires_grad_() for name, p in probe.params.items()}
        grads = torch.autograd.grad(probe.loss_sum(leaves, sample), list(leaves.values()), materialize_grads=True)
        g = torch.cat([grad.flatten() for grad in grads])
        total += float(g @ inverse @ g)
    return total / probe.n_samples


@pytest.mark.parametrize("name", ["mlp", "conv", "tokens"])
@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_every_rank_against_the_dense_pseudo_inverse(name: str, temperature: float) -> None:
    probe = probe_of(name, temperature=temperature)
    with probe.measuring():
        curve = igs_curve(gram(probe, next(probe.batches())))
        assert len(curve) >= 10
        for rank in range(1, len(curve) + 1):
            assert float(curve[rank - 1]) == pytest.approx(dense_igs(probe, rank), rel=1e-8)
    estimate = InformationGeometricSharpness(rank=5, batch_size=8)(probe)
    assert estimate.value == pytest.approx(dense_igs(probe, 5), rel=1e-8)
    assert estimate.details["curve"][:10] == pytest.approx(curve[:10].tolist(), rel=1e-12)  # type: ignore[index]


def wide_probe(n: int = 12, dtype: torch.dtype = torch.float64) -> Probe:
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(10, 200), nn.Tanh(), nn.Linear(200, CLASSES))
    return Probe(net, (torch.randn(n, 10), torch.arange(n) % CLASSES), dtype=dtype)


def test_full_rank_is_a_function_of_the_loss() -> None:
    probe = wide_probe()
    batch = next(probe.batches())
    z = probe.outputs(probe.params, batch)
    assert isinstance(z, Tensor)
    p = z.softmax(1).gather(1, (torch.arange(12) % CLASSES)[:, None])
    formula = float((1 / p - 1).sum())
    matrix = gram(probe, batch)
    curve = igs_curve(matrix)
    assert len(curve) == 12 * (CLASSES - 1)
    assert float(curve[-1]) == pytest.approx(formula, rel=1e-9)
    assert float(saturated_igs(matrix)) == pytest.approx(formula, rel=1e-12)
    details = InformationGeometricSharpness(rank=3, batch_size=12)(probe).details
    assert details["saturated"] == pytest.approx(formula, rel=1e-9)
    assert details["saturated_formula"] == pytest.approx(formula, rel=1e-12)


def test_full_rank_in_single_precision() -> None:
    single, double = wide_probe(dtype=torch.float32), wide_probe()
    a, b = (InformationGeometricSharpness(rank=4, batch_size=12)(probe) for probe in (single, double))
    assert a.value == pytest.approx(b.value, rel=1e-4)
    assert a.details["saturated"] == pytest.approx(b.details["saturated"], rel=1e-4)


def test_probabilities_as_targets() -> None:
    """Soft labels: the gradient is that of the loss, and the saturated value Σ_i r_iᵀ Λ_i⁺ r_i."""
    torch.manual_seed(0)
    y = torch.rand(6, CLASSES).softmax(1)
    net = nn.Sequential(nn.Linear(10, 200), nn.Tanh(), nn.Linear(200, CLASSES)).double()
    probe = Probe(net, (torch.randn(6, 10), y))
    batch = next(probe.batches())
    z = probe.outputs(probe.params, batch)
    assert isinstance(z, Tensor)
    p = z.softmax(1)
    truth = sum(
        float((q - t) @ torch.linalg.pinv(torch.diag(q) - torch.outer(q, q)) @ (q - t))
        for q, t in zip(p, y.double(), strict=True)
    )
    assert float(igs_curve(gram(probe, batch))[-1]) == pytest.approx(truth, rel=1e-8)


def test_mean_over_batches_plain_and_of_the_logarithm() -> None:
    probe = wide_probe(30)
    measure = InformationGeometricSharpness(rank=4, batch_size=7, batches=None, seed=5)
    values = [float(igs_curve(gram(probe, batch))[3]) for batch in m_batches(probe, 7, None, 5)]
    assert len(values) == 4
    estimate = measure(probe)
    mean = sum(values) / 4
    spread = math.sqrt(sum((v - mean) ** 2 for v in values) / 3 / 4)
    assert estimate.value == pytest.approx(mean, rel=1e-12)
    assert estimate.data_stderr == pytest.approx(spread, rel=1e-9)
    assert estimate.details["mean_log"] == pytest.approx(sum(map(math.log, values)) / 4, rel=1e-12)
    assert estimate.stderr == 0
    assert estimate.status is Status.EXACT
    ranks, curve = estimate.details["ranks"], estimate.details["curve"]
    assert curve[ranks.index(4)] == pytest.approx(mean, rel=1e-12)  # type: ignore[index, union-attr, arg-type]
    logs = estimate.details["mean_log_curve"]
    assert logs[ranks.index(4)] == pytest.approx(estimate.details["mean_log"], rel=1e-12)  # type: ignore[index, union-attr, arg-type]
    assert replaced(measure, batches=2)(probe).details["batches"] == 2


def replaced(measure: InformationGeometricSharpness, batches: int) -> InformationGeometricSharpness:
    return InformationGeometricSharpness(
        rank=measure.rank, batch_size=measure.batch_size, batches=batches, seed=measure.seed
    )


def test_the_loaders_batches_do_not_matter() -> None:
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(10, 20), nn.Tanh(), nn.Linear(20, CLASSES)).double()
    data = TensorDataset(torch.randn(30, 10).double(), torch.arange(30) % CLASSES)
    values = {
        size: InformationGeometricSharpness(rank=3, batch_size=8)(Probe(net, DataLoader(data, batch_size=size))).value
        for size in (1, 7, 30)
    }
    assert values[1] == pytest.approx(values[7], rel=1e-10)
    assert values[1] == pytest.approx(values[30], rel=1e-10)


def test_a_rank_that_is_the_loss_in_disguise() -> None:
    probe = wide_probe()
    low, high = (InformationGeometricSharpness(rank=rank, batch_size=12)(probe) for rank in (2, 24))
    assert low.status is Status.EXACT
    assert high.status is Status.SATURATED
    assert "loss in disguise" in high.reason
    assert high.value == pytest.approx(high.details["saturated"], rel=1e-12)
    beyond = InformationGeometricSharpness(rank=1000, batch_size=12)(probe)
    assert (beyond.value, beyond.status) == (high.value, Status.SATURATED)


def test_curves_of_large_matrices_are_thinned() -> None:
    torch.manual_seed(0)
    probe = Probe(nn.Linear(30, 10), (torch.randn(64, 30), torch.arange(64) % 10))
    estimate = InformationGeometricSharpness(rank=123, batch_size=64)(probe)
    ranks, curve = estimate.details["ranks"], estimate.details["curve"]
    assert isinstance(ranks, list)
    assert isinstance(curve, list)
    assert len(ranks) == len(curve) <= 201
    assert 123 in ranks
    assert ranks[0] == 1
    assert ranks[-1] == 640
    assert curve == sorted(curve)  # type: ignore[type-var]


def test_predictions_without_doubt_have_no_sharpness_and_no_logarithm() -> None:
    """Probabilities that are 0 and 1 to the last digit: F = 0 and every gradient is 0."""
    net = nn.Linear(2, 2, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(2000 * torch.eye(2))
    estimate = InformationGeometricSharpness(rank=1)(Probe(net, (torch.eye(2), torch.arange(2))))
    assert estimate.value == 0
    assert estimate.details["mean_log"] is None
    assert Estimate.from_json(estimate.to_json()) == estimate


def test_regression_is_not_applicable() -> None:
    estimate = InformationGeometricSharpness()(Probe(nn.Linear(2, 1), (torch.randn(5, 2), torch.randn(5, 1)), "mse"))
    assert estimate.status is Status.NOT_APPLICABLE
    assert "class probabilities" in estimate.reason


@pytest.mark.parametrize("mode", ["eval", "batch_statistics"])
def test_batch_statistics(mode: str) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, CLASSES)).double()
    x, y = torch.randn(16, 4), torch.arange(16) % CLASSES
    probe = Probe(net, [(x[:8], y[:8]), (x[8:], y[8:])], mode=mode)  # type: ignore[arg-type]
    estimate = InformationGeometricSharpness(rank=4, batch_size=8)(probe)
    assert estimate.status is Status.EXACT
    assert estimate.details["batches"] == 2
    assert estimate.value > 0


def test_neurons_may_be_permuted_and_logits_shifted_but_layers_not_rescaled() -> None:
    probe = probe_of("mlp")
    net, x = network("mlp")
    measure = InformationGeometricSharpness(rank=4, batch_size=8)
    truth = measure(probe).value
    order = torch.randperm(8)
    permuted, shifted, scaled = copy.deepcopy(net), copy.deepcopy(net), copy.deepcopy(net)
    with torch.no_grad():
        first, last = permuted[0], permuted[2]
        first.weight.copy_(net[0].weight[order])
        first.bias.copy_(net[0].bias[order])
        last.weight.copy_(net[2].weight[:, order])
        shifted[2].weight.add_(torch.randn(8))
        shifted[2].bias.add_(0.7)
        scaled[0].weight.mul_(3)
        scaled[0].bias.mul_(3)
        scaled[2].weight.div_(3)
    data = (x, torch.arange(len(x)) % CLASSES)
    assert measure(Probe(permuted.double(), data)).value == pytest.approx(truth, rel=1e-9)
    assert measure(Probe(shifted.double(), data)).value == pytest.approx(truth, rel=1e-6)
    assert abs(measure(Probe(scaled.double(), data)).value / truth - 1) > 0.01
    full = InformationGeometricSharpness(rank=16, batch_size=8)
    assert full(Probe(scaled.double(), data)).value == pytest.approx(full(probe).value, rel=1e-6)


def test_cost_and_budget() -> None:
    probe = wide_probe(30)
    measure = InformationGeometricSharpness(rank=2, batch_size=6)
    estimate = measure(probe)
    assert estimate.cost.passes == pytest.approx((CLASSES + 4) / 3)
    assert measure(probe).cost.passes == 0  # it is known
    fresh = wide_probe(30)
    with fresh.ledger.limited(passes=estimate.cost.passes * 0.5):
        cut = measure(fresh)
    assert cut.status in (Status.BUDGET_SPENT, Status.LOWER_BOUND)
    assert "3 of 5 batches" in cut.reason
    again = measure(fresh)  # what was cut short is not remembered
    assert again.status is Status.EXACT
    assert again.value == estimate.value


def test_another_rank_costs_nothing() -> None:
    probe = wide_probe(30)
    InformationGeometricSharpness(rank=2, batch_size=6)(probe)
    more = InformationGeometricSharpness(rank=5, batch_size=6)
    shared, alone = more(probe), more(wide_probe(30))
    assert shared.cost.passes == 0 < alone.cost.passes
    assert shared.value == alone.value
    assert shared.details == alone.details
    other = InformationGeometricSharpness(rank=2, batch_size=10)(probe)
    assert other.cost.passes > 0  # other batches are another measure


@pytest.mark.parametrize("mode", ["eval", "batch_statistics"])
def test_other_temperatures_come_from_the_same_gram_matrices(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, CLASSES)).double()
    with torch.no_grad():
        net[3].weight.mul_(5)
    batches = [(torch.randn(8, 4), torch.arange(8) % CLASSES) for _ in range(3)]
    probe = Probe(net, batches, mode=mode, temperature=0.7)  # type: ignore[arg-type]
    warm, hot = probe.at_temperature(2.0), probe.at_temperature(5.0)
    calls: list[Probe] = []
    monkeypatch.setattr(igs, "gram", lambda *given: calls.append(given[0]) or gram(*given))
    measured = InformationGeometricSharpness(rank=4, batch_size=8)
    first = measured(warm)
    assert calls == [warm] * 3
    found = [measured(each) for each in (probe, hot)]
    assert calls == [warm] * 3
    assert [each.cost.passes for each in found] == [0, 0]
    for temperature, each in [(0.7, found[0]), (2.0, first), (5.0, found[1])]:
        alone = measured(Probe(net, batches, mode=mode, temperature=temperature))  # type: ignore[arg-type]
        assert each.value == pytest.approx(alone.value, rel=1e-9)
        assert each.details["curve"] == pytest.approx(alone.details["curve"], rel=1e-6)
    assert first.value != pytest.approx(found[1].value, rel=0.01)


def test_probes_of_other_parameters_or_weights_share_nothing() -> None:
    probe = wide_probe(12)
    measured = InformationGeometricSharpness(rank=2, batch_size=6)
    others = [probe.restrict("0"), probe.with_model(lambda net: net[0].weight.mul_(2))]
    measured(probe)
    for other in others:
        assert list(other.alike) == [other]
        assert measured(other).cost.passes > 0


def test_the_model_is_untouched() -> None:
    net, x = network("conv")
    before = copy.deepcopy(net.state_dict())
    InformationGeometricSharpness(batch_size=4)(Probe(net, (x, torch.arange(len(x)) % CLASSES)))
    assert net.training
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert all(p.grad is None and p.requires_grad for p in net.parameters())
    assert all(not module._forward_hooks for module in net.modules())


@pytest.mark.parametrize("settings", [{"rank": 0}, {"batch_size": -1}, {"batches": 0}, {"rank": 2.5}])
def test_settings_are_checked(settings: dict[str, int]) -> None:
    with pytest.raises(OperandError, match=f"igs: {next(iter(settings))} must be"):
        InformationGeometricSharpness(**settings)


def test_it_is_registered() -> None:
    assert MEASURES["igs"] is InformationGeometricSharpness


def test_a_prediction_that_is_surely_wrong_can_be_written_down(tmp_path: Path) -> None:
    net = torch.nn.Linear(4, 3).double()
    net.weight.data *= 5000
    x = torch.randn(20, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    report = measure(net, (x, torch.arange(20) % 3), ["igs"])
    assert report["igs"].details["saturated_formula"] is None
    report.save(tmp_path / "report.json")
