"""Gradients of other micro-batches are never dropped or mixed in silently, and what is not mixed is not refused."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from sam_problems import batch, closure_of, loss_of, network, sam_for, same_bits
from torch import Tensor, nn

from landscope.core.errors import StepOrderError
from landscope.training.optimizers import SAM

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def adding(loss: Callable[[], Tensor]) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        value = loss()
        value.backward()
        return value

    return closure


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3, 4)])
@pytest.mark.parametrize(("first", "second"), [(3, 5), (6, 3), (1e-3, 1), (128, 127)])
def test_parallel_gradients_of_other_micro_batches_are_refused(
    first: float, second: float, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    """A loss linear in the weights: every micro-batch has the same direction."""
    w = torch.ones(shape, dtype=dtype, requires_grad=True)
    sam = SAM([w], torch.optim.SGD, lr=0.1, rho=0.0)
    (w * first).sum().backward()
    found = w.grad.clone()
    with pytest.raises(StepOrderError, match="micro_batch_step"):
        sam.step(adding(lambda: (w * second).sum()))
    assert torch.equal(w.detach(), torch.ones_like(w))
    assert torch.equal(w.grad, found)


@pytest.mark.parametrize(
    ("dtype", "spread"),  # in bfloat16, means over less spread have the same bits
    [(torch.float64, 1.0), (torch.float64, 0.01), (torch.float32, 1.0), (torch.float32, 0.01), (torch.bfloat16, 1.0)],
)
def test_large_micro_batches_that_nearly_agree_are_refused(dtype: torch.dtype, spread: float) -> None:
    rng = torch.Generator().manual_seed(0)
    model = nn.Linear(100, 1).to(dtype)
    sam = sam_for(model, "sgd")
    parts = [(torch.randn(65_536, 100, generator=rng) * spread + 1).to(dtype) for _ in range(2)]
    losses = [lambda x=x: model(x).mean() / 2 for x in parts]
    losses[0]().backward()
    before = copy.deepcopy(model)
    with pytest.raises(StepOrderError, match="micro_batch_step"):
        sam.step(adding(losses[1]))
    assert same_bits(model, before)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_the_same_pass_before_the_step_changes_nothing(dtype: torch.dtype) -> None:
    ours, theirs = network(dtype), network(dtype)
    sam, reference = sam_for(ours, "momentum"), sam_for(theirs, "momentum")
    for seed in range(3):
        loss = loss_of(ours, *batch(dtype, seed=seed))
        loss().backward()
        sam.step(adding(loss))
        sam.zero_grad()
        reference.step(closure_of(reference, loss_of(theirs, *batch(dtype, seed=seed))))
    assert same_bits(ours, theirs)


def test_the_same_samples_in_another_order_of_summation_are_the_same_pass() -> None:
    model = network(torch.float32)
    sam = sam_for(model, "sgd")
    x, y = batch(torch.float32, n=64)
    nn.functional.cross_entropy(model(x.flip(0)), y.flip(0)).backward()
    before = copy.deepcopy(model)
    sam.step(adding(loss_of(model, x, y)))
    sam_for(before, "sgd").step(adding(loss_of(before, x, y)))
    assert same_bits(model, before)


def test_a_clipped_first_pass_is_refused_and_the_remedies_work() -> None:
    """Nothing tells a clipped gradient from that of another micro-batch."""
    model, before = network(), network()
    sam = sam_for(model, "sgd")
    loss = loss_of(model, *batch())
    loss().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
    with pytest.raises(StepOrderError, match=r"clipped.*max_norm"):
        sam.step(adding(loss))
    assert same_bits(model, before)
    sam.zero_grad()
    sam.step(adding(loss), max_norm=1e-3)
    assert not same_bits(model, before)


def test_clipping_that_does_not_bite_is_the_same_pass() -> None:
    model, other = network(), network()
    sam, reference = sam_for(model, "sgd"), sam_for(other, "sgd")
    loss = loss_of(model, *batch())
    loss().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1e3)
    sam.step(adding(loss))
    reference.step(adding(loss_of(other, *batch())))
    assert same_bits(model, other)


def test_a_closure_that_clears_one_of_two_networks_does_not_lose_the_others_gradients() -> None:
    one, two = network(), network()
    sam = SAM([*one.parameters(), *two.parameters()], torch.optim.SGD, lr=0.1)

    def loss(seed: int) -> Tensor:
        return loss_of(one, *batch(seed=seed))() + loss_of(two, *batch(seed=seed))()

    def closure() -> Tensor:
        one.zero_grad()
        return adding(lambda: loss(2))()

    loss(1).backward()
    with pytest.raises(StepOrderError, match="micro_batch_step"):
        sam.step(closure)
    assert same_bits(one, network())
    assert same_bits(two, network())


def test_a_closure_may_clear_gradients_that_it_does_not_compute() -> None:
    one, two, alone = network(), network(), network()
    sam = SAM([*one.parameters(), *two.parameters()], torch.optim.SGD, lr=0.1)
    loss_of(two, *batch(seed=1))().backward()
    sam.step(closure_of(sam, loss_of(one, *batch())))
    reference = SAM(alone.parameters(), torch.optim.SGD, lr=0.1)
    reference.step(closure_of(reference, loss_of(alone, *batch())))
    assert same_bits(one, alone)
    assert same_bits(two, network())


def gradients(model: nn.Module, create_graph: bool = False) -> list[Tensor]:
    params = list(model.parameters())
    return list(torch.autograd.grad(loss_of(model, *batch())(), params, create_graph=create_graph))


def assigned(model: nn.Module) -> None:
    for param, grad in zip(model.parameters(), gradients(model), strict=True):
        param.grad = grad


def copied(model: nn.Module) -> None:
    for param, grad in zip(model.parameters(), gradients(model), strict=True):
        param.grad.copy_(grad)


def looked_at_before_clearing(model: nn.Module) -> None:
    gradients(model)
    model.zero_grad()
    loss_of(model, *batch())().backward()


def cleared_after_a_pass_for_nothing(model: nn.Module) -> None:
    loss_of(model, *batch(seed=9))().backward()
    model.zero_grad()
    loss_of(model, *batch())().backward()


def zeroed_after_a_pass_for_nothing(model: nn.Module) -> None:
    loss_of(model, *batch(seed=9))().backward()
    model.zero_grad(set_to_none=False)
    loss_of(model, *batch())().backward()


def assigned_after_a_pass_for_nothing(model: nn.Module) -> None:
    loss_of(model, *batch(seed=9))().backward()
    assigned(model)


SECOND = [
    assigned,
    copied,
    looked_at_before_clearing,
    cleared_after_a_pass_for_nothing,
    zeroed_after_a_pass_for_nothing,
    assigned_after_a_pass_for_nothing,
]


@pytest.mark.parametrize("second", SECOND)
def test_second_gradients_that_replace_the_first_are_taken(second: Callable[[nn.Module], None]) -> None:
    ours, theirs = network(), network()
    sam, reference = sam_for(ours, "momentum"), sam_for(theirs, "momentum")
    loss_of(ours, *batch())().backward()
    sam.first_step()
    second(ours)
    sam.second_step()
    reference.step(closure_of(reference, loss_of(theirs, *batch())))
    assert same_bits(ours, theirs)


def clipped_between(model: nn.Module) -> None:
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    loss_of(model, *batch())().backward()


def clipped_after(model: nn.Module) -> None:
    loss_of(model, *batch())().backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)


def with_a_graph(model: nn.Module) -> None:
    loss_of(model, *batch())().backward(create_graph=True)


def after_looking(model: nn.Module) -> None:
    gradients(model)
    loss_of(model, *batch())().backward()


def added_in_place(model: nn.Module) -> None:
    for param, grad in zip(model.parameters(), gradients(model), strict=True):
        param.grad += grad


def added_twice(model: nn.Module) -> None:
    for _ in range(2):
        for param, grad in zip(model.parameters(), gradients(model), strict=True):
            param.grad = param.grad + grad


@pytest.mark.filterwarnings("ignore:Using backward:UserWarning")
@pytest.mark.parametrize(
    "second", [clipped_between, clipped_after, with_a_graph, after_looking, added_in_place, added_twice]
)
def test_second_gradients_that_add_to_the_first_are_refused(second: Callable[[nn.Module], None]) -> None:
    model = network()
    sam = sam_for(model, "sgd")
    loss_of(model, *batch())().backward()
    sam.first_step()
    second(model)
    with pytest.raises(StepOrderError, match=r"first_step\(zero_grad=True\)"):
        sam.second_step()
    assert same_bits(model, network())


@pytest.mark.parametrize("to_none", [True, False])
@pytest.mark.parametrize("way", ["step", "by hand"])
def test_a_gradient_penalty_that_clears_just_before_backward(way: str, to_none: bool) -> None:
    def penalised(model: nn.Module) -> Tensor:
        grads = gradients(model, create_graph=True)
        return loss_of(model, *batch())() + 0.1 * sum(grad.square().sum() for grad in grads)

    def closure(model: nn.Module) -> Tensor:
        loss = penalised(model)
        model.zero_grad(set_to_none=to_none)
        loss.backward()
        return loss

    ours, theirs = network(), network()
    sam, reference = sam_for(ours, "sgd"), sam_for(theirs, "sgd")
    reference.step(lambda: closure(theirs))
    loss_of(ours, *batch(seed=99))().backward()  # something else
    if way == "step":
        sam.step(lambda: closure(ours))
    else:
        closure(ours)
        sam.first_step()
        closure(ours)
        sam.second_step()
    assert same_bits(ours, theirs)


@pytest.mark.parametrize("sizes", [[math.nan], [math.inf], [1.0, math.nan], [math.inf, 1.0], [1e308, 1e308], [-1.0]])
def test_sizes_that_give_no_weights_are_refused(sizes: list[float]) -> None:
    model = network()
    sam = sam_for(model, "sgd")
    with pytest.raises(ValueError, match="one closure per micro-batch"):
        sam.micro_batch_step([loss_of(model, *batch())] * len(sizes), sizes)
    assert same_bits(model, network())


@pytest.mark.parametrize("max_norm", [math.nan, -1.0])
@pytest.mark.parametrize("way", ["step", "by hand", "scaled_step", "micro_batch_step"])
def test_lengths_that_clip_to_nothing_are_refused(way: str, max_norm: float) -> None:
    model = network()
    sam = sam_for(model, "sgd")
    loss = loss_of(model, *batch())
    with pytest.raises(ValueError, match="max_norm must be a number of at least 0"):
        if way == "step":
            sam.step(adding(loss), max_norm=max_norm)
        elif way == "scaled_step":
            sam.scaled_step(torch.amp.GradScaler("cpu"), loss, max_norm=max_norm)
        elif way == "micro_batch_step":
            sam.micro_batch_step([loss], max_norm=max_norm)
        else:
            loss().backward()
            sam.first_step(zero_grad=True)
            loss().backward()
            sam.second_step(max_norm=max_norm)
    assert same_bits(model, network())
