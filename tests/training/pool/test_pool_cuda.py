"""Pools on a GPU: recorded steps, one draw of dropout for all members."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from landscope.core.seeding import generator, normal
from landscope.training.loop.train import train
from landscope.training.pool.train_pool import train_pool

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

LENET = {"name": "lenet5", "channels": [2, 3], "widths": [8, 6]}


def images() -> dict[str, tuple[Tensor, Tensor]]:
    x = normal((46, 1, 16, 16), generator(0, "images"), torch.float64)
    y = torch.arange(46) % 3
    return {"train": (x[:38], y[:38]), "validation": (x[38:], y[38:])}


def spec(**options: object) -> dict[str, object]:
    return {"model": {**LENET, "dropout": 0.0}, "epochs": 4, "batch_size": 5, "precision": "float64", **options}


@pytest.mark.parametrize("graphs", [True, False])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"optimizer": {"name": "adam", "lr": 0.01, "eps": 1e-4}},
        {"sam": 0.1, "clip_norm": 1.0},
        {"augmentation": {}},
        {"batch_size": "full", "epochs": 300, "evaluate_every": 100, "optimizer": {"name": "adam", "eps": 1e-3}},
    ],
)
def test_a_member_is_what_train_gives(graphs: bool, options: dict[str, object]) -> None:
    """Past the steps after which a graph is recorded, and with a last batch of another size."""
    pool = train_pool(spec(**options), 3, data=images(), device="cuda", graphs=graphs)
    assert pool.choice.strategy == "stacked"
    for member in pool.members:
        alone = train(member.spec, data=images(), device="cuda", graphs=False)
        for name, value in member.model.state_dict().items():
            assert torch.allclose(value.double(), alone.model.state_dict()[name].double(), rtol=1e-8, atol=1e-9), name
        assert member.history[-1]["validation_loss"] == pytest.approx(alone.history[-1]["validation_loss"], rel=1e-7)


def test_dropout_differs_between_members_and_steps_and_repeats() -> None:
    noisy = spec(model={**LENET, "dropout": 0.5})
    one, again = (train_pool(noisy, [7, 8], data=images(), device="cuda") for _ in range(2))
    for mine, other in zip(one.members, again.members, strict=True):
        assert [row["train_loss"] for row in mine.history] == pytest.approx(
            [row["train_loss"] for row in other.history]
        )
    recorded = train_pool(noisy, [7, 8], data=images(), device="cuda", graphs=True)
    plain = train_pool(noisy, [7, 8], data=images(), device="cuda", graphs=False)
    assert recorded.history[0][-1]["train_loss"] == pytest.approx(plain.history[0][-1]["train_loss"], rel=1e-6)


def test_a_member_that_fails_fails_alone() -> None:
    pool = train_pool(spec(), 3, overrides={"optimizer.lr": [0.05, 1e200, 0.02]}, data=images(), device="cuda")
    assert list(pool.failed) == [1]
    for at in (0, 2):
        alone = train(pool.members[at].spec, data=images(), device="cuda", graphs=False)
        for name, value in pool.model(at).state_dict().items():
            assert torch.allclose(value.double(), alone.model.state_dict()[name].double(), rtol=1e-8, atol=1e-9)


def test_bfloat16_trains() -> None:
    pool = train_pool({**spec(), "precision": "bfloat16"}, 4, data=images(), device="cuda")
    assert pool.finished
    assert not pool.failed
