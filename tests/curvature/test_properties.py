"""Drawn architectures, batch splits and parameter subsets: the products never depend on how the data is cut."""

from __future__ import annotations

from itertools import pairwise

import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from networks import relative
from torch import nn

from landscope import GGN, EmpiricalFisher, Hessian, Probe
from landscope.curvature import dense

ACTIVATIONS = [nn.ReLU, nn.Tanh, nn.GELU, nn.SiLU, nn.ELU, nn.Softplus, nn.Sigmoid]
TRUTHS = {Hessian: dense.hessian, GGN: dense.ggn, EmpiricalFisher: dense.empirical_fisher}
LOSSES = {"cross_entropy": None, "mse": torch.float64, "binary_cross_entropy": torch.float64}


@st.composite
def networks(draw: st.DrawFn) -> tuple[nn.Module, torch.Tensor]:
    """A stack of drawn blocks over vectors or over small images."""
    torch.manual_seed(draw(st.integers(0, 10**6)))
    n = draw(st.integers(2, 9))
    blocks: list[nn.Module] = []
    if draw(st.booleans()):
        channels, size = draw(st.integers(1, 2)), draw(st.integers(3, 5))
        x = torch.randn(n, channels, size, size)
        out = draw(st.sampled_from([2, 4]))
        kernel, stride = draw(st.integers(1, 3)), draw(st.integers(1, 2))
        blocks.append(
            nn.Conv2d(channels, out, kernel, stride, padding=draw(st.integers(0, 1)), bias=draw(st.booleans()))
        )
        blocks.append(draw(st.sampled_from([nn.Identity(), nn.BatchNorm2d(out), nn.GroupNorm(2, out)])))
        blocks += [draw(st.sampled_from(ACTIVATIONS))(), nn.Flatten()]
    else:
        x = torch.randn(n, draw(st.integers(1, 4)))
    width = nn.Sequential(*blocks).eval()(x).shape[1]
    for _ in range(draw(st.integers(0, 2))):
        following = draw(st.integers(1, 4))
        blocks += [nn.Linear(width, following, bias=draw(st.booleans())), draw(st.sampled_from(ACTIVATIONS))()]
        if following > 1 and draw(st.booleans()):
            blocks.append(nn.LayerNorm(following))
        width = following
    blocks.append(nn.Linear(width, draw(st.integers(2, 3))))
    return nn.Sequential(*blocks).double(), x.double()


@settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(network=networks(), kind=st.sampled_from(list(TRUTHS)), loss=st.sampled_from(list(LOSSES)), data=st.data())
def test_any_network_any_cut_any_subset(
    network: tuple[nn.Module, torch.Tensor], kind: type, loss: str, data: st.DataObject
) -> None:
    model, x = network
    n, classes = len(x), model(x).shape[1]
    y = (
        torch.arange(n) % classes
        if LOSSES[loss] is None
        else (torch.rand(n, classes, dtype=torch.float64) > 0.5).double()
    )
    names = [name for name, _ in model.named_parameters()]
    subset = data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))
    truth = TRUTHS[kind](Probe(model, (x, y), loss, params=subset))
    cuts = sorted(data.draw(st.sets(st.integers(1, n - 1), max_size=3))) if n > 1 else []
    edges = [0, *cuts, n]
    batches = [(x[a:b], y[a:b]) for a, b in pairwise(edges)]
    op = kind(Probe(model, data.draw(st.permutations(batches)), loss, params=subset))
    block = torch.randn(op.shape[0], data.draw(st.integers(1, 3)), dtype=torch.float64)
    expected = truth @ block
    error = float((op @ block - expected).norm())
    assert error <= 1e-9 * max(float(expected.norm()), float(truth.norm() * block.norm()) * 1e-3) + 1e-15
    assert relative(op @ block[:, 0] + 1, expected[:, 0] + 1) < 1e-9
