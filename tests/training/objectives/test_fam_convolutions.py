"""Convolutions inside of `plain_derivatives`: the same numbers as torch's own, in every order and for every geometry."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch
from fam_cases import F64, gradients, relative
from torch import Tensor, nn
from torch.nn.functional import conv2d

from landscope.core.torch_fixes.convolutions import plain_derivatives
from landscope.training.objectives import FAM

LAYERS: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "1-D, dilated": (nn.Conv1d(2, 3, 3, dilation=2), (2, 2, 9)),
    "2-D, grouped, stride": (nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), (3, 4, 7, 8)),
    "2-D, rows that the stride leaves over": (nn.Conv2d(1, 2, 2, stride=3), (2, 1, 7, 9)),
    "3-D, no bias": (nn.Conv3d(2, 3, 3, stride=2, padding=1, bias=False), (2, 2, 4, 5, 6)),
    "transposed 1-D": (nn.ConvTranspose1d(3, 2, 4, stride=3, dilation=2), (2, 3, 5)),
    "transposed 2-D, grouped": (nn.ConvTranspose2d(4, 4, 3, stride=(2, 1), groups=2), (2, 4, 5, 5)),
    "transposed 3-D": (nn.ConvTranspose3d(3, 4, 3, stride=2, padding=1, output_padding=1), (2, 3, 3, 3, 4)),
}


def derivatives(net: nn.Module, x: Tensor, *, plain: bool) -> list[Tensor]:
    """Output, slope, a product with second derivatives, and all gradients of a function of that product."""
    x = x.clone().requires_grad_()
    with plain_derivatives() if plain else nullcontext():
        out = net(x)
    (slope,) = torch.autograd.grad(out.tanh().square().sum(), x, create_graph=True)
    against = torch.linspace(-1, 1, x.numel(), dtype=x.dtype).view_as(x)
    (product,) = torch.autograd.grad((slope.sin() * against).sum(), x, create_graph=True)
    third = torch.autograd.grad((product * against).sum(), [x, *net.parameters()])
    return [out, slope, product, *third]


@pytest.mark.parametrize("name", LAYERS)
def test_derivatives_of_three_orders_are_those_of_torch(name: str) -> None:
    torch.manual_seed(0)
    net, shape = LAYERS[name]
    net, x = net.to(F64), torch.randn(shape, dtype=F64)
    for ours, theirs in zip(derivatives(net, x, plain=True), derivatives(net, x, plain=False), strict=True):
        assert relative(ours.detach(), theirs.detach()) < 1e-13


def test_torch_agrees_by_finite_differences() -> None:
    x, w = (
        torch.randn(2, 1, 4, 4, dtype=F64, requires_grad=True),
        torch.randn(2, 1, 2, 2, dtype=F64, requires_grad=True),
    )

    def function(x: Tensor, w: Tensor) -> Tensor:
        with plain_derivatives():
            return conv2d(x, w, stride=2).square()

    assert torch.autograd.gradcheck(function, (x, w))
    assert torch.autograd.gradgradcheck(function, (x, w))


def test_several_seeds_at_once() -> None:
    net, x = nn.Conv2d(2, 3, 3).to(F64), torch.randn(2, 2, 5, 5, dtype=F64, requires_grad=True)
    with plain_derivatives():
        out = net(x)
    seeds = torch.randn(4, *out.shape, dtype=F64)
    (together,) = torch.autograd.grad(out, x, seeds, is_grads_batched=True, retain_graph=True)
    alone = torch.stack([torch.autograd.grad(out, x, seed, retain_graph=True)[0] for seed in seeds])
    assert relative(together, alone) < 1e-14


@pytest.mark.parametrize("kind", ["single image", "same padding", "autocast"])
def test_what_it_leaves_alone(kind: str) -> None:
    net = nn.Conv2d(2, 3, 3, padding="same" if kind == "same padding" else 0)
    x = torch.randn(2, 5, 5) if kind == "single image" else torch.randn(1, 2, 5, 5)
    with plain_derivatives(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == "autocast"):
        out = net(x)
        assert out.dtype == (torch.bfloat16 if kind == "autocast" else torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=kind == "autocast"):
        assert torch.equal(out, net(x))


def test_a_penalty_with_probes_is_the_same_inside_of_ready() -> None:
    torch.manual_seed(1)
    net = nn.Sequential(
        *(nn.Linear(3, 8), nn.ReLU(), nn.Unflatten(1, (2, 2, 2)), nn.ConvTranspose2d(2, 3, 3, stride=2)),
        *(nn.InstanceNorm2d(3), nn.Tanh(), nn.Conv2d(3, 1, 3), nn.Sigmoid()),
    ).to(F64)
    x = torch.randn(4, 3, dtype=F64)
    found = []
    for inside in (True, False):
        with FAM(net, layer="0", form="layerwise", probes=1, seed=5) as fam:
            with fam.ready() if inside else nullcontext():
                out = net(x)
            assert ("_PartialBackward" in _names(out)) == inside
            found.append(gradients(fam(out.square().mean()), net))
    assert relative(*found) < 1e-12


def _names(out: Tensor) -> set[str]:
    open_, seen = [out.grad_fn], set[str]()
    while open_:
        node = open_.pop()
        if node is not None:
            seen.add(node.name())
            open_.extend(child for child, _ in node.next_functions)
    return seen
