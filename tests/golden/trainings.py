"""Weights of small trainings and pools, by their digests: bit for bit the same, stopped in between or not."""

from __future__ import annotations

import hashlib
import os
import signal
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.multiprocessing as mp
from processes import run_together
from torch import Tensor, nn

from golden import where
from golden.stored import Values, digest

__all__ = ["pool_weights", "training_weights"]

Spec = dict[str, Any]

BASE: Spec = {
    "model": {"name": "mlp", "widths": [6], "batch_norm": True, "dropout": 0.2},
    "data": "circles",
    "epochs": 3,
    "batch_size": 32,
    "optimizer": {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3},
    "schedule": {"name": "cosine", "warmup": 0.2},
    "seed": 3,
}
EXACT: Spec = {**BASE, "precision": "float64", "model": {"name": "mlp", "widths": [6]}}
"""Rows do not act on each other, and nothing is random."""
ADAM = {"name": "adam", "lr": 0.01}
IMAGES: Spec = {
    "model": {"name": "resnet20", "width": 2},
    "data": {"name": "digits", "train_size": 60, "label_noise": 0.1},
    "epochs": 1,
    "batch_size": 20,
}
EVERYTHING: Spec = {
    **BASE,
    "sam": 0.05,
    "fam": {"strength": 0.1, "probes": 2},
    "averaging": "ema",
    "label_smoothing": 0.1,
    "clip_norm": 1.0,
    "early_stopping": {"metric": "error"},
    "snapshots": [0, 5],
}
SPECS: dict[str, Spec] = {
    "plain": BASE,
    "SAM": {**BASE, "sam": 0.05},
    "ASAM": {**BASE, "sam": {"rho": 0.5, "adaptive": True}},
    "m-SAM": {**BASE, "sam": {"rho": 0.05, "micro_batch": 8}},
    "FAM": {**BASE, "fam": 0.1},
    "FAM layerwise": {**BASE, "fam": {"strength": 0.1, "form": "layerwise", "gradient": "weights_only"}},
    "EMA": {**BASE, "averaging": {"kind": "ema", "start": 0.3, "decay": 0.9}},
    "SWA": {**BASE, "averaging": {"kind": "swa", "start": 0.3, "lr": 0.5}},
    "early stopping": {**BASE, "epochs": 12, "early_stopping": 2},
    "convergence": {**BASE, "epochs": 12, "convergence": {"relative_change": 0.1}, "evaluate_every": 2},
    "accumulation": {**EXACT, "accumulate": 3, "sam": 0.05},
    "clipping": {**BASE, "clip_norm": 0.01},
    "Adam": {**BASE, "optimizer": ADAM, "batch_size": "full", "epochs": 6},
    "Gadam": {**BASE, "optimizer": {**ADAM, "weight_decay": 0.25, "decoupled": True}, "averaging": {"start": 0.54}},
    "Nesterov in steps": {
        **BASE,
        "optimizer": {"lr": 0.1, "nesterov": True},
        "schedule": {"name": "multistep", "milestones": [0.3, 0.6]},
    },
    "flat, linear, flat": {**BASE, "schedule": "flat_linear_flat", "drop_last": True},
    "bfloat16": {**BASE, "precision": "bfloat16"},
    "images, augmented": {**IMAGES, "augmentation": {"crop": 1, "flip": True, "cutout": 3}},
    "everything": EVERYTHING,
}
POOLS: dict[str, dict[str, Any]] = {
    "SAM, EMA and best weights": {
        "spec": {
            **BASE,
            "model": {"name": "mlp", "widths": [6], "batch_norm": True},
            "sam": 0.05,
            "averaging": "ema",
            "early_stopping": {},
        },
        "seeds": 3,
    },
    "rates and decays": {
        "spec": {**EXACT, "optimizer": ADAM, "clip_norm": 1.0},
        "seeds": 3,
        "overrides": {"optimizer.lr": [0.01, 0.02, 0.05], "optimizer.weight_decay": [0.0, 1e-3, 1e-2]},
    },
    "two at a time, until they converge": {
        "spec": {**EXACT, "epochs": 12, "convergence": {"relative_change": 0.1}},
        "seeds": [5, 1, 8],
        "at_once": 2,
    },
    "images, augmented": {"spec": {**IMAGES, "augmentation": {"crop": 1, "flip": True, "cutout": 3}}, "seeds": 2},
    "one by one": {"spec": {**BASE, "fam": 0.1}, "seeds": 2, "strategy": "sequential"},
}


class Stop(where.Callback):
    """Sends the process a signal after a step."""

    def __init__(self, step: int, number: signal.Signals) -> None:
        self._step, self._number = step, number

    def on_step(self, step: int, loss: Tensor, lr: float) -> None:
        del loss, lr
        if step == self._step:
            os.kill(os.getpid(), self._number)


def training_weights() -> Values:
    """Training → digests of the final, best and average weights and of snapshots, of the history, and its last row."""
    found: Values = {name: _result(where.train(spec, device="cpu")) for name, spec in SPECS.items()}
    for name, work in {
        "killed in the middle of an epoch": _killed,
        "stopped three times": _stopped,
        "two processes": _two,
    }.items():
        with tempfile.TemporaryDirectory() as folder:
            found[name] = _result(work(Path(folder)))
    return found


def pool_weights() -> Values:
    """Pool and member → the same for each member."""
    found: Values = {}
    for name, settings in POOLS.items():
        pool = where.train_pool(**{"strategy": "stacked", "at_once": 3, "device": "cpu", **settings})
        found |= {f"{name} {at}": _result(member) for at, member in enumerate(pool.members)}
    return found


def _killed(folder: Path) -> Any:
    child = mp.get_context("spawn").Process(target=_train_until_killed, args=(str(folder / "run"),))
    child.start()
    child.join()
    if child.exitcode != -signal.SIGKILL:
        raise RuntimeError(f"the training was meant to be killed; its exit code is {child.exitcode}")
    return where.train(EVERYTHING, folder=folder / "run", device="cpu")


def _train_until_killed(folder: str) -> None:
    torch.set_num_threads(1)
    where.train(EVERYTHING, folder=folder, checkpoint_every=0, device="cpu", callbacks=[Stop(6, signal.SIGKILL)])


def _stopped(folder: Path) -> Any:
    for step in (2, 4, 11):
        stopped = where.train(EVERYTHING, folder=folder / "run", device="cpu", callbacks=[Stop(step, signal.SIGTERM)])
        if stopped.finished:
            raise RuntimeError(f"the training was meant to stop after step {step}")
    return where.train(EVERYTHING, folder=folder / "run", device="cpu")


def _two(folder: Path) -> Any:
    run_together(_train_together, folder)
    return where.train({**EXACT, "sam": 0.05}, folder=folder / "run", device="cpu")


def _train_together(rank: int, folder: Path) -> None:
    del rank
    where.train({**EXACT, "sam": 0.05}, folder=folder / "run", device="cpu")


def _result(trained: Any) -> dict[str, object]:
    nets = {"final": trained.model, "best": trained.best, "average": trained.average}
    history = [{key: value for key, value in row.items() if key != "seconds"} for row in trained.history]
    return {
        **{name: _weights(net.state_dict()) for name, net in nets.items() if isinstance(net, nn.Module)},
        **{f"step {step}": _weights(kept) for step, kept in trained.snapshots.items()},
        "history": digest(history),
        "last row": history[-1],
        "scores": trained.scores,
    }


def _weights(state: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and bytes."""
    found = hashlib.sha256()
    for name in sorted(state):
        tensor = state[name].detach().contiguous()
        found.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} ".encode())
        found.update(tensor.reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:32]
