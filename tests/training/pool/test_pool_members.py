"""Every member of a pool is the model that `train` gives for its spec: in float64, over a few epochs."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
import torch
from torch import Tensor, nn

from landscope.core.seeding import generator, normal
from landscope.models import build
from landscope.training.loop.folder import TrainingResult
from landscope.training.loop.train import train
from landscope.training.pool.result import Pool
from landscope.training.pool.train_pool import train_pool

Spec = dict[str, object]
MLP: Spec = {"name": "mlp", "widths": [8], "batch_norm": True}
LENET: Spec = {"name": "lenet5", "channels": [2, 3], "widths": [8, 6], "dropout": 0.0}
ADAM: Spec = {"name": "adam", "lr": 0.01, "eps": 1e-4}
"""A bias before a BatchNorm has gradient 0 up to rounding, which Adam with a small eps would blow up to a step."""


def vectors() -> dict[str, tuple[Tensor, Tensor]]:
    x = normal((34, 5), generator(0, "vectors"), torch.float64)
    y = (x[:, 0] + x[:, 1].square() > 0.5).long() + (x[:, 2] > 1).long()
    return {"train": (x[:22], y[:22]), "validation": (x[22:28], y[22:28]), "test": (x[28:], y[28:])}


def images() -> dict[str, tuple[Tensor, Tensor]]:
    x = normal((26, 1, 16, 16), generator(0, "images"), torch.float64)
    y = torch.arange(26) % 3
    return {"train": (x[:18], y[:18]), "validation": (x[18:22], y[18:22]), "test": (x[22:], y[22:])}


CASES: dict[str, Spec] = {
    "momentum": {"model": {"name": "mlp", "widths": [8]}},
    "nesterov and decay": {
        "model": {"name": "mlp", "widths": [8]},
        "optimizer": {"momentum": 0.8, "nesterov": True, "weight_decay": 0.1},
    },
    "decoupled decay": {"model": MLP, "optimizer": {"weight_decay": 0.1, "decoupled": True}},
    "batch norm": {"model": MLP},
    "adam": {"model": MLP, "optimizer": ADAM},
    "adamw, cosine, warm-up": {
        "model": MLP,
        "optimizer": {"name": "adamw", "lr": 0.02, "weight_decay": 0.1, "eps": 1e-4},
        "schedule": {"name": "cosine", "warmup": 0.3},
    },
    "accumulation": {"model": MLP, "accumulate": 3},
    "clipping and smoothing": {"model": MLP, "clip_norm": 0.5, "label_smoothing": 0.1},
    "sam": {"model": MLP, "sam": 0.1},
    "asam, clipped": {"model": MLP, "sam": {"rho": 0.5, "adaptive": True}, "clip_norm": 0.5},
    "micro-batches": {"model": MLP, "sam": {"rho": 0.1, "micro_batch": 3}, "optimizer": ADAM},
    "sam, accumulated": {"model": MLP, "sam": 0.1, "accumulate": 2},
    "full batch": {"model": MLP, "batch_size": "full", "epochs": 5},
    "whole batches only": {"model": MLP, "drop_last": True},
    "averages of epochs": {"model": MLP, "averaging": {"kind": "swa", "start": 0.3, "lr": 0.5}},
    "averages of steps": {"model": MLP, "averaging": {"kind": "ema", "decay": 0.7, "start": 0.3}},
    "few rows": {"model": MLP, "evaluate_every": 2, "averaging": {"kind": "swa", "start": 0.3}, "epochs": 5},
    "few rows of full batches": {"model": MLP, "evaluate_every": 4, "batch_size": "full", "epochs": 10},
    "few rows, early stopping": {
        "model": MLP,
        "evaluate_every": 2,
        "early_stopping": {"patience": 3},
        "optimizer": {"lr": 0.5},
        "epochs": 12,
    },
    "early stopping": {"model": MLP, "early_stopping": {}, "optimizer": {"lr": 0.5}, "epochs": 5},
    "snapshots": {"model": MLP, "snapshots": [0, 2, 5]},
    "lenet": {"model": LENET, "batch_size": 5},
    "lenet, augmented": {"model": LENET, "batch_size": 5, "augmentation": {"crop": 2, "flip": True, "cutout": 4}},
    "lenet, sam": {"model": LENET, "batch_size": 5, "sam": {"rho": 0.1, "adaptive": True}, "optimizer": ADAM},
}
SEEDS = (3, 11, 4)


def assert_alike(member: TrainingResult, alone: TrainingResult, tol: float = 1e-12) -> None:
    for mine, other in (
        (member.model, alone.model),
        (member.best, alone.best),
        (member.average, alone.average),
    ):
        assert (mine is None) == (other is None)
        if mine is not None and other is not None:
            assert_same_weights(mine.state_dict(), other.state_dict(), tol)
    assert member.snapshots.keys() == alone.snapshots.keys()
    for step, weights in member.snapshots.items():
        assert_same_weights(weights, alone.snapshots[step], tol)
    assert (member.stopped, member.finished) == (alone.stopped, alone.finished)
    assert len(member.history) == len(alone.history)
    for mine, other in zip(member.history, alone.history, strict=True):
        assert {k: v for k, v in mine.items() if k != "seconds"} == pytest.approx(
            {k: v for k, v in other.items() if k != "seconds"}, rel=tol
        )
    assert member.scores.keys() == alone.scores.keys()
    for name, scores in member.scores.items():
        assert scores == pytest.approx(alone.scores[name], rel=tol)


def assert_same_weights(mine: Mapping[str, Tensor], other: Mapping[str, Tensor], tol: float) -> None:
    assert mine.keys() == other.keys()
    for name, value in mine.items():
        assert torch.allclose(value.double(), other[name].double(), rtol=tol, atol=tol), name


def pool_of(case: Spec, **options: object) -> Pool:
    data = images() if case["model"] is LENET else vectors()
    spec = {"epochs": 3, "batch_size": 8, "precision": "float64", **case}
    return train_pool(spec, SEEDS, data=data, strategy="stacked", device="cpu", **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_member_is_what_train_gives(case: Spec) -> None:
    pool = pool_of(case)
    data = images() if case["model"] is LENET else vectors()
    for member in pool.members:
        assert_alike(member, train(member.spec, data=data, device="cpu"))
    first, second = (dict(pool.model(at).named_parameters()) for at in (0, 1))
    assert all(not torch.allclose(first[name], second[name]) for name in first if name.endswith("fc.weight"))


def test_numbers_of_every_member_are_its_own() -> None:
    overrides = {
        "optimizer.lr": [0.3, 0.01, 0.1],
        "optimizer.momentum": [0.0, 0.9, 0.5],
        "optimizer.weight_decay": [0.0, 0.1, 0.01],
        "sam.rho": [0.0, 0.2, 0.05],
        "clip_norm": [0.1, 10.0, 1.0],
    }
    pool = pool_of({"model": MLP, "sam": 0.1, "clip_norm": 1.0}, overrides=overrides)
    assert [member.spec.optimizer.lr for member in pool.members] == overrides["optimizer.lr"]
    for member in pool.members:
        assert_alike(member, train(member.spec, data=vectors(), device="cpu"))
    assert list(pool.to_frame()["sam.rho"]) == overrides["sam.rho"]


@pytest.mark.parametrize("bounds", [(None, 0.01, 0.1), (0.01, None, None)])
def test_members_with_and_without_a_bound_of_the_gradient(bounds: tuple[float | None, ...]) -> None:
    pool, free = pool_of({"model": MLP}, overrides={"clip_norm": bounds}), pool_of({"model": MLP})
    for bound, member, unbound in zip(bounds, pool.members, free.members, strict=True):
        assert_alike(member, train(member.spec, data=vectors(), device="cpu"))
        weights, others = member.model.state_dict(), unbound.model.state_dict()
        assert all(torch.equal(value, others[name]) for name, value in weights.items()) == (bound is None)


def test_betas_of_every_member_are_its_own() -> None:
    pool = pool_of(
        {"model": MLP, "optimizer": ADAM}, overrides={"optimizer.betas": [(0.9, 0.9), (0.5, 0.99), (0, 0.9)]}
    )
    for member in pool.members:
        assert_alike(member, train(member.spec, data=vectors(), device="cpu"))


def test_first_steps_agree_in_float32() -> None:
    spec = {"model": MLP, "epochs": 1, "batch_size": 8}
    pool = train_pool(spec, 3, data=vectors(), strategy="stacked", device="cpu")
    for member in pool.members:
        assert_alike(member, train(member.spec, data=vectors(), device="cpu"), tol=1e-4)


def test_first_steps_agree_in_bfloat16() -> None:
    spec = {"model": MLP, "epochs": 1, "batch_size": 8, "precision": "bfloat16"}
    pool = train_pool(spec, 3, data=vectors(), strategy="stacked", device="cpu")
    for member in pool.members:
        alone = train(member.spec, data=vectors(), device="cpu")
        assert member.history[0]["train_loss"] == pytest.approx(alone.history[0]["train_loss"], rel=2**-9)


@pytest.mark.slow
def test_the_end_has_the_same_statistics_in_float32() -> None:
    """Single members part by rounding over hundreds of steps; the pool as a whole does not."""
    spec = {"model": {"name": "mlp", "widths": [32, 32]}, "data": "circles", "epochs": 25, "batch_size": 5}
    pool = train_pool(spec, 12, strategy="stacked", device="cpu")
    together = pool.losses("test")
    alone = torch.tensor([train(m.spec, device="cpu").scores["final"]["test_loss"] for m in pool.members])
    error = (together - alone).std() / len(pool) ** 0.5
    assert abs(float((together - alone).mean())) <= 3 * float(error) + 1e-6
    assert float(together.std()) == pytest.approx(float(alone.std()), rel=0.25)


def test_one_by_one_is_train_itself() -> None:
    spec = {"model": MLP, "epochs": 2, "batch_size": 8}
    pool = train_pool(spec, 2, data=vectors(), strategy="sequential", device="cpu")
    assert (pool.choice.strategy, pool.seeds) == ("sequential", (0, 1))
    for member in pool.members:
        assert_alike(member, train(member.spec, data=vectors(), device="cpu"), tol=0)


def test_chunks_make_no_difference() -> None:
    whole, cut = pool_of({"model": MLP}), pool_of({"model": MLP}, at_once=2)
    for one, other in zip(whole.members, cut.members, strict=True):
        assert_alike(one, other)


def test_state_dicts_fit_the_network_of_the_catalogue() -> None:
    pool = pool_of({"model": LENET, "batch_size": 5, "epochs": 1})
    net = build("lenet5", num_classes=3, image_size=16, channels=(2, 3), widths=(8, 6)).double().eval()
    net.load_state_dict(pool.members[1].model.state_dict())
    x = images()["test"][0]
    assert torch.equal(net(x), pool.model(1)(x))
    assert torch.allclose(pool.outputs(x)[1], net(x), rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        loss = nn.functional.cross_entropy(net(x), images()["test"][1])
    assert float(pool.losses("test")[1]) == pytest.approx(float(loss), rel=1e-12)


def test_global_random_state_is_untouched() -> None:
    before = torch.get_rng_state()
    pool_of({"model": MLP, "epochs": 1})
    assert torch.equal(torch.get_rng_state(), before)
