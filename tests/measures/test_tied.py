"""Measures of one layer whose weight other layers use as well: the value is that of the tensor, and it is called so."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from landscope import MEASURES, Hessian, Probe, measure
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


def test_the_value_is_that_of_the_tensor_in_all_its_uses_and_is_called_so() -> None:
    probe = Probe(model(), data())
    weight = probe.params["embedding.weight"].detach()
    whole = kappa(weight, Hessian(probe, params="embedding.weight").dense())
    found = RelativeFlatness()(probe)
    assert found.details["layer"] == "head"
    assert found.value == pytest.approx(whole, rel=1e-9)
    assert WORDS in found.reason
    assert found.details["shared_with"] == {"head.weight": ["embedding.weight"]}

    apart = Probe(untied(), data())
    alone = RelativeFlatness(layer="head")(apart)
    both = Hessian(apart, params=["embedding.weight", "head.weight"]).dense()
    n = weight.numel()
    assert alone.value == pytest.approx(kappa(weight, both[n:, n:]), rel=1e-9)
    assert alone.reason == ""
    assert "shared_with" not in alone.details
    assert abs(alone.value - whole) > 0.1 * abs(whole)  # which of the two is meant does matter
    parts = sum(kappa(weight, both[a : a + n, b : b + n]) for a in (0, n) for b in (0, n))
    assert whole == pytest.approx(parts, rel=1e-9)


def test_layerwise_too() -> None:
    probe = Probe(model(), data())
    found = RelativeFlatnessLayerwise()(probe)
    block = Hessian(probe, params="embedding.weight").dense()
    norm = float(probe.params["embedding.weight"].square().sum())
    assert found.value == pytest.approx(norm * float(block.trace()), rel=1e-9)
    assert WORDS in found.reason


@pytest.mark.parametrize(
    "one",
    [
        RelativeFlatness(layer="head"),
        RelativeFlatness(layer="head", normalise=True),
        RelativeFlatnessLayerwise(layer="head"),
        L2Norm(layer="head"),
        L2Norm(layer="head.weight"),
        L2Norm(layer="embedding"),
        FAMLayerwise(layer="head"),
        FAMLayerwise(layer="head", approximate=False),
        FAMNeuronwise(layer="head"),
        FAMNeuronwise(layer="head", axes="in_out"),
        ClassifierNorm(),
    ],
    ids=repr,
)
def test_every_measure_of_a_layer_says_so(one: object) -> None:
    found = one(Probe(model(), data()))  # type: ignore[operator]
    assert found.status.has_value, found.reason
    assert "in all its uses" in found.reason
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
    found = RelativeFlatness()(probe)
    assert found.value == pytest.approx(
        kappa(probe.params["head.weight"].detach(), Hessian(probe, params="head.weight").dense()), rel=1e-9
    )
    assert "head.weight is used elsewhere in the forward pass, too" in found.reason


def test_a_module_under_two_names_is_tied_to_itself() -> None:
    torch.manual_seed(0)
    one = nn.Linear(3, 3)
    net = nn.Sequential(one, nn.Tanh(), one, nn.Linear(3, 2)).double()
    probe = Probe(net, (torch.randn(8, 3).double(), torch.arange(8) % 2))
    assert other_names(probe, ["0.weight", "3.weight"]) == {"0.weight": ["2.weight"]}
    assert "0.weight is one tensor with 2.weight" in RelativeFlatness(layer="0")(probe).reason


def test_nothing_is_said_where_nothing_is_shared() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
    report = measure(Probe(net, (torch.randn(8, 3), torch.arange(8) % 2)), measures=["relative_flatness", "l2_norm"])
    assert all(not e.reason for e in report.values())
    normed = nn.Sequential(nn.Linear(3, 4), nn.utils.parametrizations.weight_norm(nn.Linear(4, 2)))
    found = MEASURES["relative_flatness"]()(Probe(normed, (torch.randn(8, 3), torch.arange(8) % 2)))
    assert found.status.has_value
    assert found.reason == ""
