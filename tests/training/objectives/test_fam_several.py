"""FAM on several layers, with a strength that rises or rewards."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call, hessian

from landscope import FAM
from landscope.data import load
from landscope.training.loop.train import train
from landscope.training.objectives import SeveralFAM

EXACT = {
    "model": {"name": "mlp", "widths": [5, 4], "activation": "tanh"},
    "data": "circles",
    "batch_size": "full",
    "precision": "float64",
    "optimizer": {"lr": 0.2, "momentum": 0.0},
}


def start(spec: dict[str, object]) -> nn.Module:
    return copy.deepcopy(train({**spec, "epochs": 1, "snapshots": [0], "optimizer": {"lr": 0.0}}).model)


def rows() -> tuple[torch.Tensor, torch.Tensor]:
    split = load("circles").train
    return split.x.double(), split.y


def brute(net: nn.Module, layer: str) -> float:
    """Σ ⟨w_s, w_s'⟩ tr H_{s,s'} from the whole Hessian of the layer's weight."""
    x, y = rows()
    weight = net.get_parameter(f"{layer}.weight").detach()

    def loss(w: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(functional_call(net, {f"{layer}.weight": w}, (x,)), y)

    blocks = hessian(loss)(weight).diagonal(dim1=1, dim2=3).sum(-1)  # type: ignore[operator]
    return float((weight @ weight.T * blocks).sum().detach())


def linear_layers(net: nn.Module) -> list[str]:
    return [name for name, module in net.named_modules() if isinstance(module, nn.Linear)]


def test_the_sum_is_that_of_the_layers() -> None:
    net, (x, y) = start(EXACT), rows()
    layers = linear_layers(net)
    truth = sum(brute(net, layer) for layer in layers)
    fams = SeveralFAM(net, [FAM(net, layer=layer, strength=0.3) for layer in layers])
    loss = F.cross_entropy(net(x), y)
    total = fams(loss)
    assert fams.value is not None
    assert float(fams.value) == pytest.approx(truth, rel=1e-9)
    assert float(total) == pytest.approx(float(loss) + 0.3 * truth, rel=1e-12)
    assert fams.layer == layers[0]
    fams.remove()


def test_several_layers_are_trained_with() -> None:
    layers = linear_layers(start(EXACT))
    result = train({**EXACT, "epochs": 2, "fam": {"strength": 0.1, "layer": layers[1:]}})
    net = start(EXACT)
    truth = sum(brute(net, layer) for layer in layers[1:])
    assert result.history[0]["kappa"] == pytest.approx(truth, rel=1e-9)


@pytest.mark.parametrize("strength", [0.2, -0.2])
def test_strength_rises_over_its_warm_up(strength: float) -> None:
    """Four full-batch steps of plain SGD, by hand."""
    spec = {**EXACT, "epochs": 4, "fam": {"strength": strength, "warmup": 0.75}}
    net, (x, y) = start(EXACT), rows()
    for share in (1 / 3, 2 / 3, 1.0, 1.0):
        with FAM(net, strength=strength * share) as fam:
            total = fam(F.cross_entropy(net(x), y))
        gradients = torch.autograd.grad(total, list(net.parameters()))
        with torch.no_grad():
            for parameter, gradient in zip(net.parameters(), gradients, strict=True):
                parameter -= 0.2 * gradient
    for own, theirs in zip(train(spec).model.parameters(), net.parameters(), strict=True):
        assert torch.allclose(own, theirs, rtol=1e-10, atol=1e-12)


def test_a_reward_raises_what_a_penalty_lowers() -> None:
    def kappa(strength: float) -> float:
        spec = {**EXACT, "epochs": 40, "fam": {"strength": strength, "warmup": 0.5}}
        return float(train(spec).history[-1]["kappa"])

    assert kappa(0.3) < 0.9 * kappa(0.0) < 0.9 * kappa(-0.05)
