"""What holds around every base optimizer: the definition, restoration, ρ = 0, precision, accumulation, clipping, resuming."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from sam_problems import (
    BASES,
    batch,
    closure_of,
    distance,
    loss_of,
    network,
    plain_for,
    sam_for,
    same_bits,
    weights,
    written_out,
)
from torch import Tensor

from landscope.training.optimizers import SAM

STEPS, RHO = 4, 0.5
ROUNDING = 1e-11  # float64, after a few steps of Adam, which divides by small numbers

pytestmark = pytest.mark.parametrize("base", BASES)


def test_steps_are_the_definition(base: str) -> None:
    ours, theirs, plain = network(), network(), network()
    sam, reference, without = sam_for(ours, base, RHO), plain_for(theirs, base), plain_for(plain, base)
    for seed in range(STEPS):
        expected = loss_of(theirs, *batch(seed=seed))().item()
        value = sam.step(closure_of(sam, loss_of(ours, *batch(seed=seed))))
        assert value.item() == pytest.approx(expected, rel=ROUNDING)
        written_out(reference, list(theirs.parameters()), loss_of(theirs, *batch(seed=seed)), RHO)
        closure_of(without, loss_of(plain, *batch(seed=seed)))()
        without.step()
    assert distance(weights(ours), weights(theirs)) < ROUNDING
    assert distance(weights(ours), weights(plain)) > 1e-3


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_radius_zero_is_the_base_optimizer_to_the_bit(base: str, dtype: torch.dtype) -> None:
    ours, theirs = network(dtype), network(dtype)
    sam, plain = sam_for(ours, base, rho=0.0), plain_for(theirs, base)
    for seed in range(STEPS):
        sam.step(closure_of(sam, loss_of(ours, *batch(dtype, seed=seed))))
        closure_of(plain, loss_of(theirs, *batch(dtype, seed=seed)))()
        plain.step()
        assert same_bits(ours, theirs)


def test_weights_come_back_to_the_bit(base: str) -> None:
    model = network(torch.float32)
    sam = sam_for(model, base, rho=1e4)  # what a subtraction would not undo
    before = copy.deepcopy(model)
    closure_of(sam, loss_of(model, *batch(torch.float32)))()
    sam.first_step()
    assert not same_bits(model, before)
    assert float((weights(model).double() - weights(before).double()).norm()) == pytest.approx(1e4, rel=1e-5)
    sam.restore()
    assert same_bits(model, before)


def test_by_hand_is_the_closure(base: str) -> None:
    ours, theirs = network(), network()
    closing, by_hand = sam_for(ours, base, RHO), sam_for(theirs, base, RHO)
    for seed in range(STEPS):
        closing.step(closure_of(closing, loss_of(ours, *batch(seed=seed))))
        loss = loss_of(theirs, *batch(seed=seed))
        loss().backward()
        by_hand.first_step(zero_grad=True)
        loss().backward()
        by_hand.second_step(zero_grad=True)
        assert all(p.grad is None for p in theirs.parameters())
    assert same_bits(ours, theirs)


@pytest.mark.parametrize("around", ["the evaluation", "the step"])
def test_autocast(base: str, around: str) -> None:
    """The same autocast evaluation, stepped by the definition; autocast must not remember weights from the first pass.

    One rounding to bfloat16 may fall otherwise.
    """
    ours, theirs, plain = (network(torch.float32) for _ in range(3))
    sam, reference, without = sam_for(ours, base, RHO), plain_for(theirs, base), plain_for(plain, base)

    def loss(model: torch.nn.Module) -> Callable[[], Tensor]:
        def half_precision() -> Tensor:
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return loss_of(model, *batch(torch.float32))()

        return half_precision

    for _ in range(STEPS):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=around == "the step"):
            sam.step(closure_of(sam, loss(ours)))
        written_out(reference, list(theirs.parameters()), loss(theirs), RHO)
        closure_of(without, loss(plain))()
        without.step()
    rounding = STEPS * BASES[base][1]["lr"] * torch.finfo(torch.bfloat16).eps
    assert all(p.dtype == p.grad.dtype == torch.float32 for p in ours.parameters())
    assert distance(weights(ours), weights(theirs)) < rounding
    assert distance(weights(ours), weights(plain)) > 2 * rounding


def test_a_scaled_loss_changes_nothing(base: str) -> None:
    """Powers of two scale exactly, so every bit must agree."""
    ours, theirs = network(torch.float32), network(torch.float32)
    scaled, plain = sam_for(ours, base, RHO), sam_for(theirs, base, RHO)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=2)
    for seed in range(STEPS):
        loss = scaled.scaled_step(scaler, loss_of(ours, *batch(torch.float32, seed=seed)))
        assert torch.equal(loss, plain.step(closure_of(plain, loss_of(theirs, *batch(torch.float32, seed=seed)))))
    assert scaler.get_scale() == 2.0**12
    assert same_bits(ours, theirs)


def test_accumulated_gradients_are_those_of_the_whole_batch(base: str) -> None:
    ours, theirs = network(), network()
    pieces, whole = sam_for(ours, base, RHO), sam_for(theirs, base, RHO)
    for seed in range(STEPS):
        x, y = batch(seed=seed)
        whole.step(closure_of(whole, loss_of(theirs, x, y)))
        micro_batches = list(zip(x.split([5, 5, 2]), y.split([5, 5, 2]), strict=True))
        for xs, ys in micro_batches:
            (loss_of(ours, xs, ys)() * len(xs) / len(x)).backward()
        pieces.first_step(zero_grad=True)
        for xs, ys in micro_batches:
            (loss_of(ours, xs, ys)() * len(xs) / len(x)).backward()
        pieces.second_step(zero_grad=True)
    assert distance(weights(ours), weights(theirs)) < ROUNDING


@pytest.mark.parametrize(
    "way", ["step", "second_step", "scaled_step", "micro_batch_step", "before second_step", "hook"]
)
def test_the_second_gradient_is_clipped(base: str, way: str) -> None:
    ours, theirs = network(), network()
    sam, reference = sam_for(ours, base, RHO), plain_for(theirs, base)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    clip = 1e-2
    if way == "hook":
        sam.base_optimizer.register_step_pre_hook(
            lambda *_: [None, torch.nn.utils.clip_grad_norm_(ours.parameters(), clip)][0]
        )
    for seed in range(STEPS):
        loss = loss_of(ours, *batch(seed=seed))
        if way == "step":
            sam.step(closure_of(sam, loss), max_norm=clip)
        elif way == "scaled_step":
            sam.scaled_step(scaler, loss, max_norm=clip)
        elif way == "micro_batch_step":
            sam.micro_batch_step([loss], max_norm=clip, scaler=scaler)
        elif way == "hook":
            sam.step(closure_of(sam, loss))
        else:
            closure_of(sam, loss)()
            sam.first_step(zero_grad=True)
            loss().backward()
            if way == "second_step":
                sam.second_step(max_norm=clip)
            else:
                torch.nn.utils.clip_grad_norm_(ours.parameters(), clip)
                sam.second_step()
        assert float(torch.cat([p.grad.flatten() for p in ours.parameters()]).norm()) == pytest.approx(clip, rel=1e-3)
        written_out(reference, list(theirs.parameters()), loss_of(theirs, *batch(seed=seed)), RHO, clip)
    # Adam divides by √v + 1e-8, and the clipped gradients are small
    assert distance(weights(ours), weights(theirs)) < ROUNDING


def test_a_resumed_run_goes_on_to_the_bit(base: str, tmp_path: Path) -> None:
    through, halves = network(), network()
    unbroken = sam_for(through, base, RHO, adaptive=True)
    schedule = torch.optim.lr_scheduler.StepLR(unbroken, 3, 0.5)
    sam = sam_for(halves, base, RHO, adaptive=True)
    halved = torch.optim.lr_scheduler.StepLR(sam, 3, 0.5)
    for seed in range(2 * STEPS):
        unbroken.step(closure_of(unbroken, loss_of(through, *batch(seed=seed))))
        schedule.step()
        if seed == STEPS:
            saved = {"model": halves.state_dict(), "optimizer": sam.state_dict(), "schedule": halved.state_dict()}
            torch.save(saved, tmp_path / "half.pt")
            loaded = torch.load(tmp_path / "half.pt", weights_only=True)
            halves = network()
            sam = sam_for(halves, base, rho=0.123)  # what was saved decides
            halved = torch.optim.lr_scheduler.StepLR(sam, 3, 0.5)
            halves.load_state_dict(loaded["model"])
            sam.load_state_dict(loaded["optimizer"])
            halved.load_state_dict(loaded["schedule"])
            assert sam.base_optimizer.param_groups is sam.param_groups
            assert sam.base_optimizer.state is sam.state
        sam.step(closure_of(sam, loss_of(halves, *batch(seed=seed))))
        halved.step()
    assert same_bits(through, halves)
    assert sam.param_groups[0]["lr"] == unbroken.param_groups[0]["lr"] < BASES[base][1]["lr"]


def test_a_copy_goes_on_to_the_bit_and_apart(base: str) -> None:
    model = network()
    sam = sam_for(model, base, RHO)
    sam.step(closure_of(sam, loss_of(model, *batch())))
    twin_model, twin = copy.deepcopy((model, sam))
    assert isinstance(twin, SAM)
    assert twin.base_optimizer.param_groups is twin.param_groups
    assert twin.base_optimizer.state is twin.state
    assert twin.base_optimizer.defaults is twin.defaults
    before = weights(model)
    twin.step(closure_of(twin, loss_of(twin_model, *batch(seed=5))))
    assert torch.equal(weights(model), before)
    sam.step(closure_of(sam, loss_of(model, *batch(seed=5))))
    assert same_bits(model, twin_model)


def test_the_bases_own_state_can_be_loaded(base: str) -> None:
    model, other = network(), network()
    plain, sam = plain_for(model, base), sam_for(other, base, rho=0.0)
    closure_of(plain, loss_of(model, *batch()))()
    plain.step()
    other.load_state_dict(model.state_dict())
    sam.load_state_dict(copy.deepcopy(plain.state_dict()))  # tensors would be shared
    assert sam.param_groups[0]["rho"] == 0.0
    closure_of(plain, loss_of(model, *batch(seed=5)))()
    plain.step()
    sam.step(closure_of(sam, loss_of(other, *batch(seed=5))))
    assert same_bits(model, other)
