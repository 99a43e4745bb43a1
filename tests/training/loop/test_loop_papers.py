"""The fourth paper's four tasks, each with baseline, SAM and FAM: a few steps on tiny data. Cora and its graph besides."""

from __future__ import annotations

import importlib.util
import math

import pytest
import torch
from loop_runs import Settings, merged
from torch import Tensor

from landscope.core.seeding import generator
from landscope.data import load
from landscope.training.loop.train import train

METHODS: dict[str, Settings] = {"baseline": {}, "sam": {"sam": 0.05}, "fam": {"fam": 0.1}}
every_method = pytest.mark.parametrize("method", METHODS)


def images(channels: int) -> dict[str, tuple[Tensor, Tensor]]:
    rng = generator(0, "images")
    x = torch.randn(12, channels, 32, 32, generator=rng)
    return {"train": (x, torch.arange(12) % 10)}


def steps(spec: Settings, method: str, data: object = None, fam: Settings | None = None) -> list[dict[str, float]]:
    settings = merged(spec, METHODS[method], {"fam": fam} if fam and method == "fam" else {})
    result = train(settings, data=data)
    assert all(math.isfinite(value) for row in result.history for value in row.values())
    assert ("kappa" in result.history[0]) == (method == "fam")
    return result.history


@every_method
def test_resnet18_on_colour_images(method: str) -> None:
    spec = {
        "model": {"name": "resnet18", "width": 4},
        "epochs": 1,
        "batch_size": 6,
        "optimizer": {"lr": 0.03, "weight_decay": 5e-4},
        "schedule": "cosine",
        "augmentation": {},
    }
    steps(spec, method, images(3), {"layer": "fc", "strength": 0.1})


@every_method
def test_wide_resnet_with_its_extra_layer(method: str) -> None:
    spec = {
        "model": {"name": "wide_resnet28_10", "widen_factor": 1, "penultimate": 64},
        "epochs": 1,
        "batch_size": 6,
        "optimizer": {"lr": 0.01, "nesterov": True},
        "schedule": {"name": "multistep", "milestones": [0.3, 0.6, 0.8], "gamma": 0.2},
        "augmentation": {"cutout": 16},
    }
    steps(spec, method, images(1), {"layer": "penultimate", "strength": 0.1, "probes": 1})


@every_method
def test_auto_encoder_of_shapes(method: str) -> None:
    spec = {
        "data": {"name": "shells", "size": 32, "n_train": 4, "n_validation": 1, "n_test": 1},
        "model": {"name": "autoencoder3d", "channels": [2, 3, 4, 3, 2], "instance_norm": False},
        "loss": "dice",
        "epochs": 2,
        "batch_size": 2,
        "optimizer": {"name": "adam", "lr": 1e-3},
    }
    history = steps(spec, method, fam={"layer": "decode", "strength": 0.1})
    assert history[-1]["train_loss"] < history[0]["train_loss"]


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="minilm needs transformers")
@every_method
def test_text_encoder(method: str) -> None:
    spec = {
        "data": "pairs",
        "model": {
            "name": "minilm", "hidden": 12, "layers": 1, "heads": 2, "mlp_width": 16, "vocabulary": 259, "max_length": 32,
        },
        "epochs": 2,
        "batch_size": 8,
        "optimizer": {"name": "adamw", "lr": 1e-3},
    }  # fmt: skip
    rng = generator(0, "tokens")
    x = torch.randint(1, 259, (16, 20), generator=rng)
    steps(spec, method, {"train": (x, torch.arange(16) % 2)}, {"layer": "fc", "strength": 1e-3})


@pytest.mark.skipif(importlib.util.find_spec("torch_geometric") is None, reason="gat needs torch_geometric")
def test_a_graph_whose_rows_are_nodes() -> None:
    spec = {"data": "cora", "model": "gat", "epochs": 3, "batch_size": "full", "optimizer": {"lr": 0.2}}
    result = train(spec)
    assert result.history[-1]["train_loss"] < result.history[0]["train_loss"]
    data = load("cora")
    with torch.no_grad():
        outputs = result.model(data.extra["features"], data.extra["edge_index"])[data.test.x]
    assert result.scores["final"]["test_error"] == float((outputs.argmax(1) != data.test.y).double().mean())
