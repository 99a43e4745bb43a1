"""Strided 1×1 convolutions of few channels: the same function and the same gradients, by another way."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from landscope.core.torch_fixes.strided_pointwise import avoid_overruns, overruns
from landscope.probe.probe import Probe

LAYERS = {
    "stride 2": {"stride": 2},
    "one direction": {"stride": (1, 3)},
    "padded": {"stride": 2, "padding": (1, 2)},
    "reflected": {"stride": 2, "padding": 1, "padding_mode": "reflect"},
    "grouped": {"stride": 2, "groups": 4},
    "without bias": {"stride": 3, "bias": False},
    "valid, dilated": {"stride": 2, "padding": "valid", "dilation": 2},
}


@pytest.mark.parametrize("options", LAYERS.values(), ids=LAYERS)
def test_it_is_the_same_convolution(options):
    torch.manual_seed(0)
    plain = nn.Conv2d(8, 12, 1, dtype=torch.float64, **options)
    other = nn.Sequential(copy.deepcopy(plain))
    avoid_overruns(other)
    assert overruns(plain)
    assert not overruns(other[0])
    x = torch.randn(3, 8, 9, 7, dtype=torch.float64)
    grads = []
    for layer in (plain, other):
        own = x.clone().requires_grad_()
        out = layer(own)
        loss = (out * torch.arange(out.numel(), dtype=out.dtype).reshape(out.shape).cos()).square().sum()
        grads.append((out, *torch.autograd.grad(loss, [own, *layer.parameters()])))
    for a, b in zip(*grads, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-12)


class Shortcut(nn.Module):
    """The beginning of a small ResNet."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.shortcut = nn.Conv2d(8, 16, 1, stride=2)
        self.last = nn.Linear(16 * 8 * 8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.shortcut(self.first(x).tanh()).flatten(1))


def test_a_channels_last_network_is_measured_as_any_other():
    torch.manual_seed(0)
    net = Shortcut()
    x, y = torch.randn(25, 3, 16, 16), torch.arange(25) % 3
    true = Probe(net, (x, y), dtype=torch.float64).gradient()
    net.to(memory_format=torch.channels_last)
    probe = Probe(net, (x.contiguous(memory_format=torch.channels_last), y))
    assert not any(overruns(module) for module in probe.modules.values())
    torch.testing.assert_close(probe.gradient().double(), true, rtol=1e-4, atol=1e-5)
    assert type(net.shortcut) is nn.Conv2d  # the user's own is untouched
