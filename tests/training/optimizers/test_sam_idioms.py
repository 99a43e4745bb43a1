"""The ways in which people call SAM with a closure: all give the same bits, or say what to do instead.

The closure may clear gradients or not; a backward pass on the same batch may have come before `step` (davda54/sam and
pytorch_optimizer want one) or not; gradients may have been left by the last step, by other micro-batches, by anything.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from sam_problems import BASES, batch, distance, loss_of, network, plain_for, sam_for, same_bits, weights, written_out
from torch import Tensor, nn

from landscope.core.errors import StepOrderError
from landscope.training.optimizers import SAM

STEPS, RHO = 5, 0.5
ROUNDING = 1e-11  # float64, after a few steps of Adam, which divides by small numbers

Loss = Callable[[], Tensor]


def clearing(loss: Loss, clear: Callable[[], None]) -> Loss:
    def closure() -> Tensor:
        clear()
        value = loss()
        value.backward()
        return value

    return closure


def not_clearing(loss: Loss) -> Loss:
    return clearing(loss, lambda: None)


def as_torch(sam: SAM, model: nn.Module, loss: Loss) -> Tensor:
    return sam.step(clearing(loss, sam.zero_grad))


def clearing_to_zero(sam: SAM, model: nn.Module, loss: Loss) -> Tensor:
    return sam.step(clearing(loss, lambda: sam.zero_grad(set_to_none=False)))


def clearing_the_model(sam: SAM, model: nn.Module, loss: Loss) -> Tensor:
    return sam.step(clearing(loss, lambda: model.zero_grad(set_to_none=False)))


def cleared_before(sam: SAM, model: nn.Module, loss: Loss) -> Tensor:
    sam.zero_grad()
    return sam.step(not_clearing(loss))


def zeroed_before(sam: SAM, model: nn.Module, loss: Loss) -> Tensor:
    sam.zero_grad(set_to_none=False)
    return sam.step(not_clearing(loss))


def cleared_by_nobody(sam: SAM, model: nn.Module, loss: Loss) -> Tensor:
    return sam.step(not_clearing(loss))


def as_davda54(sam: SAM, model: nn.Module, loss: Loss) -> Tensor:
    loss().backward()
    value = sam.step(not_clearing(loss))
    sam.zero_grad()
    return value


def as_davda54_zeroing(sam: SAM, model: nn.Module, loss: Loss) -> Tensor:
    loss().backward()
    value = sam.step(not_clearing(loss))
    model.zero_grad(set_to_none=False)
    return value


def as_pytorch_optimizer(sam: SAM, model: nn.Module, loss: Loss) -> Tensor:
    sam.zero_grad()
    closure = clearing(loss, sam.zero_grad)
    closure()
    return sam.step(closure)


def after_something_else(sam: SAM, model: nn.Module, loss: Loss) -> Tensor:
    loss_of(model, *batch(seed=99))().backward()
    return sam.step(clearing(loss, sam.zero_grad))


def after_something_else_zeroing(sam: SAM, model: nn.Module, loss: Loss) -> Tensor:
    loss_of(model, *batch(seed=99))().backward()
    return sam.step(clearing(loss, lambda: model.zero_grad(set_to_none=False)))


def with_a_graph(sam: SAM, model: nn.Module, loss: Loss) -> Tensor:
    def closure() -> Tensor:
        value = loss()
        grads = torch.autograd.grad(value, list(model.parameters()), create_graph=True)
        for param, grad in zip(model.parameters(), grads, strict=True):
            param.grad = grad if param.grad is None else param.grad + grad
        return value

    return sam.step(closure)


def in_two_passes(sam: SAM, model: nn.Module, loss: Loss) -> Tensor:
    def closure() -> Tensor:
        value = loss()
        (value / 2).backward(retain_graph=True)
        (value / 2).backward()
        return value

    return sam.step(closure)


def by_hand(sam: SAM, model: nn.Module, loss: Loss) -> Tensor:
    value = loss()
    value.backward()
    sam.first_step(zero_grad=True)
    loss().backward()
    sam.second_step(zero_grad=True)
    return value


def by_hand_zeroing(sam: SAM, model: nn.Module, loss: Loss) -> Tensor:
    value = loss()
    value.backward()
    sam.first_step()
    model.zero_grad(set_to_none=False)
    loss().backward()
    sam.second_step()
    model.zero_grad(set_to_none=False)
    return value


IDIOMS = {
    of.__name__: of
    for of in (
        clearing_to_zero,
        clearing_the_model,
        cleared_before,
        zeroed_before,
        cleared_by_nobody,
        as_davda54,
        as_davda54_zeroing,
        as_pytorch_optimizer,
        after_something_else,
        after_something_else_zeroing,
        with_a_graph,
        in_two_passes,
        by_hand,
        by_hand_zeroing,
    )
}
"""All but torch's, which they are compared with."""


PAIRS = [(base, (i + j) % 2 == 1, idiom) for i, idiom in enumerate(IDIOMS.values()) for j, base in enumerate(BASES)]
"""Every idiom with every base, and with both kinds of ascent."""


@pytest.mark.parametrize(
    ("base", "adaptive", "idiom"), PAIRS, ids=[f"{base}-{adaptive}-{idiom.__name__}" for base, adaptive, idiom in PAIRS]
)
def test_every_idiom_is_the_definition(base: str, adaptive: bool, idiom: Callable[..., Tensor]) -> None:
    ours, theirs, written = network(), network(), network()
    sam, reference = sam_for(ours, base, RHO, adaptive=adaptive), sam_for(theirs, base, RHO, adaptive=adaptive)
    plain = plain_for(written, base)
    for seed in range(STEPS):
        value = idiom(sam, ours, loss_of(ours, *batch(seed=seed)))
        assert torch.equal(value, as_torch(reference, theirs, loss_of(theirs, *batch(seed=seed))))
        written_out(plain, list(written.parameters()), loss_of(written, *batch(seed=seed)), RHO)
    assert same_bits(ours, theirs)
    assert adaptive or distance(weights(ours), weights(written)) < ROUNDING


@pytest.mark.parametrize("idiom", IDIOMS.values(), ids=IDIOMS)
def test_statistics_move_once_in_every_idiom(idiom: Callable[..., Tensor]) -> None:
    if idiom.__name__.startswith("after_something_else"):
        pytest.skip("the other pass moves them too")
    model, plain = network(norm=True), network(norm=True)
    sam = sam_for(model, "sgd")
    idiom(sam, model, loss_of(model, *batch()))
    plain(batch()[0])
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), plain.buffers(), strict=True))


class Sometimes(nn.Module):
    """A bias that some batches do not use."""

    def __init__(self) -> None:
        super().__init__()
        self.always, self.bias = network(), nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.used = True

    def forward(self, x: Tensor) -> Tensor:
        out = self.always(x)
        return out + self.bias if self.used else out


@pytest.mark.parametrize("idiom", [as_torch, cleared_before, cleared_by_nobody, as_davda54, by_hand])
def test_a_parameter_that_a_batch_does_not_use_stays(idiom: Callable[..., Tensor]) -> None:
    """Without a gradient, momentum and decay do not move it, as for any optimizer of torch."""
    model = Sometimes()
    sam = sam_for(model, "momentum")
    idiom(sam, model, loss_of(model, *batch()))
    before, model.used = model.bias.detach().clone(), False
    idiom(sam, model, loss_of(model, *batch(seed=2)))
    assert torch.equal(model.bias.detach(), before)


@pytest.mark.parametrize("idiom", [clearing_to_zero, clearing_the_model, by_hand_zeroing])
def test_zeros_are_a_gradient_where_the_user_makes_them(idiom: Callable[..., Tensor]) -> None:
    """Momentum continues, as with any optimizer of torch after zero_grad(set_to_none=False)."""
    model = Sometimes()
    sam = sam_for(model, "momentum")
    idiom(sam, model, loss_of(model, *batch()))
    before, model.used = model.bias.detach().clone(), False
    idiom(sam, model, loss_of(model, *batch(seed=2)))
    buffer = sam.state[model.bias]["momentum_buffer"]
    assert torch.equal(model.bias.detach(), before - 0.1 * buffer)
    assert not torch.equal(buffer, torch.zeros_like(buffer))


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("parts", [2, 3, 4])
def test_accumulated_gradients_before_the_step_are_refused(parts: int, norm: bool) -> None:
    """The sequence of Lightning with accumulate_grad_batches: the closure has the last micro-batch only."""
    model = network(norm=norm)
    sam = sam_for(model, "momentum")
    losses = [loss_of(model, *batch(seed=seed)) for seed in range(parts)]
    for loss in losses[:-1]:
        (loss() / parts).backward()
    before, grads = copy.deepcopy(model), [param.grad.clone() for param in model.parameters()]
    with pytest.raises(StepOrderError, match=r"(?s)micro_batch_step.*first_step\(zero_grad=True\)"):
        sam.step(not_clearing(lambda: losses[-1]() / parts))
    assert same_bits(model, before)
    assert all(torch.equal(a, b) for a, b in zip(model.buffers(), before.buffers(), strict=True))
    assert all(torch.equal(param.grad, grad) for param, grad in zip(model.parameters(), grads, strict=True))
    assert not sam.state_dict()["state"]

    def all_of_them() -> Tensor:
        sam.zero_grad()
        values = [loss() / parts for loss in losses]
        for value in values:
            value.backward()
        return torch.stack(values).sum().detach()

    sam.step(all_of_them)  # the remedy
    assert not same_bits(model, before)


def test_accumulation_that_begins_later_is_refused() -> None:
    model = network()
    sam = sam_for(model, "sgd")
    for seed in range(3):
        as_davda54(sam, model, loss_of(model, *batch(seed=seed)))
    loss_of(model, *batch(seed=3))().backward()
    with pytest.raises(StepOrderError, match="accumulation"):
        as_davda54(sam, model, loss_of(model, *batch(seed=4)))


def test_a_repeated_pass_with_dropout_is_refused_and_the_remedies_work() -> None:
    """Nothing tells another draw from another batch."""
    model = nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.5), nn.Linear(16, 3)).double()
    sam = sam_for(model, "sgd")
    x, y = batch()

    def loss() -> Tensor:
        return F.cross_entropy(model(x), y)

    before = copy.deepcopy(model)
    with pytest.raises(StepOrderError, match="draw random numbers"):
        as_davda54(sam, model, loss)
    assert same_bits(model, before)
    for remedy in (cleared_before, by_hand, as_pytorch_optimizer, as_torch):
        sam.zero_grad()
        before = copy.deepcopy(model)
        remedy(sam, model, loss)
        assert not same_bits(model, before)


@pytest.mark.parametrize("passes", [1, 3])
def test_gradients_that_add_up_by_hand_are_refused(passes: int) -> None:
    model = network()
    before = copy.deepcopy(model)
    sam = sam_for(model, "momentum")
    loss = loss_of(model, *batch())
    loss().backward()
    sam.first_step()
    for _ in range(passes):
        loss().backward()
    with pytest.raises(StepOrderError, match=r"first_step\(zero_grad=True\)"):
        sam.second_step()
    assert same_bits(model, before)
    assert not sam.state_dict()["state"]
    sam.zero_grad()
    by_hand(sam, model, loss)  # and nothing is left of it
    reference = sam_for(before, "momentum")
    as_torch(reference, before, loss_of(before, *batch()))
    assert same_bits(model, before)


@pytest.mark.parametrize("way", ["scaled_step", "micro_batch_step"])
def test_closures_that_call_backward_belong_to_step(way: str) -> None:
    w = torch.ones(2, requires_grad=True)
    sam = SAM([w], torch.optim.SGD, lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    for closure in (not_clearing(lambda: w.sum()), lambda: w.sum().item(), lambda: w.sum().detach()):
        with pytest.raises(StepOrderError, match="leaves backward to this step"):
            sam.scaled_step(scaler, closure) if way == "scaled_step" else sam.micro_batch_step([closure])
        assert torch.equal(w.detach(), torch.ones(2))


def test_a_micro_batch_whose_closure_clears_loses_nothing() -> None:
    ours, theirs = network(), network()
    sam, reference = sam_for(ours, "momentum"), sam_for(theirs, "momentum")

    def cleared(loss: Loss) -> Loss:
        return lambda: [sam.zero_grad(), loss()][1]

    sam.micro_batch_step([cleared(loss_of(ours, *batch(seed=seed))) for seed in range(3)])
    reference.micro_batch_step([loss_of(theirs, *batch(seed=seed)) for seed in range(3)])
    assert same_bits(ours, theirs)


def test_gradients_that_the_user_holds_are_not_written_to() -> None:
    model = network()
    sam = sam_for(model, "sgd")
    seen: list[Tensor] = []

    def closure() -> Tensor:
        value = loss_of(model, *batch())()
        value.backward()
        seen.extend(param.grad for param in model.parameters())
        return value

    expected = torch.autograd.grad(loss_of(model, *batch())(), list(model.parameters()))
    sam.step(closure)
    assert all(torch.equal(a, b) for a, b in zip(seen[: len(expected)], expected, strict=True))


def test_gradients_cleared_behind_their_counter() -> None:
    """`param.grad.data.zero_()` is how gradients were cleared for years; torch does not count that write."""
    ours, theirs = network(), network()
    sam, reference = sam_for(ours, "momentum"), sam_for(theirs, "momentum")
    for seed in range(3):
        loss = loss_of(ours, *batch(seed=seed))
        loss().backward()
        sam.first_step()
        for param in ours.parameters():
            param.grad.data.zero_()
        loss().backward()
        sam.second_step()
        for param in ours.parameters():
            param.grad.data.zero_()
        by_hand(reference, theirs, loss_of(theirs, *batch(seed=seed)))
        assert same_bits(ours, theirs)
