"""SAM with a GradScaler: overflow in either gradient skips the whole step, whichever way it is taken."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from sam_problems import BASES, batch, closure_of, loss_of, network, sam_for, same_bits, weights
from torch import Tensor

from landscope.core.errors import StepOrderError
from landscope.training.optimizers import SAM, frozen_statistics

HUGE = 2.0**127  # times a gradient of 2 it is beyond float32


def take(way: str, sam: SAM, scaler: torch.amp.GradScaler, loss, model: torch.nn.Module | None = None) -> None:
    """One step, by each of the ways there are."""
    if way == "scaled_step":
        sam.scaled_step(scaler, loss, model=model)
    elif way == "micro_batch_step":
        sam.micro_batch_step([loss, loss], scaler=scaler, model=model)
    else:
        sam.zero_grad()
        scaler.scale(loss()).backward()
        if way == "unscaled by hand":
            scaler.unscale_(sam)
        sam.first_step(zero_grad=True)
        with frozen_statistics(model):
            scaler.scale(loss()).backward()
        sam.second_step(scaler=scaler)
        scaler.update()


WAYS = ["scaled_step", "micro_batch_step", "by hand", "unscaled by hand"]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("base", BASES)
def test_every_way_is_the_unscaled_step_to_the_bit(base: str, way: str) -> None:
    ours, theirs = network(torch.float32), network(torch.float32)
    scaled, plain = sam_for(ours, base), sam_for(theirs, base)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8)
    for seed in range(3):
        take(way, scaled, scaler, loss_of(ours, *batch(torch.float32, seed=seed)))
        plain.step(closure_of(plain, loss_of(theirs, *batch(torch.float32, seed=seed))))
    assert same_bits(ours, theirs)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("base", BASES)
def test_overflow_in_the_first_gradient_skips_the_step(base: str, way: str) -> None:
    model = network(torch.float32, norm=True)
    before = copy.deepcopy(model)
    sam = sam_for(model, base)
    scaler = torch.amp.GradScaler("cpu", init_scale=HUGE)

    def loss() -> Tensor:
        return 1e3 * loss_of(model, *batch(torch.float32))()

    take(way, sam, scaler, loss, model)
    assert same_bits(model, before)
    assert not sam.state_dict()["state"]
    assert scaler.get_scale() == HUGE / 2
    assert all(buffer.isfinite().all() for buffer in model.buffers())
    steps = 0
    while same_bits(model, before):  # the scale comes down until the gradients fit
        take(way, sam, scaler, loss, model)
        steps += 1
        assert steps < 20
    assert weights(model).isfinite().all()


@pytest.mark.parametrize("way", ["scaled_step", "micro_batch_step"])
def test_overflow_does_not_reach_running_statistics_that_nobody_froze(way: str) -> None:
    """Weights moved by a gradient that is not finite would be NaN, and the statistics of what they compute too."""
    model = network(torch.float32, norm=True)
    sam = sam_for(model, "sgd")
    take(way, sam, torch.amp.GradScaler("cpu", init_scale=HUGE), lambda: 1e3 * loss_of(model, *batch(torch.float32))())
    assert int(model[1].num_batches_tracked) > 0
    assert all(buffer.isfinite().all() for buffer in model.buffers())


@pytest.mark.parametrize("way", WAYS)
def test_overflow_in_the_second_gradient_skips_the_step(way: str) -> None:
    """L = w²/2 at w = 1 with ρ = 1: the gradients are 1 and 2, and only the second overflows when scaled."""
    w = torch.ones((), requires_grad=True)
    sam = SAM([w], torch.optim.SGD, rho=1.0, lr=0.25, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=HUGE)

    def loss() -> Tensor:
        return w.square() / 2

    take(way, sam, scaler, loss)
    assert w.item() == 1.0
    assert not sam.state_dict()["state"]
    assert scaler.get_scale() == HUGE / 2
    take(way, sam, scaler, loss)
    assert w.item() == 0.5


def test_a_micro_batch_that_overflows_skips_the_whole_step() -> None:
    w = torch.ones((), requires_grad=True)
    sam = SAM([w], torch.optim.SGD, rho=1.0, lr=0.25)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
    fine, broken = (lambda: w.square() / 2), (lambda: w * float("inf"))
    for closures in ([broken, fine], [fine, broken], [fine, broken, fine]):
        scale = scaler.get_scale()
        sam.micro_batch_step(closures, scaler=scaler)
        assert w.item() == 1.0
        assert scaler.get_scale() == scale / 2


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("scale", [2.0**16, 2.0**10, 2.0**-10])
def test_unscaling_twice_is_refused_and_the_remedies_work(scale: float, adaptive: bool) -> None:
    """The usual recipe of clipping, unscale_(optimizer) before the step, under the name that the step does not know."""
    results = []
    for way in ("unscale_(sam)", "unscale_(base)", "max_norm"):
        model = network(torch.float32)
        before = copy.deepcopy(model)
        sam = sam_for(model, "sgd", adaptive=adaptive)
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        loss = loss_of(model, *batch(torch.float32))
        scaler.scale(loss()).backward()
        sam.first_step(zero_grad=True)
        scaler.scale(loss()).backward()
        if way == "max_norm":
            sam.second_step(scaler=scaler, max_norm=0.1)
        else:
            scaler.unscale_(sam if way == "unscale_(sam)" else sam.base_optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            if way == "unscale_(sam)":
                with pytest.raises(StepOrderError, match="base_optimizer"):
                    sam.second_step(scaler=scaler)
                assert same_bits(model, before)
                continue
            sam.second_step(scaler=scaler)
        assert not same_bits(model, before)
        results.append(weights(model))
    assert torch.equal(*results)


def test_a_disabled_scaler_is_no_scaler() -> None:
    ours, theirs = network(), network()
    scaled, plain = sam_for(ours, "adamw"), sam_for(theirs, "adamw")
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    scaled.scaled_step(scaler, loss_of(ours, *batch()), max_norm=0.1)
    plain.step(closure_of(plain, loss_of(theirs, *batch())), max_norm=0.1)
    assert same_bits(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_autocast_with_a_scaler_trains(dtype: torch.dtype) -> None:
    """Half precision follows float32 to within its own rounding, though the first scale overflows float16."""
    ours, theirs = network(torch.float32), network(torch.float32)
    half, full = sam_for(ours, "momentum", rho=0.05), sam_for(theirs, "momentum", rho=0.05)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**24)
    x, y = batch(torch.float32)

    def loss() -> Tensor:
        with torch.autocast("cpu", dtype=dtype):
            return F.cross_entropy(ours(x), y)

    skipped, start = 0, weights(ours)
    for _ in range(20):
        scale = scaler.get_scale()
        before = copy.deepcopy(ours)
        half.scaled_step(scaler, loss)
        if scaler.get_scale() < scale:
            skipped += 1
            assert same_bits(ours, before)
        else:
            full.step(closure_of(full, loss_of(theirs, x, y)))
    assert (skipped > 0) == (dtype == torch.float16)
    moved = float((weights(theirs) - start).norm())
    assert float((weights(ours) - weights(theirs)).norm()) < 20 * torch.finfo(dtype).eps * moved
