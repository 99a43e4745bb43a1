"""How SAM behaves as an optimizer of torch: schedulers, factories, names, hooks, errors, exceptions in the middle."""

from __future__ import annotations

import copy
import functools
import io
import pickle
import warnings

import pytest
import torch
from sam_problems import batch, closure_of, loss_of, network, sam_for, same_bits, weights
from torch import Tensor

from landscope.core.errors import LandscopeError, StepOrderError
from landscope.training.optimizers import SAM
from landscope.training.optimizers.building import DecoupledSGD


@pytest.mark.parametrize("by_hand", [True, False])
def test_schedulers_act_on_the_base(by_hand: bool) -> None:
    model = network()
    sam = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.OneCycleLR(sam, max_lr=1.0, total_steps=30)  # moves momentum too
    seen = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(3):
            closure = closure_of(sam, loss_of(model, *batch()))
            if by_hand:
                closure()
                sam.first_step(zero_grad=True)
                closure()
                sam.second_step()
            else:
                sam.step(closure)
            schedule.step()
            seen.append(sam.base_optimizer.param_groups[0]["lr"])
    assert seen == sorted(set(seen))
    assert sam.base_optimizer.param_groups[0]["momentum"] < 0.95


@pytest.mark.parametrize(
    "factory",
    [
        functools.partial(torch.optim.SGD, lr=0.1),
        lambda params: torch.optim.SGD(params, lr=0.1),
        functools.partial(torch.optim.Adam, lr=0.1, fused=True),
        functools.partial(torch.optim.Adagrad, lr=0.1),
        functools.partial(torch.optim.RMSprop, lr=0.1),
    ],
    ids=["partial", "function", "fused", "adagrad", "rmsprop"],
)
def test_the_base_may_be_made_by_a_function(factory) -> None:
    ours, theirs = network(), network()
    sam, plain = SAM(ours.parameters(), factory, rho=0.0), factory(theirs.parameters())
    for _ in range(3):
        sam.step(closure_of(sam, loss_of(ours, *batch())))
        closure_of(plain, loss_of(theirs, *batch()))()
        plain.step()
    assert same_bits(ours, theirs)


def test_named_parameters_and_generators_are_taken() -> None:
    model = network()
    sam = SAM(model.named_parameters(), torch.optim.SGD, lr=0.1)
    assert sam.param_groups[0]["param_names"] == [name for name, _ in model.named_parameters()]
    assert len(SAM((p for p in model.parameters()), torch.optim.SGD, lr=0.1).param_groups[0]["params"]) == 4


def test_an_optimizer_instance_is_refused() -> None:
    model = network()
    with pytest.raises(TypeError, match=r"SAM\(params, torch.optim.SGD"):
        SAM(model.parameters(), torch.optim.SGD(model.parameters(), lr=0.1))
    with pytest.raises(TypeError, match="made a list"):
        SAM(model.parameters(), list)


def test_a_base_that_needs_a_closure_is_refused() -> None:
    with pytest.raises(TypeError, match="LBFGS cannot step without a closure"):
        SAM(network().parameters(), torch.optim.LBFGS, lr=0.1)


def test_decoupled_decay_evaluates_a_closure_at_the_weights_before_it() -> None:
    """The same as torch's way with a closure: evaluate, then decay, then step."""
    ours, theirs = network(), network()
    closing = DecoupledSGD(ours.parameters(), lr=0.1, decay=0.5, momentum=0.9)
    by_hand = DecoupledSGD(theirs.parameters(), lr=0.1, decay=0.5, momentum=0.9)
    for seed in range(3):
        value = closing.step(closure_of(closing, loss_of(ours, *batch(seed=seed))))
        expected = closure_of(by_hand, loss_of(theirs, *batch(seed=seed)))()
        by_hand.step()
        assert torch.equal(value, expected)
        assert same_bits(ours, theirs)


def test_a_base_whose_options_have_our_names_is_refused() -> None:
    with pytest.raises(ValueError, match="Adadelta has options of its own called rho"):
        SAM(network().parameters(), torch.optim.Adadelta)


@pytest.mark.parametrize(
    "settings", [{"rho": -0.1}, {"rho": float("nan")}, {"eta": float("inf")}, {"adaptive": "some"}]
)
def test_settings_out_of_range_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        SAM(network().parameters(), torch.optim.SGD, lr=0.1, **settings)
    first, second = network(), network()
    with pytest.raises(ValueError, match=next(iter(settings))):
        SAM([{"params": first.parameters(), **settings}], torch.optim.SGD, lr=0.1)
    sam = SAM(first.parameters(), torch.optim.SGD, lr=0.1)
    with pytest.raises(ValueError, match=next(iter(settings))):
        sam.add_param_group({"params": second.parameters(), **settings})
    assert len(sam.param_groups) == 1


def test_nothing_may_come_between_the_two_steps() -> None:
    model = network()
    sam = sam_for(model, "momentum")
    with pytest.raises(StepOrderError, match="without first_step"):
        sam.second_step()
    saved = sam.state_dict()
    closure = closure_of(sam, loss_of(model, *batch()))
    closure()
    sam.first_step()
    for attempt in (
        sam.first_step,
        sam.state_dict,
        lambda: sam.load_state_dict(saved),
        lambda: copy.deepcopy(sam),
        lambda: pickle.dumps(sam),
        lambda: sam.step(closure),
        lambda: sam.micro_batch_step([loss_of(model, *batch())]),
    ):
        with pytest.raises(StepOrderError, match="between first_step and second_step"):
            attempt()
    assert issubclass(StepOrderError, LandscopeError)
    closure()
    sam.second_step()
    assert sam.state_dict()["state"]


def test_a_step_without_a_closure_says_what_to_do() -> None:
    model = network()
    sam = sam_for(model, "sgd")
    loss_of(model, *batch())().backward()
    with pytest.raises(StepOrderError, match="no closure"):
        sam.step()


@pytest.mark.parametrize("way", ["step", "scaled_step", "micro_batch_step"])
def test_an_exception_in_the_second_pass_leaves_the_weights_alone(way: str) -> None:
    model = network()
    before = copy.deepcopy(model)
    sam = sam_for(model, "momentum")
    calls = 0

    def loss() -> Tensor:
        nonlocal calls
        calls += 1
        if calls == 2:
            assert not same_bits(model, before)
            raise KeyboardInterrupt
        return loss_of(model, *batch())()

    with pytest.raises(KeyboardInterrupt):
        if way == "step":
            sam.step(closure_of(sam, loss))
        elif way == "scaled_step":
            sam.scaled_step(torch.amp.GradScaler("cpu"), loss)
        else:
            sam.micro_batch_step([loss])
    assert same_bits(model, before)
    assert not sam.state_dict()["state"]


def test_gradients_are_on_for_the_closure() -> None:
    model = network()
    before = weights(model)
    sam = sam_for(model, "sgd")
    with torch.no_grad():
        sam.step(closure_of(sam, loss_of(model, *batch())))
    assert not torch.equal(weights(model), before)
    assert all(p.requires_grad and p.is_leaf for p in model.parameters())


def test_a_pickle_holds_model_and_optimizer_together() -> None:
    model = network()
    sam = sam_for(model, "adam")
    sam.step(closure_of(sam, loss_of(model, *batch())))
    stream = io.BytesIO()
    torch.save((model, sam), stream)
    stream.seek(0)
    other, twin = torch.load(stream, weights_only=False)
    assert twin.base_optimizer.param_groups is twin.param_groups
    for optimizer, net in ((sam, model), (twin, other)):
        optimizer.step(closure_of(optimizer, loss_of(net, *batch(seed=3))))
    assert same_bits(model, other)


def test_hooks_of_both_optimizers_run() -> None:
    model = network()
    sam = sam_for(model, "sgd")
    calls: list[str] = []
    sam.register_step_post_hook(lambda *_: calls.append("sam"))
    sam.base_optimizer.register_step_post_hook(lambda *_: calls.append("base"))
    sam.step(closure_of(sam, loss_of(model, *batch())))
    assert calls == ["base", "sam"]
