"""What the papers' code computed, against slow references written from their formulas."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from networks import BY_NAME, Residual
from papers_made import measures_of
from torch import Tensor, nn

import landscope
from landscope import MEASURES, Estimate, Probe, Status
from landscope.core.errors import NotApplicableError, UnknownNameError
from landscope.core.seeding import generator, normal
from landscope.curvature import dense
from landscope.data.augment import Augmentation
from landscope.measures.sharpness.fisher_rao import FisherRao
from landscope.measures.sharpness.gradients import L2Norm
from landscope.measures.sharpness.igs import InformationGeometricSharpness
from landscope.measures.sharpness.relative_flatness import RelativeFlatness, RelativeFlatnessLayerwise
from landscope.papers import PAPERS
from landscope.papers.adaptive_sharpness.as_published import (
    FewRestartsSharpness,
    MovedCentreSharpness,
    UnsignedBallSharpness,
)
from landscope.papers.explicit_regularisation.as_published import ClassifierNorm, LogIGS
from landscope.papers.explicit_regularisation.folded_features import FoldedRelativeFlatness, samples_between
from landscope.papers.explicit_regularisation.state_noise import RedrawnSamplesSharpness, StateNoiseSharpness
from landscope.papers.false_friend.as_published import MeanEigenvalue, MeanSquaredEigenvalue, SmallestRitzValue
from landscope.papers.fam.as_published import FAMLayerwise, FAMNeuronwise
from landscope.papers.framework.compare import in_unit
from landscope.papers.function_centric.as_published import CountedFisherRao, RedrawnCropsSharpness

METRICS = {
    "explicit-regularisation": {"weight_norm", "fisher_rao", "relative_flatness", "sam_sharpness", "log_igs"},
    "function-centric": {"fisher_rao", "relative_flatness", "sam_sharpness"},
    "false-friend": {"hessian_top_eigenvalue", "hessian_bottom_eigenvalue", "hessian_trace", "hessian_frobenius"},
    "fam": {"relative_flatness", "relative_flatness_layerwise"},
    "adaptive-sharpness": {"adaptive_sharpness_fcnn", "adaptive_sharpness_lenet5", "adaptive_sharpness_gat"},
}
N = 22


def seeded(make: Callable[[], nn.Module], seed: int = 3) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return make().double()


def mlp(seed: int = 3, bias: bool = True) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(4, 6, bias), nn.ReLU(), nn.Linear(6, 3, bias)), seed)


class ConvNet(nn.Module):
    """The end of paper 1's VGG in small: conv, BatchNorm, ReLU, pooling, dropout, then the classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(2, 6, 3), nn.BatchNorm2d(6), nn.ReLU())
        self.dropout, self.classifier = nn.Dropout(0.3), nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.classifier(self.dropout(self.features(x).mean((2, 3))))


def conv_net() -> nn.Module:
    def make() -> nn.Module:
        net = ConvNet()
        net.features[1].running_mean.normal_(0, 0.2)
        net.features[1].running_var.uniform_(0.5, 2)
        return net

    return seeded(make)


def vectors(n: int = N, seed: int = 0, classes: int = 3) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=g, dtype=torch.float64), torch.randint(0, classes, (n,), generator=g)


def images(n: int = N) -> tuple[Tensor, Tensor]:
    return BY_NAME["residual_batchnorm"].data(n)


KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[Tensor, Tensor]]] = {
    "mlp": (mlp, vectors()),
    "conv_batchnorm": (conv_net, images()),
    "residual_batchnorm": (lambda: BY_NAME["residual_batchnorm"].model(), images()),
}


def rel(value: float) -> object:
    return pytest.approx(value, rel=1e-8)


# What all have in common


def test_every_metric_of_the_tables_has_its_measure() -> None:
    assert {name for name in PAPERS if PAPERS[name].measures} == set(METRICS)
    for name, metrics in METRICS.items():
        assert metrics <= set(PAPERS[name].measures)


@pytest.mark.parametrize("name", METRICS)
def test_every_measure_says_how_it_differs_from_which_corrected_one(name: str) -> None:
    paper, published, corrected = PAPERS[name], measures_of(name), measures_of(name, "corrected")
    assert paper.setup
    for key, one in paper.measures.items():
        assert len(one.difference) > 60
        assert f"`{corrected[key].key}" in one.difference.partition("Corrected: ")[2]
        assert MEASURES[corrected[key].key] is type(corrected[key])
        assert MEASURES[published[key].key] is type(published[key])
        assert published[key] != corrected[key]


def test_what_papers_computed_is_not_listed_among_all_measures() -> None:
    assert "fam/neuronwise" in MEASURES
    assert not [name for name in MEASURES if "/" in name]
    with pytest.raises(UnknownNameError, match="did you mean 'fam/neuronwise'"):
        MEASURES["fam/neuronwse"]
    with pytest.raises(UnknownNameError, match="unknown measure 'famous/loss'"):
        MEASURES["famous/loss"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", METRICS)
def test_every_preset_gives_values_or_reasons_and_touches_nothing(name: str, kind: str) -> None:
    make, data = KINDS[kind]
    paper, model = PAPERS[name], make().train()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    inner = {k: v.clone() for k, v in Probe(model, data).module("").state_dict().items()}
    rng = torch.get_rng_state()
    for which in ("published", "corrected"):
        measures = measures_of(name, which)
        probe = Probe(model, data)
        report = landscope.measure(probe, measures=measures)
        again = landscope.measure(Probe(model, data), measures=measures)
        for key in measures:
            estimate = report[key]
            if estimate.status.has_value:
                assert math.isfinite(estimate.value)
            else:
                assert estimate.status is Status.NOT_APPLICABLE
                assert estimate.reason
            assert Estimate.from_json(estimate.to_json()).to_dict() == estimate.to_dict()
            assert again[key].to_dict()["value"] == estimate.to_dict()["value"]
            if which == "corrected" and estimate.status.has_value:
                assert math.isfinite(in_unit(estimate, paper.measures[key].unit))
        assert all(torch.equal(v, inner[k]) for k, v in probe.module("").state_dict().items())
        assert not any(module.training or module._forward_hooks for module in probe.modules.values())
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert model.training
    assert torch.equal(rng, torch.get_rng_state())


@pytest.mark.parametrize("name", METRICS)
def test_float32_a_temperature_a_regression_and_batch_statistics_end_with_a_value_or_a_reason(name: str) -> None:
    x, y = images()
    measures = measures_of(name)
    cut = [(x[a : a + 11], y[a : a + 11]) for a in (0, 11)]
    probes = [
        Probe(conv_net(), (x, y), dtype=torch.float32, temperature=1.5),
        Probe(conv_net(), (x, F.one_hot(y, 3).double()), "mse"),
        Probe(conv_net(), cut, mode="batch_statistics"),
    ]
    for probe in probes:
        report = landscope.measure(probe, measures=measures)
        for key in measures:
            assert report[key].status.has_value or report[key].status is Status.NOT_APPLICABLE, report[key].reason


# Paper 1 and 2


def test_the_weight_norm_is_the_squared_norm_of_the_classifier() -> None:
    model = mlp()
    probe = Probe(model, vectors())
    assert ClassifierNorm()(probe).value == rel(float(model[2].weight.detach().square().sum()))
    assert ClassifierNorm(layer="0")(probe).value == rel(float(model[0].weight.detach().square().sum()))
    assert ClassifierNorm()(probe).value != pytest.approx(L2Norm()(probe).value, rel=0.05)
    head = nn.Linear(4, 3, bias=False).double()
    with torch.no_grad():
        head.weight /= head.weight.norm()  # a classifier alone, of norm one: nothing to slip on
    one = Probe(head, vectors())
    assert ClassifierNorm()(one).value == rel(L2Norm()(one).value)


@pytest.mark.parametrize("temperature", [1.0, 2.5])
def test_fisher_rao_is_the_formula_with_six_layers(temperature: float) -> None:
    model, (x, y) = mlp(), vectors()
    z = model(x).detach() / temperature
    squares = ((z.softmax(1) * z).sum(1) - z[torch.arange(N), y]).square().mean()
    published = measures_of("explicit-regularisation")["fisher_rao"]
    assert published(Probe(model, (x, y), temperature=temperature)).value == rel(6 * float(squares) ** 0.5)


def test_fisher_rao_of_paper_2_counts_one_layer_too_many() -> None:
    probe = Probe(mlp(bias=False), vectors())
    true = FisherRao(root=True, labels="data")(probe).value
    assert CountedFisherRao()(probe).value == rel(1.5 * true)
    assert CountedFisherRao()(Probe(conv_net(), images())).details["layers"] == 3


def noisy_loss(
    model: nn.Module, scale: float, seed: int, index: int, buffers: bool, temperature: float | None
) -> float:
    """The loss of a copy with noise on its state, drawn in the order of the state dict."""
    twin, rng = copy.deepcopy(model).eval(), generator(seed, "state noise", index)
    parameters = dict(twin.named_parameters())
    with torch.no_grad():
        for name, entry in twin.state_dict().items():
            if entry.is_floating_point():
                noise = scale * normal(entry.shape, rng, torch.float32).double()
                if buffers or name in parameters:
                    entry += noise
        t = 1.0 if temperature is None else temperature + scale * float(normal((1,), rng, torch.float32))
        x, y = images() if isinstance(model, ConvNet) else vectors()
        return float(F.cross_entropy(twin(x) / t, y))


@pytest.mark.parametrize("make", [mlp, conv_net])
def test_noise_on_the_state_hits_the_statistics_of_batchnorm(make: Callable[[], nn.Module]) -> None:
    model = make()
    data = images() if isinstance(model, ConvNet) else vectors()
    count = sum(p.numel() for p in model.parameters())
    scale = 0.5 / count**0.5
    probe = Probe(model, data)
    base = probe.value()

    def changes(buffers: bool) -> list[float]:
        return [(noisy_loss(model, scale, 0, j, buffers, None) - base) / 0.5 for j in range(4)]

    found = StateNoiseSharpness(rho=0.5, samples=4)(probe)
    assert found.value == rel(max(changes(True)))
    assert found.details["changes"] == pytest.approx(changes(True), rel=1e-8)
    mean = StateNoiseSharpness(rho=0.5, samples=4, statistic="mean_abs")(probe)
    assert mean.value == rel(sum(map(abs, changes(True))) / 4)
    if make is mlp:  # no buffers: the same as noise on the parameters
        assert found.value == rel(max(changes(False)))
    else:
        assert found.value != pytest.approx(max(changes(False)), rel=1e-3)


def test_noise_on_the_state_hits_the_temperature_of_paper_1() -> None:
    model = mlp()
    count = sum(p.numel() for p in model.parameters())
    probe = Probe(model, vectors(), temperature=2.0)
    losses = [noisy_loss(model, 0.5 / (count + 1) ** 0.5, 0, j, True, 2.0) for j in range(3)]
    found = StateNoiseSharpness(rho=0.5, samples=3, temperature=True)(probe)
    assert found.value == rel((max(losses) - probe.value()) / 0.5)
    assert found.value != pytest.approx(StateNoiseSharpness(rho=0.5, samples=3)(probe).value, rel=1e-3)


def test_redrawn_samples_give_the_noise_of_a_mean_over_half_of_them() -> None:
    net, (x, y) = mlp(), vectors(4000)
    probe = Probe(net, (x, y))
    values = [RedrawnSamplesSharpness(noise=False, seed=seed)(probe).value for seed in range(60)]
    spread = float(F.cross_entropy(net(x), y, reduction="none").detach().std())
    # the mean over a random half has variance sd²/n around that of all; the largest of 20 normal numbers is 1.87 on average
    assert sum(values) / len(values) == pytest.approx(1.87 * spread / math.sqrt(4000) / 0.05, rel=0.15)
    still, moved = (RedrawnSamplesSharpness(rho=1e-9, noise=noise)(probe).value for noise in (False, True))
    assert moved == pytest.approx(still, rel=1e-2)


def test_noise_that_turns_a_variance_negative_is_a_reason_not_a_number() -> None:
    model = conv_net()
    model.features[1].running_var.fill_(1e-6)
    model.features[1].eps = 0.0
    found = StateNoiseSharpness(rho=5.0)(Probe(model, images()))
    assert found.status is Status.NOT_APPLICABLE
    assert "running variance" in found.reason


def summed_flatness(model: nn.Module, layer: str, x: Tensor, y: Tensor, batch_size: int, features: Tensor) -> float:
    """Σ over batches of Σ_{s,s'} ⟨w_s, w_s'⟩ tr H_{s,s'} after the edit, from dense Hessians."""
    twin = copy.deepcopy(model).eval().requires_grad_(False)
    deviation = features.std(0, unbiased=False)
    weight = twin.get_submodule(layer).weight
    named = [p for _, p in twin.named_parameters()]
    at = next(i for i, p in enumerate(named) if p is weight)
    for row, sigma in enumerate(deviation):
        for p in named[at - 2 : at]:
            p[row] /= sigma if sigma > 0 else 1.0
        weight[:, row] *= sigma
    total = 0.0
    for a in range(0, len(x), batch_size):
        part, labels = x[a : a + batch_size], y[a : a + batch_size]

        def loss(w: Tensor, part: Tensor = part, labels: Tensor = labels) -> Tensor:
            return F.cross_entropy(torch.func.functional_call(twin, {f"{layer}.weight": w}, (part,)), labels)

        hessian = torch.autograd.functional.hessian(loss, weight)
        total += float(torch.einsum("sa,ta,sbtb->", weight, weight, hessian))
    return total


@pytest.mark.parametrize("batch_size", [N, 11, 8])
@pytest.mark.parametrize("kind", KINDS)
def test_folded_relative_flatness_is_the_sum_over_batches_at_the_edited_model(kind: str, batch_size: int) -> None:
    make, (x, y) = KINDS[kind]
    model = make().eval()
    with torch.no_grad():
        if kind == "mlp":
            layer, features = "2", model[:2](x)
        elif kind == "conv_batchnorm":
            layer, features = "classifier", model.features(x).mean((2, 3))
        else:
            first = F.relu(model.bn1(model.conv1(x)))
            layer, features = "fc", F.relu(model.bn2(model.conv2(first)) + first).mean((2, 3))
    probe = Probe(model, (x, y))
    found = FoldedRelativeFlatness(batch_size=batch_size)(probe)
    assert found.value == rel(summed_flatness(model, layer, x, y, batch_size, features))
    assert found.details["batches"] == math.ceil(N / batch_size)
    mean = RelativeFlatness(normalise=True)(probe).value
    if kind == "residual_batchnorm":  # the edit is not function preserving before a shortcut
        assert found.details["mean"] != pytest.approx(mean, rel=1e-2)
    else:
        assert found.details["mean"] == rel(mean)
        if N % batch_size == 0:
            assert found.value == rel(mean * N / batch_size)


def test_a_dead_feature_loses_its_weights() -> None:
    model, data = mlp(), vectors()
    with torch.no_grad():
        model[0].bias[2] = -100.0
    probe = Probe(model, data)
    found = FoldedRelativeFlatness()(probe)
    assert found.details["constant_features"] == 1
    assert found.value != pytest.approx(RelativeFlatness(normalise=True)(probe).value, rel=1e-3)
    with torch.no_grad():
        model[2].weight[:, 2] = 0.0
    assert found.value == rel(RelativeFlatness(normalise=True)(Probe(model, data)).value)


def test_relative_flatness_of_paper_1_looks_at_the_first_samples_only() -> None:
    (x, y), model = vectors(), mlp()
    first = FoldedRelativeFlatness(first=9, batch_size=9)(Probe(model, [(x[:7], y[:7]), (x[7:], y[7:])]))
    assert first.value == rel(FoldedRelativeFlatness()(Probe(model, (x[:9], y[:9]))).value)
    assert first.value != pytest.approx(FoldedRelativeFlatness()(Probe(model, (x, y))).value, rel=1e-3)
    more = FoldedRelativeFlatness(first=7500, batch_size=7500)(Probe(model, (x, y)))
    assert more.value == FoldedRelativeFlatness()(Probe(model, (x, y))).value


def test_what_the_edit_cannot_do_is_not_applicable() -> None:
    flat = seeded(lambda: nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 3)))
    found = FoldedRelativeFlatness()(Probe(flat, images()))
    assert found.status is Status.NOT_APPLICABLE
    assert "27 features; 0.weight has 3 rows" in found.reason


def test_a_part_of_the_data_keeps_the_point() -> None:
    x, y = vectors()
    probe = Probe(mlp(), [(x[:5], y[:5]), (x[5:], y[5:])], temperature=2.0, params=["0.weight"])
    part = samples_between(probe, 3, 8)
    assert part.value() == rel(Probe(mlp(), (x[3:8], y[3:8]), temperature=2.0).value())
    assert part.space == probe.space
    assert part.ledger is probe.ledger


def test_log_igs_is_the_logarithm_at_rank_three() -> None:
    probe = Probe(mlp(), vectors())
    values, vectors_ = torch.linalg.eigh(dense.fisher(probe))
    top, inverse = vectors_[:, -3:], 1 / values[-3:]
    truth = float((torch.einsum("pk,pq,qk->k", top, dense.empirical_fisher(probe), top) * inverse).sum())
    found = measures_of("explicit-regularisation")["log_igs"]
    assert found.with_settings(batch_size=N, batches=1)(probe).value == rel(math.log(truth))
    several = LogIGS(batch_size=5)(probe)
    plain = InformationGeometricSharpness(rank=3, batch_size=5)(probe)
    assert several.details["igs"] == plain.value
    assert several.value < math.log(plain.value)  # the mean of logarithms is below the logarithm of the mean
    assert several.value != pytest.approx(LogIGS(rank=6, batch_size=5)(probe).value, rel=1e-3)


# Paper 3


def test_ritz_values_of_a_full_run_are_eigenvalues_and_means_are_per_parameter() -> None:
    probe = Probe(mlp(), vectors())
    values = torch.linalg.eigvalsh(dense.hessian(probe))
    units = {key: one.unit for key, one in PAPERS["false-friend"].measures.items()}
    report = landscope.measure(probe, measures=measures_of("false-friend"))
    assert report["hessian_top_eigenvalue"].value == rel(float(values[-1]))
    assert report["hessian_bottom_eigenvalue"].value == pytest.approx(float(values[0]), rel=1e-7)
    for key, truth in (("hessian_trace", values.mean()), ("hessian_frobenius", values.square().mean())):
        assert 0 < abs(report[key].value - float(truth)) < 5 * report[key].stderr
    corrected = landscope.measure(Probe(mlp(), vectors()), measures=measures_of("false-friend", "corrected"))
    assert in_unit(corrected["hessian_trace"], units["hessian_trace"]) == pytest.approx(float(values.mean()), rel=0.1)
    assert in_unit(corrected["hessian_frobenius"], units["hessian_frobenius"]) == pytest.approx(
        float(values.square().mean()), rel=0.1
    )


def test_few_steps_fall_short_and_one_vector_of_a_multiple_of_the_identity_does_not() -> None:
    probe = Probe(mlp(), vectors())
    values = torch.linalg.eigvalsh(dense.hessian(probe))
    assert MEASURES["hessian_spectrum"](steps=3, probes=1)(probe).value < float(values[-1]) * (1 - 1e-3)
    assert SmallestRitzValue(steps=3)(probe).value > float(values[0]) + 1e-3
    bowl = Probe(nn.Linear(4, 1, bias=False).double(), (2 * torch.eye(4).double(), torch.zeros(4, 1)), "mse")  # H = 2 I
    assert MeanEigenvalue()(bowl).value == rel(2.0)
    assert MeanSquaredEigenvalue()(bowl).value == rel(4.0)


def test_the_published_frobenius_norms_can_only_be_mean_squares() -> None:
    for top, published, parameters in ((387.8, 0.02, 15.3e6), (10.11, 1e-4, 15.3e6)):
        assert top**2 / parameters <= published < top / parameters**0.5


# Paper 4


def layer_hessian(model: nn.Module, name: str, x: Tensor, y: Tensor) -> Tensor:
    """(out, in, out, in)."""
    weight = dict(model.named_parameters())[name].detach()
    call = torch.func.functional_call
    return torch.autograd.functional.hessian(lambda w: F.cross_entropy(call(model, {name: w}, (x,)), y), weight)


def test_confused_axes_are_the_wrong_slices_of_the_layer_hessian() -> None:
    model, (x, y) = mlp(), vectors()
    hessian, w = layer_hessian(model, "2.weight", x, y), model[2].weight.detach()
    slip = sum(float(w[i] @ w[j] * hessian[:, j, i, :].trace()) for i in range(3) for j in range(3)) / 6
    right = float(torch.einsum("sa,ta,sbtb->", w, w, hessian)) / 6
    probe = Probe(model, (x, y))
    assert FAMNeuronwise()(probe).value == rel(slip)
    assert FAMNeuronwise(axes="in_out")(probe).value == rel(right)
    assert slip != pytest.approx(right, rel=0.05)
    assert RelativeFlatness()(probe).value == rel(6 * right)


def test_confused_axes_of_one_weight_are_right() -> None:
    probe = Probe(nn.Linear(1, 1).double(), (vectors()[0][:, :1], vectors()[0][:, 1:2]), "mse")
    assert FAMNeuronwise()(probe).value == rel(RelativeFlatness()(probe).value)


def test_where_the_code_fails_or_does_not_end_is_not_applicable() -> None:
    probe = Probe(mlp(), vectors())
    assert "more neurons than inputs" in FAMNeuronwise(layer="0")(probe).reason
    assert "max_products allows 8" in FAMNeuronwise(max_products=8)(probe).reason
    conv = Probe(conv_net(), images())
    assert FAMNeuronwise(layer="features.0")(conv).status is Status.NOT_APPLICABLE
    assert FAMLayerwise(layer="features.0")(conv).status.has_value


@pytest.mark.parametrize("norm", [1.0, 3.0])
def test_the_layerwise_norm_is_not_squared(norm: float) -> None:
    model, (x, y) = mlp(), vectors()
    with torch.no_grad():
        model[2].weight *= norm / model[2].weight.norm()
    probe = Probe(model, (x, y))
    trace = float(torch.einsum("abab->", layer_hessian(model, "2.weight", x, y)))
    found = FAMLayerwise(approximate=False)(probe).value
    assert found == rel(norm * trace)
    corrected = RelativeFlatnessLayerwise()(probe).value
    assert corrected == rel(norm * found)
    assert (found == rel(corrected)) is (norm == 1.0)
    estimated = FAMLayerwise()(probe)
    assert 0 < abs(estimated.value - found) < 5 * estimated.stderr


def test_the_trace_estimate_stops_when_its_mean_stands_still() -> None:
    bowl = Probe(nn.Linear(4, 1, bias=False).double(), (torch.eye(4).double(), torch.zeros(4, 1)), "mse")
    assert FAMLayerwise()(bowl).details["draws"] == 2  # vᵀHv is the same for every v
    assert FAMLayerwise(max_probes=7)(Probe(mlp(), vectors())).details["draws"] <= 7


# Paper 5


def regressor(seed: int = 1) -> nn.Module:
    return seeded(lambda: nn.Sequential(nn.Linear(4, 5), nn.ELU(), nn.Linear(5, 1)), seed)


def full_data_ascent(model: nn.Module, x: Tensor, y: Tensor, rho: float, lr: float, epochs: int, radius: str) -> float:
    twin = copy.deepcopy(model)
    start = [p.detach().clone() for p in twin.parameters()]
    best, kept = 0.0, math.nan
    for _ in range(epochs):
        total = 0.0
        for _ in range(math.ceil(len(x) / 8)):
            grads = torch.autograd.grad(F.mse_loss(twin(x), y), list(twin.parameters()))
            with torch.no_grad():
                for p, g, c in zip(twin.parameters(), grads, start, strict=True):
                    r = rho * (c.abs() if radius == "absolute" else c)
                    p.copy_(torch.minimum(torch.maximum(p + lr * g, c - r), c + r))
                total += float(F.mse_loss(twin(x), y))
        if total > best:
            best, kept = total, float(F.mse_loss(twin(x), y).detach())
    return kept - float(F.mse_loss(model(x), y).detach())


@pytest.mark.parametrize("positive", [True, False])
def test_the_ball_without_absolute_values(positive: bool) -> None:
    model, (x, _) = regressor(), vectors()
    y = x.sum(1, keepdim=True)
    if positive:
        with torch.no_grad():
            for p in model.parameters():
                p.abs_()
    found = UnsignedBallSharpness(rho=0.05, learning_rate=0.1, batch_size=8, epochs=2)(Probe(model, (x, y), "mse"))
    assert found.value == rel(full_data_ascent(model, x, y, 0.05, 0.1, 2, "signed"))
    right = full_data_ascent(model, x, y, 0.05, 0.1, 2, "absolute")
    assert (found.value == rel(right)) is positive
    assert (found.details["negative_weights"] == 0) is positive


def test_negative_weights_grow_whatever_the_gradient_says() -> None:
    head = nn.Linear(1, 1, bias=False).double()
    nn.init.constant_(head.weight, -1.0)
    probe = Probe(head, (torch.ones(3, 1).double(), torch.full((3, 1), -2.0).double()), "mse")  # L = (w + 2)²
    found = UnsignedBallSharpness(rho=0.1, learning_rate=0.01)(probe)
    assert found.value == rel(0.9**2 - 1)  # the "worst case" is better than the minimum


def one_batch_ascent(
    model: nn.Module, x: Tensor, y: Tensor, rho: float, lr: float, steps: int, moved: bool
) -> list[float]:
    """The losses after each step of an ascent on all data, in the ball around the first step's end or the start."""
    weights = [p.detach().clone() for p in model.parameters()]
    names, centre, losses = [n for n, _ in model.named_parameters()], weights, []
    call = torch.func.functional_call
    for k in range(steps):
        leaves = [w.clone().requires_grad_() for w in weights]
        grads = torch.autograd.grad(
            F.cross_entropy(call(model, dict(zip(names, leaves, strict=True)), (x,)), y), leaves
        )
        weights = [w + lr * g for w, g in zip(weights, grads, strict=True)]
        centre = weights if moved and k == 0 else centre
        weights = [
            torch.minimum(torch.maximum(w, c - rho * c.abs()), c + rho * c.abs())
            for w, c in zip(weights, centre, strict=True)
        ]
        losses.append(float(F.cross_entropy(call(model, dict(zip(names, weights, strict=True)), (x,)), y)))
    return losses


@pytest.mark.parametrize("rho", [0.01, 1e6])
def test_the_ball_around_weights_that_moved(rho: float) -> None:
    model, (x, y) = mlp(), vectors()
    probe = Probe(model, (x, y))
    base = probe.value()
    found = MovedCentreSharpness(rho=rho, learning_rate=0.1, epochs=3, batch_size=N)(probe).value
    assert found == rel(max(one_batch_ascent(model, x, y, rho, 0.1, 3, moved=True)) - base)
    right = max(one_batch_ascent(model, x, y, rho, 0.1, 3, moved=False)) - base
    assert (found == rel(right)) is (rho == 1e6)  # a ball that never holds has no centre
    assert found >= right


def test_training_mode_moves_batchnorm_and_draws_dropout() -> None:
    model, data = conv_net(), images()
    probe = Probe(model, data)
    before = {k: v.clone() for k, v in probe.module("").state_dict().items()}
    published, eval_mode = (
        MovedCentreSharpness(batch_size=8, epochs=2, training_mode=mode)(probe).value for mode in (True, False)
    )
    assert published != pytest.approx(eval_mode, rel=0.05)
    assert all(torch.equal(v, before[k]) for k, v in probe.module("").state_dict().items())
    assert MovedCentreSharpness(batch_size=8, epochs=2)(Probe(model, data)).value == published
    assert MovedCentreSharpness(batch_size=8, epochs=2, seed=1)(probe).value != published
    few, plain = (FewRestartsSharpness(training_mode=mode)(probe).value for mode in (True, False))
    assert few != pytest.approx(plain, rel=0.05)
    smooth = Probe(mlp(), vectors())  # neither dropout nor BatchNorm: the mode does not matter
    assert FewRestartsSharpness()(smooth).value == FewRestartsSharpness(training_mode=False)(smooth).value
    assert MovedCentreSharpness()(smooth).value == MovedCentreSharpness(training_mode=False)(smooth).value


def test_few_restarts_are_judged_on_all_data_and_summed_over_batches() -> None:
    model = mlp()
    x, y = (t.repeat(N, *[1] * (t.dim() - 1)) for t in (vectors(1)[0], vectors(1)[1]))  # every batch is like all data
    probe = Probe(model, (x, y))
    rise = max(one_batch_ascent(model, x, y, 0.02, 0.05, 5, moved=False)) - probe.value()
    found = FewRestartsSharpness(rho=0.02, learning_rate=0.05, batch_size=4)(probe)
    assert found.value == rel(6 * rise)
    assert len(found.details["rises"]) == 5
    assert found.stderr < 1e-9 * found.value
    spread = FewRestartsSharpness(rho=0.02, learning_rate=0.05, batch_size=4)(Probe(model, vectors()))
    assert spread.stderr > 1e-3 * abs(spread.value)


def test_the_notebooks_refuse_settings_that_mean_nothing() -> None:
    for kind, settings in (
        (UnsignedBallSharpness, {"rho": 0.0}),
        (MovedCentreSharpness, {"epochs": 0}),
        (FewRestartsSharpness, {"trials": 0}),
        (FoldedRelativeFlatness, {"first": 0}),
        (StateNoiseSharpness, {"samples": 1}),
        (FAMNeuronwise, {"axes": "in"}),
        (LogIGS, {"rank": 0}),
    ):
        with pytest.raises(ValueError, match=r"must be"):
            kind(**settings)


def test_an_ascent_that_diverges_says_so() -> None:
    data = (torch.ones(4, 1).double(), torch.zeros(4, 1).double())
    probe = Probe(nn.Linear(1, 1).double(), data, "mse")
    found = MovedCentreSharpness(learning_rate=1e300)(probe)
    assert found.status is Status.NOT_APPLICABLE
    assert "diverges" in found.reason


def test_the_residual_net_of_these_tests_has_its_norm_before_the_shortcut() -> None:
    names = [name for name, _ in Residual().named_parameters()]
    assert names[names.index("fc.weight") - 2 :][:2] == ["bn2.weight", "bn2.bias"]


def test_every_loss_of_the_augmenting_loader_is_on_crops_of_its_own():
    """By hand: crops and flips drawn by the measure's stream, the mean loss on each, differences over ρ."""
    rng = torch.Generator().manual_seed(0)
    net = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(108, 2)).double()
    x, y = torch.randn(40, 1, 8, 8, generator=rng, dtype=torch.float64), torch.arange(40) % 2
    losses = []
    for draw in range(6):
        crops = Augmentation(crop=2)(x, generator(5, "redrawn crops", draw))
        losses.append(nn.functional.cross_entropy(net(crops), y).item())
    measure = RedrawnCropsSharpness(rho=0.01, samples=5, crop=2, noise=False, seed=5)
    expected = sum(abs(loss - losses[0]) for loss in losses[1:]) / 5 / 0.01
    assert measure(Probe(net, (x, y))).value == pytest.approx(expected, rel=1e-12)


def test_crops_are_for_images():
    with pytest.raises(NotApplicableError, match="crops and flips are for images"):
        RedrawnCropsSharpness().last(Probe(nn.Linear(4, 2), (torch.randn(8, 4), torch.arange(8) % 2)))
