"""Pools of graph networks: one graph for all members."""

from __future__ import annotations

import pytest
import torch

from landscope.training.loop.train import train
from landscope.training.pool.train_pool import train_pool

pytest.importorskip("torch_geometric")

SPEC = {
    "model": {"name": "gat", "hidden": 4, "dropout": 0.0},
    "data": "cora",
    "epochs": 1,
    "batch_size": 70,
    "optimizer": {"lr": 0.236, "momentum": 0.0},
    "precision": "float64",
}


def test_members_on_cora_are_what_train_gives() -> None:
    pool = train_pool(SPEC, 2, strategy="stacked", device="cpu")
    for member in pool.members:
        alone = train(member.spec, device="cpu")
        for name, value in member.model.state_dict().items():
            assert torch.allclose(value, alone.model.state_dict()[name], rtol=1e-10, atol=1e-12), name
        assert member.history[0]["train_loss"] == pytest.approx(alone.history[0]["train_loss"], rel=1e-12)


def test_attention_weights_are_dropped_inside_of_the_layers() -> None:
    spec = {**SPEC, "model": {"name": "gat", "hidden": 4, "dropout": 0.6}}
    pool, still = (train_pool(one, [3, 3], strategy="stacked", device="cpu") for one in (spec, SPEC))
    assert len({row[0]["train_loss"] for row in pool.history}) == 2, "members with one seed draw separately"
    assert len({row[0]["train_loss"] for row in still.history}) == 1


def test_on_a_cpu_they_go_one_by_one() -> None:
    pool = train_pool({**SPEC, "precision": "float32"}, 2, device="cpu")
    assert pool.choice.strategy == "sequential"
    assert "activations" in pool.choice.reason
    assert pool.outputs(torch.arange(5)).shape == (2, 5, 7)
