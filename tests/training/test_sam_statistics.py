"""Running statistics move in the first pass of a sharpness-aware step only, and nothing else about a layer changes."""

from __future__ import annotations

import copy

import pytest
import torch
from sam_problems import BASES, batch, closure_of, loss_of, network, sam_for, same_bits
from torch import Tensor, nn

from landscope.training.optimizers import frozen_statistics

LAYERS = {
    "batch norm": lambda: nn.BatchNorm2d(3),
    "cumulative": lambda: nn.BatchNorm2d(3, momentum=None),
    "without affine": lambda: nn.BatchNorm2d(3, affine=False),
    "untracked": lambda: nn.BatchNorm2d(3, track_running_stats=False),
    "instance norm": lambda: nn.InstanceNorm2d(3, track_running_stats=True, affine=True),
    "cumulative instance norm": lambda: nn.InstanceNorm2d(3, momentum=None, track_running_stats=True),
    "plain instance norm": lambda: nn.InstanceNorm2d(3),
}


def images(seed: int = 0) -> Tensor:
    return torch.randn(4, 3, 5, 5, generator=torch.Generator().manual_seed(seed)) * 2 + 1


def description(layer: nn.Module) -> dict[str, object]:
    return {k: v for k, v in vars(layer).items() if not k.startswith("_")}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", LAYERS)
def test_outputs_are_the_same_and_statistics_stay(name: str, training: bool) -> None:
    layer = LAYERS[name]()
    layer(images(1))
    layer.train(training)
    twin, settings = copy.deepcopy(layer), description(layer)
    buffers = dict(layer.named_buffers())
    with frozen_statistics(layer):
        inside = layer(images())
    assert torch.equal(inside, twin(images()))
    assert description(layer) == settings
    for key, value in layer.named_buffers():
        assert value is buffers[key]
    again = LAYERS[name]()
    again(images(1))
    for a, b in zip(layer.buffers(), again.buffers(), strict=True):
        assert torch.equal(a, b)
    layer.train()(images(2))  # outside they move as ever
    again(images(2))
    assert all(torch.equal(a, b) for a, b in zip(layer.buffers(), again.buffers(), strict=True))


@pytest.mark.parametrize("name", ["batch norm", "instance norm"])
def test_the_mode_may_change_inside(name: str) -> None:
    layer = LAYERS[name]()
    layer(images(1))
    before, twin = copy.deepcopy(layer.state_dict()), copy.deepcopy(layer)
    with frozen_statistics(layer):
        evaluated = layer.eval()(images())
        layer.train()(images())
    assert torch.equal(evaluated, twin.eval()(images()))
    assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items())


@pytest.mark.parametrize("name", ["batch norm", "cumulative", "instance norm"])
def test_exceptions_and_nesting_put_everything_back(name: str) -> None:
    layer = LAYERS[name]()
    settings, buffers = description(layer), list(layer.buffers())
    with pytest.raises(KeyboardInterrupt), frozen_statistics(layer), frozen_statistics(layer):
        layer(images())
        raise KeyboardInterrupt
    assert description(layer) == settings
    assert all(a is b for a, b in zip(layer.buffers(), buffers, strict=True))


def test_backward_may_come_after_the_context() -> None:
    for make in LAYERS.values():
        layer, x = make(), images().requires_grad_()
        with frozen_statistics(layer):
            out = layer(x)
        out.square().sum().backward()
        assert x.grad is not None


def test_no_model_is_nothing_to_freeze() -> None:
    with frozen_statistics(None):
        pass


@pytest.mark.parametrize("way", ["step", "by hand", "scaled_step", "micro_batch_step"])
@pytest.mark.parametrize("base", BASES)
def test_a_step_moves_statistics_as_one_plain_pass_does(base: str, way: str) -> None:
    model, plain = network(norm=True), network(norm=True)
    sam = sam_for(model, base)
    loss = loss_of(model, *batch())
    if way == "step":
        sam.step(closure_of(sam, loss), model=model)
    elif way == "scaled_step":
        sam.scaled_step(torch.amp.GradScaler("cpu"), loss, model=model)
    elif way == "micro_batch_step":
        sam.micro_batch_step([loss], model=model)
    else:
        loss().backward()
        sam.first_step(zero_grad=True)
        with frozen_statistics(model):
            loss().backward()
        sam.second_step()
    plain(batch()[0])
    assert len(list(model.buffers())) == 3
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), plain.buffers(), strict=True))
    assert not same_bits(model, plain)


def test_without_a_model_statistics_move_twice() -> None:
    model = network(norm=True)
    sam = sam_for(model, "sgd")
    sam.step(closure_of(sam, loss_of(model, *batch())))
    assert int(model[1].num_batches_tracked) == 2
