"""The loop against loops written by hand."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from loop_runs import BASE, EXACT, distance, merged, weights
from torch import Tensor, nn

from landscope.core.seeding import generator
from landscope.data import Augmentation, load
from landscope.models import build
from landscope.training.loop.train import train

ROUNDING = 1e5 * torch.finfo(torch.float64).eps


def by_hand(net: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, **options: object) -> nn.Module:
    """A plain loop with the random numbers of the spec: 3 epochs, batches of 32, cosine after warm-up, seed 3."""
    augment, smoothing, clip = options.get("augment"), options.get("smoothing", 0.0), options.get("clip")
    rates = [group["lr"] for group in optimizer.param_groups]
    steps, step = 3 * math.ceil(len(y) / 32), 0
    warm = round(0.2 * steps)
    with torch.random.fork_rng(devices=[]):
        for epoch in range(3):
            for rows in torch.randperm(len(y), generator=generator(3, "order", epoch)).split(32):
                inputs = augment(x[rows], generator(3, "augmentation", step)) if augment else x[rows]
                done = max(0, step - warm) / (steps - warm)
                for group, rate in zip(optimizer.param_groups, rates, strict=True):
                    group["lr"] = rate * (min(1.0, (step + 1) / warm) * ((1 + math.cos(math.pi * done)) / 2))
                torch.manual_seed(generator(3, "noise", step).initial_seed())
                optimizer.zero_grad()
                F.cross_entropy(net(inputs), y[rows], label_smoothing=smoothing).backward()
                if clip:
                    nn.utils.clip_grad_norm_(net.parameters(), clip)
                optimizer.step()
                step += 1
    return net


def mlp(**options: object) -> nn.Module:
    return build("mlp", seed=3, in_features=2, num_classes=2, widths=(6,), **options)


@pytest.mark.parametrize(
    ("settings", "optimizer", "options"),
    [
        ({}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3), {}),
        ({"clip_norm": 0.1}, lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-3), {"clip": 0.1}),
        ({"optimizer": {"name": "adam"}}, lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=1e-3), {}),
        (
            {"optimizer": {"name": "adam", "decoupled": True}},
            lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=1e-3),
            {},
        ),
    ],
    ids=["sgd", "clipped", "adam", "adamw"],
)
def test_bit_for_bit(settings: dict, optimizer: object, options: dict) -> None:
    net = mlp(batch_norm=True, dropout=0.2)
    by_hand(net, optimizer(net.parameters()), *load("circles").train, **options)
    result = train(merged(BASE, settings))
    assert all(map(torch.equal, weights(net), weights(result.model)))


def test_augmented_images_and_smoothed_labels() -> None:
    x, y = load("digits", train_size=100, pixels="standard").train
    net = build("mlp", seed=3, in_features=64, widths=(6,)).double()
    augment = Augmentation(crop=1, flip=True, cutout=3)
    by_hand(net, torch.optim.SGD(net.parameters(), lr=0.1), x.double(), y, augment=augment, smoothing=0.2)
    spec = {
        "model": {"name": "mlp", "widths": [6]},
        "data": {"name": "digits", "train_size": 100, "pixels": "standard"},
        "optimizer": {"lr": 0.1, "momentum": 0},
        "augmentation": {"crop": 1, "flip": True, "cutout": 3},
        "label_smoothing": 0.2,
        "precision": "float64",
    }
    assert (
        distance(train(merged({k: BASE[k] for k in ("epochs", "batch_size", "schedule", "seed")}, spec)).model, net)
        < ROUNDING
    )


def test_decoupled_decay_of_sgd() -> None:
    """w ← w − lr·decay·w − lr·v with v the momentum of the plain gradient (Loshchilov and Hutter 2019, algorithm 1)."""
    x, y = load("circles").train
    x, net = x.double(), mlp().double()
    velocity = [torch.zeros_like(p) for p in net.parameters()]
    for _ in range(4):
        gradients = torch.autograd.grad(F.cross_entropy(net(x), y), list(net.parameters()))
        with torch.no_grad():
            for p, g, v in zip(net.parameters(), gradients, velocity, strict=True):
                v.mul_(0.9).add_(g)
                p -= 0.1 * 0.3 * p + 0.1 * v
    settings = {
        "batch_size": "full",
        "epochs": 4,
        "optimizer": {"weight_decay": 0.3, "decoupled": True},
        "schedule": {"name": "constant", "warmup": 0.0},
    }
    assert distance(train(merged(BASE, EXACT, settings)).model, net) < ROUNDING


def test_sam_and_its_micro_batches_by_hand() -> None:
    """g = Σᵢ sᵢ ∇Lᵢ(w + ρ ∇Lᵢ/‖∇Lᵢ‖), over the whole batch or over its parts of 30 rows."""
    x, y = load("circles").train
    x = x.double()
    for size in (100, 30):
        net = mlp().double()
        parameters = list(net.parameters())

        def gradient(x: Tensor, y: Tensor, net: nn.Module = net) -> list[Tensor]:
            return list(torch.autograd.grad(F.cross_entropy(net(x), y), list(net.parameters())))

        total = [torch.zeros_like(p) for p in parameters]
        for a, b in zip(x.split(size), y.split(size), strict=True):
            first = gradient(a, b)
            norm = torch.cat([g.flatten() for g in first]).norm()
            with torch.no_grad():
                for p, g in zip(parameters, first, strict=True):
                    p += 0.2 * g / norm
            for t, g in zip(total, gradient(a, b), strict=True):
                t += g * len(b) / len(y)
            with torch.no_grad():
                for p, g in zip(parameters, first, strict=True):
                    p -= 0.2 * g / norm
        with torch.no_grad():
            for p, t in zip(parameters, total, strict=True):
                p -= 0.1 * t
        settings = {
            "batch_size": "full",
            "epochs": 1,
            "optimizer": {"momentum": 0.0, "weight_decay": 0.0},
            "schedule": "constant",
            "sam": {"rho": 0.2, **({"micro_batch": size} if size < 100 else {})},
        }
        assert distance(train(merged(BASE, EXACT, settings)).model, net) < ROUNDING


def test_running_statistics_move_on_the_first_pass_only() -> None:
    net = mlp(batch_norm=True)
    net(load("circles").train.x)
    settings = {"batch_size": "full", "epochs": 1, "sam": 1.0, "model": {"dropout": 0.0}}
    result = train(merged(BASE, settings)).model
    for name, value in net.named_buffers():
        assert torch.equal(result.get_buffer(name), value), name


def test_the_history_is_what_was_met() -> None:
    """Full batches: the training loss of an epoch is that of the weights before its only step."""
    spec = merged(BASE, EXACT, {"batch_size": "full", "epochs": 2, "snapshots": [0, 1, 2], "fam": 0.1})
    data = load("circles")
    result = train(spec)
    for epoch, row in enumerate(result.history):
        before, after = mlp().double(), mlp().double()
        before.load_state_dict(result.snapshots[epoch])
        after.load_state_dict(result.snapshots[epoch + 1])
        with torch.no_grad():
            x, y = data.train.x.double(), data.train.y
            assert row["train_loss"] == pytest.approx(float(F.cross_entropy(before(x), y)), rel=1e-12)
            assert row["train_error"] == float((before(x).argmax(1) != y).double().mean())
            z, t = after(data.validation.x.double()), data.validation.y
            assert row["validation_loss"] == pytest.approx(float(F.cross_entropy(z, t)), rel=1e-12)
            assert row["validation_error"] == float((z.argmax(1) != t).double().mean())
        assert row["kappa"] > 0
    assert result.scores["final"]["validation_loss"] == result.history[-1]["validation_loss"]
