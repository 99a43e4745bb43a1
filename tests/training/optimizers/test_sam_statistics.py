"""Running statistics move in the first pass of a sharpness-aware step only, and nothing else about a layer changes."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest
import torch
from sam_problems import BASES, batch, closure_of, loss_of, network, sam_for, same_bits
from torch import Tensor, nn

from landscope.training.optimizers import SAM, frozen_statistics

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


def test_without_a_model_whatever_is_called_is_frozen() -> None:
    for name, make in LAYERS.items():
        layer, other = make(), make()
        layer(images(1))
        before = copy.deepcopy(layer.state_dict())
        with frozen_statistics():
            nn.Sequential(nn.Identity(), layer)(images())
        assert all(torch.equal(value, before[key]) for key, value in layer.state_dict().items()), name
        other(images(1))
        layer(images(2)), other(images(2))  # outside they move as ever
        assert all(torch.equal(a, b) for a, b in zip(layer.buffers(), other.buffers(), strict=True)), name


def test_another_thread_is_left_alone() -> None:
    mine, theirs = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    with frozen_statistics(), ThreadPoolExecutor(1) as thread:
        mine(images())
        thread.submit(theirs, images()).result()
    assert [int(layer.num_batches_tracked) for layer in (mine, theirs)] == [0, 1]


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


class OwnNorm(nn.Module):
    """Batch normalisation as people write it themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("running_mean", torch.zeros(5, dtype=torch.float64))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def forward(self, x: Tensor) -> Tensor:
        self.running_mean.lerp_(x.detach().mean(0), 0.1)
        self.num_batches_tracked += 1
        return x - x.mean(0)


def around(norm: nn.Module) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(4, 5), norm, nn.Tanh(), nn.Linear(5, 3)).double()


def compiled_in_place(model: nn.Module) -> nn.Module:
    model.compile(backend="eager")
    return model


NORMS = {
    "batch norm": lambda: nn.BatchNorm1d(5),
    "without affine": lambda: nn.BatchNorm1d(5, affine=False),
    "cumulative": lambda: nn.BatchNorm1d(5, momentum=None),
    "own": OwnNorm,
}
WRAPPERS = {
    "as it is": lambda model: model,
    "data parallel": nn.DataParallel,
    "scripted": torch.jit.script,
    "compiled": lambda model: torch.compile(model, backend="eager"),
}


@pytest.mark.parametrize("way", ["step", "davda54", "by hand", "frozen by hand", "scaled_step", "micro_batch_step"])
@pytest.mark.parametrize(
    ("norm", "wrapper"), [*((n, "as it is") for n in NORMS), *(("batch norm", w) for w in WRAPPERS)]
)
def test_statistics_move_once_without_naming_the_model(norm: str, wrapper: str, way: str) -> None:
    inner, plain = around(NORMS[norm]()), around(NORMS[norm]())
    model = WRAPPERS[wrapper](inner)
    sam = sam_for(model, "sgd")
    loss = loss_of(model, *batch())
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore" if "by hand" in way and wrapper == "compiled" else "error"
        )  # torch warns of hooks
        take(way, sam, loss, model)
    plain(batch()[0])
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), plain.buffers(), strict=True))
    before = copy.deepcopy(plain.state_dict())
    inner.load_state_dict({**inner.state_dict(), **dict(plain.named_parameters())})
    model(batch(seed=2)[0]), plain(batch(seed=2)[0])  # and nothing stays frozen
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), plain.buffers(), strict=True))
    assert not torch.equal(before["1.running_mean"], plain.state_dict()["1.running_mean"])


def take(way: str, sam: SAM, loss: Callable[[], Tensor], model: nn.Module) -> None:
    """One step, without saying which model it is of."""
    closure = closure_of(sam, loss)
    if way == "step":
        sam.step(closure)
    elif way == "davda54":
        closure()
        sam.step(closure)
    elif way == "scaled_step":
        sam.scaled_step(torch.amp.GradScaler("cpu"), loss)
    elif way == "micro_batch_step":
        sam.micro_batch_step([loss])
    else:
        closure()
        sam.first_step(zero_grad=True)
        with frozen_statistics(model) if way == "frozen by hand" else nullcontext():
            closure()
        sam.second_step()


@pytest.mark.parametrize("way", ["step", "davda54", "scaled_step", "micro_batch_step"])
@pytest.mark.parametrize("what", ["the model", "the loss"])
def test_compiled_code_that_no_hook_sees(what: str, way: str) -> None:
    model, plain = around(nn.BatchNorm1d(5)), around(nn.BatchNorm1d(5))
    loss = loss_of(compiled_in_place(model) if what == "the model" else model, *batch())
    loss = torch.compile(loss, backend="eager") if what == "the loss" else loss
    sam = sam_for(model, "sgd")
    take(way, sam, loss, model)
    plain(batch()[0])
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), plain.buffers(), strict=True))


def test_steps_do_not_compile_again_and_again() -> None:
    torch._dynamo.reset()
    model = around(nn.BatchNorm1d(5))
    compiled = torch.compile(model, backend="eager")
    sam = sam_for(model, "sgd")
    closure = closure_of(sam, loss_of(compiled, *batch()))
    for _ in range(2):
        sam.step(closure)
    with torch._dynamo.config.patch(error_on_recompile=True):
        for _ in range(3):
            sam.step(closure)


def test_between_two_steps_by_hand_only_our_own_layers_stay() -> None:
    """A step that is given up must not keep other networks from learning their statistics."""
    model, other = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    sam = sam_for(model, "sgd")
    model(images()).square().sum().backward()
    sam.first_step(zero_grad=True)
    model(images())
    other(images())
    assert [int(norm.num_batches_tracked) for norm in (model, other)] == [1, 1]
    sam.restore()
    model(images())
    assert int(model.num_batches_tracked) == 2


def test_a_network_without_statistics_is_stepped_without_a_word() -> None:
    model = network()
    sam = sam_for(model, "sgd")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        sam.step(closure_of(sam, loss_of(model, *batch())))
