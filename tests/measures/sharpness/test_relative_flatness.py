"""Relative flatness against dense layer Hessians in float64."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from networks import BY_NAME
from torch import Tensor, nn

from landscope.core.errors import UnknownNameError
from landscope.core.estimate import Estimate, Status
from landscope.curvature import Fisher
from landscope.curvature.layer.geometry import geometry_of
from landscope.curvature.layer.sites import _feature_sums, default_layer, feature_scale
from landscope.curvature.layer.softmax_head import class_spread, head_curvature
from landscope.measures.base import MEASURES
from landscope.measures.sharpness.relative_flatness import (
    RelativeFlatness,
    RelativeFlatnessLayerwise,
    relative_flatness_by_layer,
)
from landscope.probe.batches import Batch
from landscope.probe.loss.losses import Loss
from landscope.probe.probe import Probe

F64 = torch.float64


def images(n: int = 9, side: int = 6) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(1)
    return torch.randn(n, 3, side, side, dtype=F64, generator=rng), torch.arange(n) % 3


def vectors(n: int = 11) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 4, dtype=F64, generator=torch.Generator().manual_seed(2)), torch.arange(n) % 3


def conv_net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, stride=2, padding=1),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.Conv2d(4, 4, 2, groups=2, padding=1, padding_mode="circular", dilation=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.LazyLinear(5),
        nn.Tanh(),
        nn.Linear(5, 3),
    )


class TextNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.encoder = nn.TransformerEncoderLayer(6, 2, 8, batch_first=True, activation="gelu", dropout=0.0)
        self.head = nn.Linear(6, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


class SequenceFirst(nn.Module):
    """Activations (positions, samples, features), and a layer that runs twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.stack((x, x.square(), -x))
        return self.head(torch.tanh(self.inner(h)).prod(0))


class Twice(nn.Module):
    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.inner, self.other, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)
        if how == "tied":
            self.other.weight = self.inner.weight

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.inner(x))
        if self.how == "twice":
            h = torch.tanh(self.inner(h))
        elif self.how == "functional":
            h = torch.tanh(h @ self.inner.weight)
        else:
            h = torch.tanh(self.other(h))
        return self.head(h)


def build(net: nn.Module, data: tuple[Tensor, Tensor], loss: str = "cross_entropy", **options: object) -> Probe:
    net(
        data[0][:2].to(next((p.dtype for p in net.buffers()), torch.float32))
        if data[0].is_floating_point()
        else data[0]
    )
    return Probe(net.double(), data, loss, **options)  # type: ignore[arg-type]


def make(name: str, **options: object) -> Probe:
    torch.manual_seed(3)
    if name == "mlp":
        return build(nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 3)), vectors(), **options)
    if name == "conv":
        return build(conv_net(), images(), **options)
    if name == "conv1d":
        net = nn.Sequential(nn.Conv1d(3, 2, 3, padding="same"), nn.Tanh(), nn.Flatten(), nn.Linear(12, 3))
        x, y = images()
        return build(net, (x[..., 0], y), **options)
    if name == "text":
        return build(TextNet(), (torch.randint(0, 11, (7, 4)), torch.arange(7) % 3), **options)
    x, _ = vectors()
    net = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    return build(net, (x, torch.stack((x.sum(1), x.prod(1)), 1)), "mse", **options)


def weight_hessian(probe: Probe, weight: str) -> Tensor:
    """The (d, m, d, m) Hessian of the mean loss by plain autograd, one row at a time."""
    W = probe.modules[""].get_parameter(weight).detach().clone().requires_grad_()
    with probe.measuring():
        loss = sum(probe.loss_sum({weight: W}, batch) for batch in probe.batches()) / probe.n_samples
        (g,) = torch.autograd.grad(loss, W, create_graph=True)
        rows = [torch.autograd.grad(s, W, retain_graph=True)[0].flatten() for s in g.flatten()]
    d = len(W)
    return torch.stack(rows).view(d, -1, d, W[0].numel())


def reference(probe: Probe, layer: str, layerwise: bool = False) -> float:
    H = weight_hessian(probe, f"{layer}.weight")
    W = probe.modules[layer].get_parameter("weight").detach().flatten(1)
    if layerwise:
        return float(W.square().sum() * torch.einsum("sasa->", H))
    return float(torch.einsum("sj,tj,sata->", W, W, H))


def close(estimate: Estimate, truth: float) -> bool:
    return abs(estimate.value - truth) <= 1e-9 * abs(truth) + 1e-13


@pytest.mark.parametrize("name", ["mlp", "conv", "conv1d", "text", "regression"])
@pytest.mark.parametrize("options", [{}, {"temperature": 2.5}], ids=["T=1", "T=2.5"])
@pytest.mark.parametrize("layerwise", [False, True], ids=["neuronwise", "layerwise"])
def test_every_layer_matches_the_dense_hessian(name: str, options: dict[str, float], layerwise: bool) -> None:
    probe = make(name, **options)
    for layer, estimate in relative_flatness_by_layer(probe, layerwise=layerwise, max_probes=5000).items():
        assert estimate.status is Status.EXACT, (layer, estimate)
        assert close(estimate, reference(probe, layer, layerwise)), (layer, estimate, estimate.details)


@pytest.mark.parametrize(
    ("name", "forms"),
    [
        ("mlp", {"0": "layer forms", "2": "softmax head"}),
        ("regression", {"0": "layer forms", "2": "layer forms"}),
        (
            "text",
            {
                "encoder.self_attn.out_proj": "layer Hessian",
                "encoder.linear1": "layer forms",
                "encoder.linear2": "layer forms",
                "head": "softmax head",
            },
        ),
    ],
)
def test_the_cheapest_form_that_holds_is_used(name: str, forms: dict[str, str]) -> None:
    found = relative_flatness_by_layer(make(name))
    assert {layer: estimate.details["form"] for layer, estimate in found.items()} == forms


@pytest.mark.parametrize("net", [Twice("tied"), Twice("twice"), Twice("functional"), SequenceFirst()], ids=repr)
def test_shared_weights_fall_back_to_the_hessian(net: nn.Module) -> None:
    probe = build(net, vectors())
    estimate = RelativeFlatness(layer="inner", uses="all")(probe)
    assert estimate.details["form"] == "layer Hessian"
    assert close(estimate, reference(probe, "inner"))
    assert RelativeFlatness()(probe).details["form"] == "softmax head"


@pytest.mark.parametrize("layer", ["conv", "wide", "two"])
def test_layers_that_do_more_than_their_kind_fall_back_to_the_hessian(layer: str) -> None:
    net = BY_NAME["own_layers"]
    probe = Probe(net.model(), net.data())
    estimate = RelativeFlatness(layer=layer, max_probes=5000)(probe)
    assert estimate.details["form"] == "layer Hessian"
    assert close(estimate, reference(probe, layer))
    assert RelativeFlatness()(probe).details["form"] == "softmax head"


def test_batch_statistics_couple_samples_only_before_the_norm_layer() -> None:
    probe = make("conv", mode="batch_statistics", batch_size=5)
    found = relative_flatness_by_layer(probe, max_probes=5000)
    assert [e.details["form"] for e in found.values()] == [
        "layer Hessian",
        "layer forms",
        "layer forms",
        "softmax head",
    ]
    for layer, estimate in found.items():
        assert close(estimate, reference(probe, layer)), layer


def test_a_closed_form_is_not_used_where_it_does_not_hold() -> None:
    x, y = vectors()
    head = nn.Linear(4, 3).double()
    soft = torch.rand(11, 3, dtype=F64)
    not_logits = nn.Sequential(head, nn.LogSoftmax(1))
    scaled = copy.deepcopy(head)
    scaled.register_forward_hook(lambda m, a, out: out * 3)
    for probe in (
        Probe(not_logits, (x, y)),
        Probe(head, (x, soft), nn.CrossEntropyLoss()),  # these do not add up to one
        Probe(head, (x, y), Loss(lambda z, t: nn.functional.cross_entropy(z, t, reduction="none") ** 2, "per_sample")),
        Probe(scaled, (x, y)),
    ):
        layer = default_layer(probe)
        estimate = RelativeFlatness()(probe)
        assert estimate.details["form"] != "softmax head"
        weight = f"{layer}.weight".lstrip(".")
        W = probe.modules[layer].get_parameter("weight").detach()
        truth = float(torch.einsum("sj,tj,sata->", W, W, weight_hessian(probe, weight)))
        assert close(estimate, truth), probe
    sums_to_one = soft / soft.sum(1, keepdim=True)
    probes = [Probe(head, (x, t)) for t in (y, sums_to_one)]
    values = [RelativeFlatness()(probe) for probe in probes]
    assert [v.details["form"] for v in values] == ["softmax head"] * 2
    assert values[0].value == pytest.approx(values[1].value, rel=1e-12)
    assert probes[0].loss.likelihood == "categorical"


def test_nothing_cancels_where_the_prediction_is_certain() -> None:
    features, W = torch.ones(1, 2, dtype=F64), torch.tensor([[20.0, 20.0], [0.0, 0.0]], dtype=F64)
    kappa = head_curvature(features, features @ W.T, class_spread(W))
    p = math.exp(-40.0)
    assert float(kappa) == pytest.approx(2 * 800 * p * (1 - p), rel=1e-12)


@pytest.mark.parametrize("name", ["mlp", "conv", "text"])
def test_random_directions_cover_the_truth(name: str) -> None:
    probe = make(name)
    layer = {"mlp": "0", "conv": "0", "text": "encoder.linear1"}[name]
    truth = reference(probe, layer)
    found = [RelativeFlatness(layer=layer, max_probes=3 if name == "mlp" else 12, seed=s)(probe) for s in range(100)]
    assert all(e.details["form"] == "random forms" for e in found)
    inside = sum(abs(e.value - truth) < 2 * e.stderr for e in found)
    assert inside >= 85, inside
    mean = sum(e.value for e in found) / len(found)
    spread = math.sqrt(sum((e.value - truth) ** 2 for e in found)) / len(found)
    assert abs(mean - truth) < 4 * spread


def test_random_directions_stop_at_the_tolerance_and_know_the_data_error() -> None:
    x, y = vectors(600)
    torch.manual_seed(0)
    probe = Probe(nn.Sequential(nn.Linear(4, 7), nn.Tanh(), nn.Linear(7, 3)).double(), (x, y))
    exact = RelativeFlatness(layer="0")(probe)
    rough = RelativeFlatness(layer="0", max_probes=3, tol=0.2)(probe)
    fine = RelativeFlatness(layer="0", max_probes=3, tol=1e-6)(probe)
    assert (exact.status, rough.status, fine.status) == (Status.EXACT, Status.CONVERGED, Status.BUDGET_SPENT)
    assert exact.data_stderr is not None
    assert rough.data_stderr == pytest.approx(exact.data_stderr, rel=0.3)
    assert abs(rough.value - exact.value) < 4 * rough.stderr


@pytest.mark.parametrize("layer", ["0", "3", "7", None], ids=["conv", "grouped", "linear", "head"])
@pytest.mark.parametrize("max_probes", [4, 512], ids=["random", "exact"])
def test_batch_size_and_order_change_nothing(layer: str | None, max_probes: int) -> None:
    net, (x, y) = conv_net(), images(10)
    net(x[:2].float())
    net.double()
    measure = RelativeFlatness(layer=layer, max_probes=max_probes)
    turned = torch.arange(9, -1, -1)
    loaders = [[(x, y)], [(x[:7], y[:7]), (x[7:], y[7:])], [(x[turned], y[turned])]]
    values = []
    for batches in loaders:
        probe = Probe(net, batches)
        probe._piece_sizes.clear()
        values.append(measure(probe).value)
    assert values[1:] == pytest.approx([values[0]] * 2, rel=1e-10)


def test_the_data_error_is_that_of_a_mean() -> None:
    x, y = vectors()
    net = copy.deepcopy(make("mlp").modules[""]).requires_grad_()
    alone = [Probe(net, (x[i : i + 1], y[i : i + 1])) for i in range(11)]
    each = torch.tensor([RelativeFlatness(layer="0")(probe).value for probe in alone])
    whole = RelativeFlatness(layer="0")(Probe(net, (x, y)))
    assert whole.value == pytest.approx(float(each.mean()), rel=1e-6)
    assert whole.data_stderr == pytest.approx(float(each.std()) / math.sqrt(11), rel=1e-5)


def normalised_by_hand(probe: Probe, layer: str, sigma: Tensor) -> float:
    """κ of the same function with the features over σ and the weights times σ: H' = H / (σ σ)."""
    H = weight_hessian(probe, f"{layer}.weight") / (sigma[:, :, None, None] * sigma)
    W = probe.modules[layer].get_parameter("weight").detach().flatten(1) * sigma
    return float(torch.einsum("sj,tj,sata->", W, W, H))


def test_feature_normalisation() -> None:
    probe = make("mlp")
    x = next(probe.batches()).raw[0]  # type: ignore[index]
    h = torch.tanh(probe.modules["0"](x))
    for layer, features in (("0", x), ("2", h)):
        W = probe.modules[layer].get_parameter("weight")
        sigma = features.std(0, unbiased=False).detach().expand_as(W)
        assert close(RelativeFlatness(layer=layer, normalise=True)(probe), normalised_by_hand(probe, layer, sigma))
    tied = build(Twice("tied"), vectors())
    a = torch.tanh(tied.modules["inner"](x))
    sigma = torch.as_tensor(x.std(0, unbiased=False)).detach().expand(4, 4)
    found = RelativeFlatness(layer="inner", normalise=True, uses="all")(tied)
    assert close(found, normalised_by_hand(tied, "inner", sigma))
    assert a.shape == x.shape


def test_feature_normalisation_of_convolutions_and_constant_features() -> None:
    x, y = images()
    x[:, 1] = 0.7
    net = conv_net()
    net(x[:2].float())
    probe = Probe(net.double(), (x, y))
    std = x.std((0, 2, 3), unbiased=False)
    assert std[1] < 1e-12
    std[1] = 1.0
    sigma = std[:, None].expand(3, 9).reshape(1, 27).expand(4, 27)
    measure = RelativeFlatness(layer="0", normalise=True, max_probes=5000)
    estimate = measure(probe)
    assert close(estimate, normalised_by_hand(probe, "0", sigma))
    assert estimate.details["constant_features"] == 1
    seen: list[Tensor] = []
    handle = net[3].register_forward_hook(lambda m, args, out: seen.append(args[0].detach()))
    net.eval()(x)
    handle.remove()
    std = seen[0].std((0, 2, 3), unbiased=False)
    sigma = std.view(2, 1, 2, 1).expand(2, 2, 2, 4).reshape(4, 8)
    grouped = RelativeFlatness(layer="3", normalise=True, max_probes=5000)(probe)
    assert close(grouped, normalised_by_hand(probe, "3", sigma))


def test_normalised_features_do_not_notice_their_scale() -> None:
    x, y = vectors()
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    factors = torch.linspace(0.2, 3, 6, dtype=F64)
    other = copy.deepcopy(net)
    with torch.no_grad():
        other[0].weight.mul_(factors[:, None])
        other[0].bias.mul_(factors)
        other[2].weight.div_(factors)
    plain = [RelativeFlatness()(Probe(m, (x, y))).value for m in (net, other)]
    scaled = [RelativeFlatness(normalise=True)(Probe(m, (x, y))).value for m in (net, other)]
    assert abs(plain[0] / plain[1] - 1) > 0.01
    assert scaled[0] == pytest.approx(scaled[1], rel=1e-10)


def test_budgets() -> None:
    probe = make("conv")
    measure = RelativeFlatness(layer="0", max_probes=5000)
    with probe.ledger.limited(passes=8.0):
        cut = measure(probe)
    assert cut.details["form"] == "layer forms" if cut.status.has_value else cut.status is Status.SKIPPED
    cheap = RelativeFlatness(layer="0", max_probes=8)(probe)
    assert cheap.details["form"] == "random forms"
    head = RelativeFlatness()(probe)
    assert head.cost.passes == 0  # the pass for the order of the rows has seen what the layer is given
    assert RelativeFlatness()(make("conv")).cost.passes == pytest.approx(1 / 3)


def test_default_layer() -> None:
    assert default_layer(make("conv")) == "9"
    assert default_layer(make("text")) == "head"
    only_conv = nn.Sequential(nn.Conv2d(3, 2, 3), nn.Conv2d(2, 3, 4), nn.Flatten()).double()
    assert default_layer(Probe(only_conv, images())) == "1"


def test_what_does_not_apply() -> None:
    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(5, 3)

        def forward(self, i: Tensor) -> Tensor:
            return self.table(i)

    estimate = RelativeFlatness()(Probe(Table(), (torch.arange(5), torch.arange(5) % 3)))
    assert estimate.status is Status.NOT_APPLICABLE
    assert "linear" in estimate.reason
    assert RelativeFlatness(layer="1")(make("conv")).status is Status.NOT_APPLICABLE
    with pytest.raises(UnknownNameError, match="did you mean"):
        RelativeFlatness(layer="hea")(make("text"))
    with pytest.raises(ValueError, match="tol"):
        RelativeFlatness(tol=0)
    with pytest.raises(ValueError, match="max_probes"):
        RelativeFlatnessLayerwise(max_probes=1)


def test_the_private_copy_is_left_as_it_was_also_after_an_error() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.head, self.runs = nn.Linear(4, 4), nn.Linear(4, 3), 10**9

        def forward(self, x: Tensor) -> Tensor:
            if self.runs == 0:
                raise KeyboardInterrupt
            self.runs -= 1
            return self.head(torch.tanh(self.inner(x)))

    net = Odd().double()
    before = copy.deepcopy(net.state_dict())
    probe = Probe(net, vectors())
    root = probe.modules[""]
    for runs in range(6):
        root.runs = runs
        with pytest.raises(KeyboardInterrupt):
            relative_flatness_by_layer(probe)
        for module in probe.modules.values():
            assert not module._forward_hooks
    root.runs = 10**9
    relative_flatness_by_layer(probe, normalise=True)
    assert all(
        not m._forward_hooks and not any(p.requires_grad for p in m.parameters()) for m in probe.modules.values()
    )
    assert all(torch.equal(a, b) for a, b in zip(before.values(), net.state_dict().values(), strict=True))


def test_float32_and_registration() -> None:
    probe = make("conv")
    twin = copy.deepcopy(probe.modules[""]).requires_grad_()
    single = Probe(twin, next(probe.batches()).raw, dtype=torch.float32)  # type: ignore[arg-type]
    for layer, estimate in relative_flatness_by_layer(single).items():
        assert estimate.value == pytest.approx(RelativeFlatness(layer=layer)(probe).value, rel=1e-3), layer
    assert MEASURES["relative_flatness"] is RelativeFlatness
    assert MEASURES["relative_flatness_layerwise"] is RelativeFlatnessLayerwise


class Clipped(nn.Module):
    """Its last layer gives the outputs, except where they are large."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.outer(self.inner(x).tanh()).clamp(-0.5, 0.5)


class Routed(nn.Module):
    """Two experts, each for its samples; where all take the same one, their order is kept."""

    def __init__(self, last: bool) -> None:
        super().__init__()
        self.experts = nn.ModuleList(nn.Linear(4, 3) for _ in range(2))
        self.head = nn.Identity() if last else nn.Sequential(nn.Tanh(), nn.Linear(3, 3))

    def forward(self, x: Tensor) -> Tensor:
        out = x.new_zeros(len(x), 3)
        for number, expert in enumerate(self.experts):
            mine = (x[:, 0] > 0) == bool(number)
            if mine.all():
                return self.head(expert(x))
            out[mine] = expert(x[mine])
        return self.head(out)


def test_a_form_that_two_samples_allow_is_checked_on_all() -> None:
    torch.manual_seed(0)
    net = Clipped().double()
    x, y = vectors(40)
    size = net.outer(net.inner(x).tanh()).abs().amax(1)
    for order in (size.argsort(), size.argsort(descending=True)):
        probe = Probe(net, (x[order], y[order]))
        for layerwise in (False, True):
            kind = RelativeFlatnessLayerwise if layerwise else RelativeFlatness
            estimate = kind(layer="outer")(probe)
            assert estimate.details["form"] == "layer forms"
            assert close(estimate, reference(probe, "outer", layerwise))


@pytest.mark.parametrize("last", [False, True])
def test_routed_experts_fall_back(last: bool) -> None:
    torch.manual_seed(0)
    net = Routed(last).double()
    x, y = vectors(29)
    first = x[:, 0].argsort()  # two samples of one expert come first
    for order in (first, torch.arange(29)):
        probe = Probe(net, (x[order], y[order]))
        for max_probes in (512, 5):
            for expert in ("experts.0", "experts.1"):
                estimate = RelativeFlatness(layer=expert, max_probes=max_probes)(probe)
                assert estimate.details["form"] == "layer Hessian"
                if max_probes > 9:
                    assert close(estimate, reference(probe, expert))
        grads = [
            torch.autograd.grad(probe.loss_sum(at, one), list(at.values()), materialize_grads=True)
            for at, one in singles(probe)
        ]
        flat = torch.stack([torch.cat([g.flatten() for g in each]) for each in grads])
        noise = float((flat - flat.mean(0)).square().sum(1).mean())
        assert MEASURES["gradient_noise"]()(probe).value == pytest.approx(noise, rel=1e-9)
        trace = float(Fisher(probe).dense().trace())
        assert MEASURES["fisher_trace"]()(probe).value == pytest.approx(trace, rel=1e-9)
        assert MEASURES["ggn_trace"]()(probe).value == pytest.approx(trace, rel=1e-9)


def singles(probe: Probe) -> list[tuple[dict[str, Tensor], Batch]]:
    return [
        ({name: p.clone().requires_grad_() for name, p in probe.params.items()}, one)
        for batch in probe.batches()
        for one in batch.pieces(1)
    ]


class OwnNorm(nn.Module):
    """Normalises over the batch without a BatchNorm layer."""

    def __init__(self, functional: bool) -> None:
        super().__init__()
        self.functional = functional
        self.first, self.second, self.third = nn.Linear(4, 6), nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        own = (h - h.mean(0)) / h.std(0)
        h = nn.functional.batch_norm(h, None, None, training=True) if self.functional else own
        return self.third(self.second(h.tanh()).tanh())


@pytest.mark.parametrize("functional", [True, False])
def test_coupled_samples_are_found_whatever_couples_them(functional: bool) -> None:
    torch.manual_seed(0)
    probe = Probe(OwnNorm(functional).double(), vectors(20), mode="batch_statistics", batch_size=10)
    found = relative_flatness_by_layer(probe)
    assert [e.details["form"] for e in found.values()] == ["layer Hessian", "layer forms", "softmax head"]
    for layer, estimate in found.items():
        assert close(estimate, reference(probe, layer)), layer


def test_copies_of_a_sample_have_directions_of_their_own() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    x, y = (t.repeat(16, *[1] * (t.dim() - 1)) for t in vectors(4))
    truth = reference(Probe(net, (x, y)), "0")
    scores = []
    for seed in range(60):
        estimate = RelativeFlatness(layer="0", max_probes=3, tol=1e-9, seed=seed)(Probe(net, (x, y)))
        scores.append((estimate.value - truth) / estimate.stderr)
    assert 0.7 < float(torch.tensor(scores).std()) < 1.4
    mixed = torch.randperm(64, generator=torch.Generator().manual_seed(0))
    values = [
        RelativeFlatness(layer="0", max_probes=3, tol=1e-9)(Probe(net, data)).value
        for data in ((x, y), (x[mixed], y[mixed]), list(zip(x[mixed].split(7), y[mixed].split(7), strict=True)))
    ]
    assert values == pytest.approx([values[0]] * 3, rel=1e-12)


def test_targets_that_add_up_to_one_at_first_only() -> None:
    x, _ = vectors(50)
    soft = torch.full((50, 3), 1 / 3, dtype=F64)
    soft[40:] *= 2
    probe = Probe(nn.Sequential(nn.Linear(4, 3)).double(), (x, soft), nn.CrossEntropyLoss())
    estimate = RelativeFlatness()(probe)
    assert estimate.details["form"] == "layer forms"
    assert close(estimate, reference(probe, "0"))


def test_spreads_of_the_last_features_come_with_the_outputs() -> None:
    """To rounding those of a pass of their own, which other layers take."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 4)).eval()
    x = torch.randn(500, 6)
    probe = Probe(net, (x, torch.arange(500) % 4))
    before = probe.ledger.passes
    last, _ = feature_scale(probe, "3", geometry_of(probe.module("3")))
    assert probe.ledger.passes - before == pytest.approx(1 / 3)
    assert RelativeFlatness(normalise=True)(probe).cost.passes == 0
    total, squares, count = _feature_sums(probe, geometry_of(probe.module("3")))
    variance = squares / count - (total / count).square()
    assert torch.allclose(last, torch.where(variance > 0, variance, 1.0).sqrt(), rtol=1e-12)
    first, _ = feature_scale(probe, "0", geometry_of(probe.module("0")))
    assert torch.allclose(first, x.double().std(0, unbiased=False), rtol=1e-6)
