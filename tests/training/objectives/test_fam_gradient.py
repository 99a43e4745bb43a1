"""FAM's value and whole gradient against the dense Hessian of the layer's weight in float64, differentiated by autograd."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from fam_cases import (
    ALL,
    BY_NAME,
    CLASSES,
    F64,
    Case,
    N,
    block_traces,
    cross_entropy,
    dense_flatness,
    gradients,
    relative,
)
from torch import nn

from landscope.measures.sharpness.relative_flatness import RelativeFlatness, RelativeFlatnessLayerwise
from landscope.probe.probe import Probe
from landscope.training.objectives import FAM
from landscope.training.objectives import fam as fam_module
from landscope.training.objectives.fam import Form

EXACT = 1e-11


@pytest.mark.parametrize("form", get_args(Form))
@pytest.mark.parametrize("case", ALL, ids=repr)
def test_value_and_whole_gradient_are_those_of_the_dense_hessian(case: Case, form: Form) -> None:
    net, x = case.problem()
    truth = dense_flatness(case, net, x, layerwise=form != "neuronwise")
    if form == "unsquared":
        truth = truth / net.get_submodule(case.layer).weight.norm()
    plain = gradients(case.loss(net, x), net)
    with FAM(net, layer=case.layer, strength=0.7, form=form) as fam:
        total = fam(case.loss(net, x))
    assert fam.value is not None
    assert relative(fam.value, truth) < EXACT
    assert relative(gradients(total, net), plain + 0.7 * gradients(truth, net)) < EXACT


def test_every_way_to_the_exact_value_has_its_case(monkeypatch: pytest.MonkeyPatch) -> None:
    ways: dict[str, str] = {}
    monkeypatch.setattr(
        fam_module, "exact_flatness", lambda *a: ways.update({case.name: "products"}) or torch.zeros(())
    )
    monkeypatch.setattr(
        fam_module, "flatness_through_outputs", lambda *a: ways.update({case.name: "outputs"}) or torch.zeros(())
    )
    for case in ALL:
        net, x = case.problem()
        with FAM(net, layer=case.layer) as fam:
            fam(case.loss(net, x))
    through = {name for name, way in ways.items() if way == "outputs"}
    assert through == {
        "hidden, ReLU",
        "hidden, ReLU in place",
        "first, ReLU, mse",
        "hidden, ReLU, Dice",
        "residual",
        "conv, ReLU",
    }


def test_the_gradient_is_the_slope_of_the_value() -> None:
    case = BY_NAME["hidden, tanh"]
    net, x = case.problem()
    with FAM(net, layer=case.layer, strength=1.0) as fam:
        gradient = gradients(fam.penalty(case.loss(net, x)), net)
        start = nn.utils.parameters_to_vector(net.parameters()).detach()
        direction = torch.randn(len(start), dtype=F64, generator=torch.Generator().manual_seed(1))
        step = 1e-5
        values = []
        for sign in (1, -1):
            nn.utils.vector_to_parameters(start + sign * step * direction, net.parameters())
            values.append(float(fam.penalty(case.loss(net, x)).detach()))
    slope = (values[0] - values[1]) / (2 * step)
    assert abs(slope / float(gradient @ direction) - 1) < 1e-6


@pytest.mark.parametrize("probes", [None, 3])
@pytest.mark.parametrize(
    "name",
    [
        "last layer, smoothed and weighted",
        "hidden, fewer inputs than neurons",
        "hidden, ReLU",
        "BatchNorm behind",
        "sequences",
        "conv, ReLU",
    ],
)
def test_weights_only_holds_curvature_and_features_constant(name: str, probes: int | None) -> None:
    case = BY_NAME[name]
    net, x = case.problem()
    with FAM(net, layer=case.layer, strength=1.0, probes=probes, gradient="weights_only") as fam:
        fam.penalty(case.loss(net, x)).backward()
    weight = net.get_submodule(case.layer).weight
    assert all(p is weight or p.grad is None or not p.grad.any() for p in net.parameters())
    assert fam.value is not None
    assert weight.grad is not None
    if probes is None:
        truth = 2 * block_traces(case, net, x) @ weight.flatten(1)
        assert relative(weight.grad.flatten(1), truth) < EXACT
        assert relative(fam.value, dense_flatness(case, net, x)) < EXACT
    else:  # κ is quadratic in the weight then, by Euler's theorem for every draw
        assert abs(float((weight.grad * weight.detach()).sum()) / float(2 * fam.value) - 1) < EXACT


@pytest.mark.parametrize("layerwise", [False, True], ids=["neuronwise", "layerwise"])
@pytest.mark.parametrize("name", ["last layer", "hidden, tanh", "hidden, ReLU", "conv"])
def test_the_value_is_the_measure_of_the_same_data(name: str, layerwise: bool) -> None:
    case = BY_NAME[name]
    net, x = case.problem()
    y = torch.arange(N) % CLASSES
    measure = (RelativeFlatnessLayerwise if layerwise else RelativeFlatness)(layer=case.layer)
    truth = measure(Probe(net, (x, y), dtype=F64)).value
    with FAM(net.eval(), layer=case.layer, form="layerwise" if layerwise else "neuronwise") as fam:
        fam(F.cross_entropy(net(x), y))
    assert fam.value is not None
    assert abs(float(fam.value) / truth - 1) < EXACT


def test_no_strength_leaves_the_loss_as_it_is() -> None:
    net, x = BY_NAME["last layer"].problem()
    with FAM(net, layer="4", strength=0.0) as fam:
        loss = cross_entropy(net, x)
        assert fam(loss) is loss
    assert fam.value is None


def test_a_frozen_front_and_a_frozen_layer() -> None:
    case = BY_NAME["hidden, tanh"]
    net, x = case.problem()
    truth = gradients(dense_flatness(case, net, x), net[4])
    net[0].requires_grad_(False)
    net[2].requires_grad_(False)
    with FAM(net, layer="2", strength=1.0) as fam:
        assert relative(gradients(fam.penalty(case.loss(net, x)), net[4]), truth) < EXACT


def test_a_loss_without_curvature() -> None:
    net, x = BY_NAME["hidden, ReLU"].problem()
    with FAM(net, layer="2", strength=1.0) as fam:
        total = fam(net(x).mean())
    total.backward()
    assert fam.value == 0


def test_two_layers_of_one_loss() -> None:
    case = BY_NAME["hidden, tanh"]
    net, x = case.problem()
    with FAM(net, layer="0", strength=1.0) as a, FAM(net, layer="2", strength=1.0) as b:
        loss = case.loss(net, x)
        both = a.penalty(loss) + b.penalty(loss)
    truth = torch.stack([dense_flatness(Case("", case.make, layer), net, x) for layer in ("0", "2")]).sum()
    assert relative(gradients(both, net), gradients(truth, net)) < EXACT
