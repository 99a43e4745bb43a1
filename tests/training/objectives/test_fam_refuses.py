"""What FAM refuses, and what it says then."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from fam_cases import BY_NAME, CLASSES, F64, cross_entropy, vectors
from torch import Tensor, nn

from landscope.core.errors import DifferentiationError, NotApplicableError, OperandError, UnknownNameError
from landscope.training.objectives import FAM


def test_losses_that_cannot_be_used() -> None:
    net, x, y = vectors()
    with FAM(net, layer="2") as fam:
        with pytest.raises(OperandError, match="it has not run with gradients"):
            fam(torch.ones((), dtype=F64, requires_grad=True) * 2)
        with torch.no_grad(), pytest.raises(OperandError, match="no_grad"):
            fam(F.cross_entropy(net(x), y))
        with pytest.raises(OperandError, match="one number"):
            fam(F.cross_entropy(net(x), y, reduction="none"))
        loss = F.cross_entropy(net(x), y)
        fam(loss)
        with pytest.raises(OperandError, match="once for each"):
            fam(loss)
        loss = F.cross_entropy(net(x), y)
        for _ in range(2):
            net(x)
        with pytest.raises(OperandError, match="another forward pass ran last"):
            fam(loss)
        with pytest.raises(NotApplicableError, match="two forward passes"):
            fam(F.cross_entropy(net(x), y) + F.cross_entropy(net(x + 1), y))
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        with pytest.raises(DifferentiationError, match="before `backward"):
            fam(loss)
    with pytest.raises(OperandError, match="not run with gradients"):
        fam(F.cross_entropy(net(x), y))


def test_layers_and_settings_that_cannot_be_used() -> None:
    net, _, _ = vectors()
    with pytest.raises(UnknownNameError, match="unknown layer"):
        FAM(net, layer="fc")
    with pytest.raises(NotApplicableError, match="is a Tanh. Choices: 0, 2, 4"):
        FAM(net, layer="1")
    with pytest.raises(NotApplicableError, match="Choices: none"):
        FAM(nn.Tanh())
    for wrong in (
        {"strength": float("inf")},
        {"strength": float("nan")},
        {"probes": 0},
        {"form": "rows"},
        {"gradient": "half"},
    ):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            FAM(net, **wrong)
    with pytest.raises(OperandError, match="seed and draws"):
        FAM(net).load_state_dict({"rng": 1})
    assert FAM(net).layer == "4"


class Uses(nn.Module):
    """One layer, used in ways that the formulas do not hold for."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.first, self.layer, self.head = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        if self.how == "twice":
            h = torch.tanh(self.layer(torch.tanh(self.layer(h))))
        elif self.how == "weight elsewhere":
            h = torch.tanh(self.layer(h @ self.layer.weight))
        elif self.how == "input in place":
            a = self.layer(h)
            h = torch.tanh(a) + h.mul_(2)
        elif self.how == "not called":
            h = F.linear(h, self.layer.weight)
        return self.head(h)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ("twice", "several calls"),
        ("input in place", "in place"),
        ("not called", "without calling it"),
    ],
)
def test_layers_whose_weight_acts_in_other_ways_are_refused(how: str, message: str) -> None:
    torch.manual_seed(0)
    net, x = Uses(how), torch.randn(6, 4)
    net.layer.weight.requires_grad_(how != "input in place")  # else autograd notices by itself
    with FAM(net, layer="layer") as fam, pytest.raises((NotApplicableError, OperandError), match=message):
        fam(cross_entropy(net, x))


def test_a_weight_that_acts_elsewhere_is_taken_where_the_layer_is_called() -> None:
    torch.manual_seed(0)
    net, x = Uses("weight elsewhere").double(), torch.randn(6, 4, dtype=F64)
    given = (net.first(x) @ net.layer.weight).detach()
    with FAM(net, layer="layer") as fam, pytest.warns(UserWarning, match="its use in this layer"):
        fam(cross_entropy(net, x))
    held = nn.Sequential(net.layer, nn.Tanh(), net.head)
    with FAM(held, layer="0") as alone:
        alone(cross_entropy(held, given))
    assert torch.isclose(fam.value, alone.value)
    with FAM(held, layer="0") as other:
        penalised = cross_entropy(held, given) + held[0].weight.square().sum()
        with pytest.warns(UserWarning, match="a penalty on it"):
            total = other(penalised)
    assert torch.isclose(total, penalised + 0.1 * alone.value)


def test_layers_that_do_not_what_their_type_says_are_refused() -> None:
    net, x, y = vectors()
    handle = net[2].register_forward_hook(lambda module, args, out: out.square())
    with FAM(net, layer="2") as fam, pytest.raises(NotApplicableError, match="another hook"):
        fam(F.cross_entropy(net(x), y))
    handle.remove()


def test_too_many_directions_ask_for_probes() -> None:
    case = BY_NAME["conv"]
    net, x = case.problem()
    with FAM(net, layer="2", max_directions=5) as fam, pytest.raises(NotApplicableError, match="Set `probes=1`"):
        fam(case.loss(net, x))
    net, x = BY_NAME["BatchNorm behind"].problem()
    with FAM(net, layer="2", max_directions=5) as fam, pytest.raises(NotApplicableError, match="BatchNorm in training"):
        fam(cross_entropy(net, x))
    with FAM(net.eval(), layer="2", max_directions=5) as fam:
        fam(cross_entropy(net, x))
        net.train()
        with pytest.raises(NotApplicableError, match="BatchNorm in training"):
            fam(cross_entropy(net, x))
