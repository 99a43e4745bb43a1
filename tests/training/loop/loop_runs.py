"""Small runs that the tests of the training loop share."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from landscope.training.callbacks import Callback
from landscope.training.loop.folder import TrainingResult
from landscope.training.loop.train import train

Settings = dict[str, object]

BASE: Settings = {
    "model": {"name": "mlp", "widths": [6], "batch_norm": True, "dropout": 0.2},
    "data": "circles",
    "epochs": 3,
    "batch_size": 32,  # of 100 rows: the last batch has 4
    "optimizer": {"lr": 0.1, "weight_decay": 1e-3},
    "schedule": {"name": "cosine", "warmup": 0.2},
    "seed": 3,
}

METHODS: dict[str, Settings] = {
    "sgd": {"optimizer": {"momentum": 0.0}},
    "momentum": {},
    "nesterov": {"optimizer": {"nesterov": True}},
    "adam": {"optimizer": {"name": "adam", "lr": 0.01}},
    "adamw": {"optimizer": {"name": "adamw", "lr": 0.01}},
    "decoupled": {"optimizer": {"decoupled": True}},
    "sam": {"sam": 0.05},
    "asam": {"sam": {"rho": 0.5, "adaptive": True}},
    "m-sam": {"sam": {"rho": 0.05, "micro_batch": 8}},
    "fam": {"fam": 0.1},
    "fam-probe": {"fam": {"strength": 0.1, "probes": 1}},
    "fam-sam": {"fam": 0.1, "sam": 0.05},
    "fam-rising": {"fam": {"strength": -0.02, "warmup": 0.5}},
    "swa": {"averaging": {"kind": "swa", "start": 0.3, "lr": 0.5}},
    "ema": {"averaging": {"kind": "ema", "start": 0.3, "decay": 0.9}},
    "gadam": {
        "optimizer": {"name": "adam", "lr": 0.01, "weight_decay": 0.25, "decoupled": True},
        "averaging": {"kind": "swa", "start": 0.54, "lr": 0.5},
    },
    "below": {"snapshots_below": [0.69, 0.6, 1e-9]},
    "everything": {
        "sam": 0.05,
        "fam": {"strength": 0.1, "probes": 2},
        "averaging": "ema",
        "label_smoothing": 0.1,
        "clip_norm": 1.0,
        "early_stopping": {"metric": "error"},
        "snapshots": [0, 5],
    },
}


def merged(*parts: Mapping[str, object]) -> Settings:
    """Settings laid over each other, mappings key by key."""
    out: Settings = {}
    for part in parts:
        for key, value in part.items():
            before = out.get(key)
            out[key] = merged(before, value) if isinstance(before, dict) and isinstance(value, Mapping) else value
    return out


EXACT: Settings = {"precision": "float64", "model": {"batch_norm": False, "dropout": 0.0}}
"""Rows do not act on each other, and nothing is random."""


class Signal(Callback):
    """Sends the process a signal after a step."""

    def __init__(self, step: int, number: signal.Signals = signal.SIGTERM) -> None:
        self._step, self._number = step, number

    def on_step(self, step: int, loss: Tensor, lr: float) -> None:
        if step == self._step:
            signal.raise_signal(self._number)


def interrupted(spec: Settings, folder: Path, *steps: int, **options: object) -> TrainingResult:
    """A run that is stopped after each of the steps, and then resumes to its end."""
    for step in steps:
        stopped = train(spec, folder=folder, callbacks=[Signal(step)], **options)
        assert (stopped.finished, stopped.stopped) == (False, "SIGTERM")
    return train(spec, folder=folder, **options)


def weights(model: nn.Module | None) -> list[Tensor]:
    return [] if model is None else [value.detach() for value in model.state_dict().values()]


def same(a: TrainingResult, b: TrainingResult) -> bool:
    """Whether two runs ended alike, bit for bit: all weights, the history but for its seconds, the scores."""
    pairs = [(a.model, b.model), (a.best, b.best), (a.average, b.average)]
    tensors = all(
        len(weights(x)) == len(weights(y)) and all(map(torch.equal, weights(x), weights(y))) for x, y in pairs
    )
    kept = a.snapshots.keys() == b.snapshots.keys() and all(
        torch.equal(a.snapshots[step][name], b.snapshots[step][name])
        for step in a.snapshots
        for name in a.snapshots[step]
    )
    return tensors and kept and _untimed(a) == _untimed(b) and a.scores == b.scores


def _untimed(result: TrainingResult) -> list[dict[str, float]]:
    return [{key: value for key, value in row.items() if key != "seconds"} for row in result.history]


def distance(a: nn.Module | None, b: nn.Module | None) -> float:
    """The largest difference of two models' weights, relative to the largest weight."""
    pairs = list(zip(weights(a), weights(b), strict=True))
    scale = max(float(x.abs().max()) for x, _ in pairs)
    return max(float((x - y).abs().max()) for x, y in pairs) / scale
