"""Where every parameter enters the outputs with the power 0 or 1, H and GGN have one diagonal; elsewhere nothing is claimed."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.networks import NETS, Net
from torch import Tensor, nn

from landscope.curvature import dense
from landscope.curvature.multi_affine import is_multi_affine
from landscope.probe.probe import Probe


def diagonals_agree(probe: Probe) -> bool:
    hessian, ggn = dense.hessian(probe).diagonal(), dense.ggn(probe).diagonal()
    return bool((hessian - ggn).abs().max() <= 1e-10 * ggn.abs().max())


@pytest.mark.parametrize("net", NETS, ids=repr)
def test_what_is_called_multi_affine_has_one_diagonal(net: Net) -> None:
    probe = Probe(net.model(), net.data())
    if is_multi_affine(probe):
        assert diagonals_agree(probe)


def test_rectified_networks_are_found() -> None:
    found = {net.name for net in NETS if is_multi_affine(Probe(net.model(), net.data()))}
    assert {"relu_mlp", "residual_batchnorm"} <= found
    assert not found & {"gelu_mlp", "layernorm", "transformer_encoder", "tied_weights", "weight_norm", "gru"}


class Twice(nn.Module):
    """One weight, used twice in a row: its square is in the outputs."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.a = nn.Linear(3, 3)
        self.b = self.a if tied else nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.b(F.relu(self.a(x)))


class Product(nn.Module):
    def __init__(self, same: bool) -> None:
        super().__init__()
        self.a, self.b, self.same = nn.Linear(3, 3), nn.Linear(3, 3), same

    def forward(self, x: Tensor) -> Tensor:
        return self.a(x) * (self.a(x) if self.same else self.b(x))


class InPlace(nn.Module):
    """A part of a tensor is overwritten: what the whole depends on cannot be followed."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(3, 3), nn.Linear(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.a(x).clone()
        y[:, :1] *= self.a(x)[:, :1]
        return self.b(y)


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (Twice(False), True),
        (Twice(True), False),
        (Product(False), True),
        (Product(True), False),
        (InPlace(), False),
        (nn.Sequential(nn.Linear(3, 3), nn.PReLU(), nn.Linear(3, 3)), True),
        (nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3)), False),
        (nn.Sequential(nn.Linear(3, 3), nn.GELU(), nn.Linear(3, 3)), False),
        (nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)), False),
    ],
)
def test_shared_and_curved_parameters(model: nn.Module, expected: bool) -> None:
    torch.manual_seed(0)
    probe = Probe(model.double(), (torch.randn(6, 3).double(), torch.arange(6) % 3))
    assert is_multi_affine(probe) == expected
    assert not expected or diagonals_agree(probe)


def test_batch_statistics_are_curved() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3)).double()
    data = torch.randn(8, 3).double(), torch.arange(8) % 3
    assert is_multi_affine(Probe(model, data))
    assert not is_multi_affine(Probe(model, [data], mode="batch_statistics"))
