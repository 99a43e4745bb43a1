"""The `Conv1D` of GPT-2 is a linear layer whose weight lies the other way round: numbers as of a linear layer in its place."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from transformer_models import case

from landscope import FAM, Probe, measure
from landscope.curvature import Hessian
from landscope.curvature.layer.geometry import TransposedLinear, geometry_of, is_faithful
from landscope.curvature.layer.sites import layer_sites
from landscope.curvature.per_sample import linear_layers, squared_gradient_norms

pytest.importorskip("transformers", reason="needs transformers")

LAYERS = ["transformer.h.1.mlp.c_fc", "transformer.h.1.mlp.c_proj", "transformer.h.0.attn.c_attn"]


def twins() -> tuple[nn.Module, nn.Module]:
    """GPT-2 with a head of its own as it is, and with linear layers in the place of those that lie the other way round."""
    model = copy.deepcopy(case("gpt2").model)
    model.lm_head.weight = nn.Parameter(0.3 * torch.randn(model.lm_head.weight.shape, dtype=torch.float64))
    plain = copy.deepcopy(model)
    for name, module in list(plain.named_modules()):
        if isinstance(module, TransposedLinear):
            inputs, outputs = module.weight.shape
            linear = nn.Linear(inputs, outputs, dtype=torch.float64)
            with torch.no_grad():
                linear.weight.copy_(module.weight.T)
                linear.bias.copy_(module.bias)
            parent, _, own = name.rpartition(".")
            setattr(plain.get_submodule(parent), own, linear)
    return model, plain


def test_found_without_importing_its_library() -> None:
    model, plain = twins()
    layer = model.get_submodule(LAYERS[0])
    assert isinstance(layer, TransposedLinear)
    assert not isinstance(plain.get_submodule(LAYERS[0]), TransposedLinear)
    assert not isinstance(nn.Conv1d(2, 2, 1), TransposedLinear)
    x = torch.randn(5, 3, layer.weight.shape[0], dtype=torch.float64)
    assert is_faithful(layer, x, layer(x))
    assert geometry_of(layer).matrix().shape == layer.weight.T.shape


@pytest.mark.parametrize("key", ["relative_flatness", "relative_flatness_layerwise"])
@pytest.mark.parametrize("layer", LAYERS)
def test_relative_flatness(key: str, layer: str) -> None:
    batch = case("gpt2").batch
    probes = [Probe(model, batch) for model in twins()]
    assert layer_sites(probes[0])[layer].faithful
    ours, theirs = (measure(probe, measures={key: {"layer": layer}})[key] for probe in probes)
    assert ours.details["form"] == theirs.details["form"]
    assert ours.value == pytest.approx(theirs.value, rel=1e-9)
    hessian = Hessian(probes[0], params=f"{layer}.weight").dense()
    weight: Tensor = probes[0].params[f"{layer}.weight"]  # (m, d)
    m, d = weight.shape
    blocks = hessian.reshape(m, d, m, d)
    traces = torch.einsum("mdme->de", blocks)
    gram = weight.T @ weight if key == "relative_flatness" else weight.square().sum() * torch.eye(d).double()
    assert ours.value == pytest.approx(float((gram * traces).sum()), rel=1e-8)


def test_through_its_hessian(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = case("gpt2").batch
    monkeypatch.setattr(
        "landscope.measures.sharpness.relative_flatness._LayerMeasure._form", lambda *_: "layer Hessian"
    )
    values = [
        measure(Probe(model, batch), measures={"relative_flatness": {"layer": LAYERS[0]}})["relative_flatness"].value
        for model in twins()
    ]
    assert values[0] == pytest.approx(values[1], rel=1e-9)


def test_norms_of_the_gradients_of_single_sequences() -> None:
    batch = case("gpt2").batch
    ours, theirs = (Probe(model, batch) for model in twins())
    assert set(LAYERS) <= set(linear_layers(ours))
    found, truth = (squared_gradient_norms(probe, next(probe.batches())) for probe in (ours, theirs))
    assert torch.allclose(found, truth, rtol=1e-10)


@pytest.mark.parametrize("probes", [None, 3])
def test_the_penalty_and_its_gradient(probes: int | None) -> None:
    one = case("gpt2")
    found = []
    for model in twins():
        fam = FAM(model, layer=LAYERS[0], strength=1.0, probes=probes)
        with fam.ready():
            loss = one.truth(model(**{k: v for k, v in one.batch.items() if k != "labels"}), one.batch)
        (fam(loss) - loss).backward()
        grad = model.get_submodule(LAYERS[0]).weight.grad
        found.append((float(fam.value), grad if found else grad.T))
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-9)
    assert torch.allclose(found[0][1], found[1][1], rtol=1e-8, atol=1e-12)
