"""Measures of one layer whose weight other layers use as well: of which uses the value is, and that it says so."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from landscope import FAM, MEASURES, Hessian, Probe, measure
from landscope.core.estimate import Status
from landscope.measures.by_layer import by_layer
from landscope.measures.sharpness.gradients import L2Norm
from landscope.measures.sharpness.relative_flatness import (
    RelativeFlatness,
    RelativeFlatnessLayerwise,
    relative_flatness_by_layer,
)
from landscope.measures.tied import other_names
from landscope.papers.explicit_regularisation.as_published import ClassifierNorm
from landscope.papers.fam.as_published import FAMLayerwise, FAMNeuronwise

WORDS = "head.weight is one tensor with embedding.weight: this is of the tensor in all its uses"
OWN = "head.weight is one tensor with embedding.weight: this is of its use in this layer"


class TiedHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.mixer, self.head = nn.Embedding(5, 6), nn.Linear(6, 6), nn.Linear(6, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mixer(self.embedding(tokens))).mean(1))


class Functional(nn.Module):
    """The head's weight embeds, without a module or a name that would show it."""

    def __init__(self) -> None:
        super().__init__()
        self.mixer, self.head = nn.Linear(6, 6), nn.Linear(6, 5, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mixer(nn.functional.embedding(tokens, self.head.weight))).mean(1))


def model(kind: type[nn.Module] = TiedHead) -> nn.Module:
    torch.manual_seed(1)
    net = kind().double()
    with torch.no_grad():
        net.get_submodule("head").weight.mul_(2.0)
    return net


def data() -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(0)
    return torch.randint(0, 5, (12, 3), generator=rng), torch.randint(0, 5, (12,), generator=rng)


def untied() -> nn.Module:
    net = copy.deepcopy(model())
    head = net.get_submodule("head")
    head.weight = nn.Parameter(head.weight.detach().clone())
    return net


def kappa(weight: Tensor, hessian: Tensor) -> float:
    """Σ_{s,s'} ⟨w_s, w_s'⟩ tr H_{s,s'} from a dense Hessian over the entries of W (d, m)."""
    d, m = weight.shape
    blocks = hessian.reshape(d, m, d, m)
    return float(torch.einsum("sj,tj,sktk->", weight, weight, blocks))


def blocks() -> tuple[Tensor, Tensor, Tensor]:
    """The weight, its Hessian where the head is called, and that of all its uses, from a copy in which the two are apart."""
    apart = Probe(untied(), data())
    weight = apart.params["head.weight"].detach()
    both, n = Hessian(apart, params=["embedding.weight", "head.weight"]).dense(), weight.numel()
    return weight, both[n:, n:], sum(both[a : a + n, b : b + n] for a in (0, n) for b in (0, n))  # type: ignore[return-value]


def test_the_value_is_that_of_the_layer_and_says_so() -> None:
    weight, own, every = blocks()
    found = RelativeFlatness()(Probe(model(), data()))
    assert found.details["layer"] == "head"
    assert found.value == pytest.approx(kappa(weight, own), rel=1e-9)
    assert found.details["form"] == "softmax head"
    assert OWN in found.reason
    assert found.details["shared_with"] == {"head.weight": ["embedding.weight"]}
    alone = RelativeFlatness(layer="head")(Probe(untied(), data()))
    assert alone.value == pytest.approx(found.value, rel=1e-12)
    assert alone.reason == ""
    assert "shared_with" not in alone.details
    assert abs(found.value - kappa(weight, every)) > 0.1 * abs(found.value)  # which of the two is meant does matter


def test_all_uses_of_the_tensor_on_request() -> None:
    weight, _, every = blocks()
    probe = Probe(model(), data())
    found = RelativeFlatness(uses="all")(probe)
    assert found.value == pytest.approx(kappa(weight, every), rel=1e-9)
    assert found.value == pytest.approx(kappa(weight, Hessian(probe, params="embedding.weight").dense()), rel=1e-9)
    assert found.details["form"] == "layer Hessian"
    assert WORDS in found.reason
    with pytest.raises(ValueError, match="uses"):
        RelativeFlatness(uses="both")  # type: ignore[arg-type]


def test_layerwise_too() -> None:
    weight, own, every = blocks()
    for uses, block in (("layer", own), ("all", every)):
        found = RelativeFlatnessLayerwise(uses=uses)(Probe(model(), data()))  # type: ignore[arg-type]
        assert found.value == pytest.approx(float(weight.square().sum() * block.trace()), rel=1e-9)


def test_fam_adds_what_is_measured() -> None:
    weight, own, _ = blocks()
    net, (x, y) = model(), data()
    for form, truth in (
        ("neuronwise", kappa(weight, own)),
        ("layerwise", RelativeFlatnessLayerwise()(Probe(net, (x, y))).value),
    ):
        with FAM(net, layer="head", strength=1.0, form=form) as fam:  # type: ignore[arg-type]
            loss = nn.functional.cross_entropy(net(x), y)
            with pytest.warns(UserWarning, match="its use in this layer"):
                total = fam(loss)
        assert float(fam.value) == pytest.approx(truth, rel=1e-9)  # type: ignore[arg-type]
    (found,) = torch.autograd.grad(total, net.get_parameter("embedding.weight"))
    values = []
    direction = torch.randn(found.shape, dtype=found.dtype, generator=torch.Generator().manual_seed(3))
    for step in (1e-5, -1e-5):
        moved = copy.deepcopy(net)
        with torch.no_grad():
            moved.get_parameter("embedding.weight").add_(step * direction)
        probe = Probe(moved, (x, y))
        values.append(probe.value() + RelativeFlatnessLayerwise()(probe).value)
    assert float((found * direction).sum()) == pytest.approx((values[0] - values[1]) / 2e-5, rel=1e-6)


class Text(nn.Module):
    """Next words, by a head that is tied to the embedding or not."""

    def __init__(self, words: int, tied: bool) -> None:
        super().__init__()
        self.embedding, self.mixer = nn.Embedding(words, 3), nn.Linear(3, 3)
        self.head = nn.Linear(3, words, bias=not tied)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.mixer(self.embedding(tokens))).cumsum(1))


@pytest.mark.parametrize("words", [9, 5000])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("per", ["token", "sequence"])
@pytest.mark.parametrize("options", [{}, {"normalise": True}], ids=repr)
def test_heads_of_sequences_with_ignored_positions(words: int, tied: bool, per: str, options: dict[str, bool]) -> None:
    torch.manual_seed(2)
    net = Text(words, tied).double()
    x = torch.randint(words, (6, 5))
    y = x.roll(-1, 1).masked_fill(torch.arange(5) >= torch.tensor([5, 2, 4, 1, 5, 3])[:, None], -100)
    kept = (y != -100).double()
    each = kept / (kept.sum(1, keepdim=True) * len(x) if per == "sequence" else kept.sum())
    phi = torch.tanh(net.mixer(net.embedding(x))).cumsum(1).detach()
    weight, bias = net.head.weight.detach(), None if tied else net.head.bias.detach()
    logits = nn.functional.linear(phi, weight, bias)
    p = logits.softmax(-1)
    scale = phi.flatten(0, 1).std(0, correction=0) if options else torch.ones(3, dtype=phi.dtype)
    gram = (weight * scale) @ (weight * scale).T
    curved = (p * gram.diagonal()).sum(-1) - torch.einsum("npc,cd,npd->np", p, gram, p)  # ⟨W Wᵀ, diag p − p pᵀ⟩
    truth = float((each * (phi / scale).square().sum(-1) * curved).sum())
    probe = Probe(net, (x, y), "cross_entropy", per=per)  # type: ignore[arg-type]
    found = RelativeFlatness(**options)(probe)  # type: ignore[arg-type]
    assert found.details["form"] == "softmax head"
    assert (probe.head is not None) == (words > 4096)
    assert found.value == pytest.approx(truth, rel=1e-9)
    assert (OWN in found.reason) == tied
    if not options and words < 4096 and not tied:
        block = Hessian(probe, params="head.weight").dense()
        assert found.value == pytest.approx(kappa(weight, block), rel=1e-9)
    wise = float((each * phi.square().sum(-1) * (1 - p.square().sum(-1))).sum() * weight.square().sum())
    assert RelativeFlatnessLayerwise()(probe).value == pytest.approx(wise, rel=1e-9)


def test_batch_statistics_behind_a_tied_layer_ask_for_all_uses() -> None:
    class Normed(TiedHead):
        def forward(self, tokens: Tensor) -> Tensor:
            z = super().forward(tokens)
            return (z - z.mean(0)) / z.std(0)

    torch.manual_seed(0)
    probe = Probe(Normed().double(), data(), mode="batch_statistics")
    found = measure(probe, measures=[RelativeFlatness(layer="head")])["relative_flatness"]
    assert found.status is Status.NOT_APPLICABLE
    assert "uses='all'" in found.reason
    assert RelativeFlatness(layer="head", uses="all")(probe).status.has_value


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (RelativeFlatness(layer="head"), OWN),
        (RelativeFlatness(layer="head", normalise=True), OWN),
        (RelativeFlatnessLayerwise(layer="head"), OWN),
        (RelativeFlatnessLayerwise(layer="head", uses="all"), WORDS),
        (L2Norm(layer="head"), "in all its uses"),
        (L2Norm(layer="head.weight"), "in all its uses"),
        (L2Norm(layer="embedding"), "in all its uses"),
        (FAMLayerwise(layer="head"), "in all its uses"),
        (FAMLayerwise(layer="head", approximate=False), WORDS),
        (FAMNeuronwise(layer="head"), "in all its uses"),
        (FAMNeuronwise(layer="head", axes="in_out"), WORDS),
        (ClassifierNorm(), "in all its uses"),
    ],
    ids=repr,
)
def test_every_measure_of_a_layer_says_so(one: object, words: str) -> None:
    found = one(Probe(model(), data()))  # type: ignore[operator]
    assert found.status.has_value, found.reason
    assert words in found.reason
    assert "head.weight" in found.reason
    assert "embedding.weight" in found.reason
    apart = one(Probe(untied(), data()))  # type: ignore[operator]
    assert "uses" not in apart.reason
    assert "shared_with" not in apart.details


def test_layers_of_a_report_that_hold_a_tied_weight_say_so() -> None:
    probe = Probe(model(), data())
    for name, layers in by_layer(probe, ["l2_norm", "hessian_trace", "relative_flatness"]).estimates.items():
        for layer, estimate in layers.items():
            tied = layer == "embedding" and estimate.status.has_value
            assert ("in all its uses" in estimate.reason) == tied, (name, layer)
    flat = relative_flatness_by_layer(probe)
    assert ["shared_with" in flat[layer].details for layer in ("mixer", "head")] == [False, True]


def test_a_use_that_no_name_shows_is_found_as_well() -> None:
    probe = Probe(model(Functional), data())
    weight = probe.params["head.weight"].detach()
    found = RelativeFlatness(uses="all")(probe)
    assert found.value == pytest.approx(kappa(weight, Hessian(probe, params="head.weight").dense()), rel=1e-9)
    assert "head.weight is used elsewhere in the forward pass, too: this is of the tensor" in found.reason
    own = RelativeFlatness()(probe)
    assert own.value == pytest.approx(float(kappa(weight, _own_hessian(model(Functional)))), rel=1e-9)
    assert "head.weight is used elsewhere in the forward pass, too: this is of its use in this layer" in own.reason


def _own_hessian(net: nn.Module) -> Tensor:
    """Of the head of `Functional` where it is called."""
    x, y = data()
    held, mixer = net.get_parameter("head.weight").detach(), net.get_submodule("mixer")

    def loss(weight: Tensor) -> Tensor:
        features = torch.tanh(mixer(nn.functional.embedding(x, held))).mean(1)
        return nn.functional.cross_entropy(features @ weight.T, y)

    n = held.numel()
    return torch.autograd.functional.hessian(loss, held).reshape(n, n)


def test_a_module_under_two_names_is_tied_to_itself() -> None:
    torch.manual_seed(0)
    one = nn.Linear(3, 3)
    net = nn.Sequential(one, nn.Tanh(), one, nn.Linear(3, 2)).double()
    probe = Probe(net, (torch.randn(8, 3).double(), torch.arange(8) % 2))
    assert other_names(probe, ["0.weight", "3.weight"]) == {"0.weight": ["2.weight"]}
    found = RelativeFlatness(layer="0")(probe)
    weight = probe.params["0.weight"].detach()
    assert found.value == pytest.approx(kappa(weight, Hessian(probe, params="0.weight").dense()), rel=1e-9)
    assert "0.weight is one tensor with 2.weight: this is of the tensor in all its uses" in found.reason


def test_nothing_is_said_where_nothing_is_shared() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    report = measure(Probe(net, (torch.randn(8, 3), torch.arange(8) % 2)), measures=["relative_flatness", "l2_norm"])
    assert all(not e.reason for e in report.values())
    normed = nn.Sequential(nn.Linear(3, 4), nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)))
    found = MEASURES["relative_flatness"]()(Probe(normed, (torch.randn(8, 3), torch.arange(8) % 2)))
    assert found.status.has_value
    assert found.reason == ""
