"""Images whose channels lie together: the same products, also of models that view activations as rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from landscope.core.torch_fixes.convolutions import WIDE, channels_last
from landscope.curvature import GGN, Hessian
from landscope.curvature.operator import CurvatureOperator
from landscope.probe.probe import Probe


class Viewing(nn.Module):
    """Wide and narrow convolutions, one with groups, and a view of what they leave."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.wide = nn.Conv2d(3, WIDE, 3, padding=1), nn.Conv2d(WIDE, WIDE, 3, stride=2)
        self.apart, self.norm = nn.Conv2d(WIDE, WIDE, 3, groups=WIDE), nn.BatchNorm2d(WIDE)
        self.head = nn.Linear(WIDE, 4)
        self.strides: list[tuple[int, ...]] = []

    def forward(self, x: Tensor) -> Tensor:
        x = self.wide(torch.tanh(self.first(x)))
        self.strides.append(x.stride())
        x = torch.tanh(self.norm(self.apart(x)))
        return self.head(x.view(len(x), -1).view(len(x), WIDE, -1).mean(2))


@pytest.mark.parametrize("way", [0, 1])
@pytest.mark.parametrize("kind", [Hessian, GGN])
def test_products_are_the_same(kind: type[CurvatureOperator], way: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    net = Viewing().double().eval()
    probe = Probe(net, (torch.randn(6, 3, 9, 9).double(), torch.arange(6) % 4), dtype=torch.float64)
    v = torch.randn(probe.n_params, dtype=torch.float64)
    plain, laid_out = kind(probe, compile=False), kind(probe, compile=False)
    truth = plain @ v
    laid_out._methods[False] = [laid_out._methods[False][way]]
    monkeypatch.setattr(laid_out, "_laid_out", channels_last)
    seen = probe.module("").strides
    seen.clear()
    assert torch.allclose(laid_out @ v, truth, rtol=1e-12, atol=1e-14)
    assert {strides[1] for strides in seen} == {1}  # channels next to each other
