"""What FAM reads off the graph behind a layer: piecewise linear or not, normalised over the batch or not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from landscope.training.objectives.recording import between, is_straight, normalises_batches

STRAIGHT = {
    "convolutions and pools": nn.Sequential(
        nn.Conv2d(4, 4, 3, padding=1),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.LeakyReLU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
    ),
    "adaptive pools": nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.ReLU6(), nn.AdaptiveMaxPool2d(1), nn.Flatten()),
    "sequences": nn.Sequential(nn.Flatten(2), nn.Conv1d(4, 3, 3), nn.MaxPool1d(2), nn.Linear(31, 2)),
    "dropout": nn.Sequential(nn.Dropout(0.5), nn.Dropout2d(0.5), nn.Upsample(scale_factor=2)),
}
CURVED = {
    "tanh": nn.Tanh(),
    "gelu": nn.GELU(),
    "layernorm": nn.LayerNorm(8),
    "groupnorm": nn.GroupNorm(2, 4),
    "instancenorm": nn.InstanceNorm2d(4),
    "softmax": nn.Softmax(1),
}


def images() -> Tensor:
    return torch.randn(3, 4, 8, 8, generator=torch.Generator().manual_seed(0)).requires_grad_()


def second_derivative(module: nn.Module, x: Tensor) -> float:
    out = module(x.clone())
    weights = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    (slope,) = torch.autograd.grad((out * weights).sum(), x, create_graph=True)
    if not slope.requires_grad:
        return 0.0
    (product,) = torch.autograd.grad(slope, x, torch.ones_like(x).cumsum(-1), allow_unused=True, materialize_grads=True)
    return float(product.abs().max())


@pytest.mark.parametrize("name", STRAIGHT)
def test_piecewise_linear_networks_are_known(name: str) -> None:
    x = images()
    out = STRAIGHT[name](x.clone())
    assert is_straight(out, x)
    assert not normalises_batches(out, x)
    torch.manual_seed(0)
    assert second_derivative(STRAIGHT[name], x) == 0


@pytest.mark.parametrize("name", CURVED)
def test_curved_ones_are_never_called_straight(name: str) -> None:
    x = images()
    out = CURVED[name](x)
    assert not is_straight(out, x)
    assert not normalises_batches(out, x)
    assert second_derivative(CURVED[name], x) > 0


def test_products_of_two_dependents_are_curved() -> None:
    x = torch.randn(4, 3, requires_grad=True)
    constant = torch.randn(3, 3, requires_grad=True)
    assert is_straight((x @ constant) * constant[0], x)
    for curved in (x * x, x * x.relu(), x @ x.T, torch.bmm(x[None], x.T[None]), x / x.sum()):
        assert not is_straight(curved, x)


def test_batch_norm_is_straight_in_evaluation_and_mixes_in_training() -> None:
    x, norm = images(), nn.BatchNorm2d(4)
    out = norm(x)
    assert (is_straight(out, x), normalises_batches(out, x)) == (False, True)
    out = norm.eval()(x)
    assert (is_straight(out, x), normalises_batches(out, x)) == (True, False)


def test_paths_around_a_tensor_are_found() -> None:
    x = torch.randn(3, requires_grad=True)
    y = x.relu()
    z = y * 2
    assert not between(z.sum(), x, without=y)
    assert between((z + x).sum(), x, without=y)
