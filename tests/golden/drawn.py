"""What is drawn at random elsewhere: computed data, label noise, corruptions, directions of landscapes, invariances."""

from __future__ import annotations

import hashlib

import torch
from networks import BY_NAME
from torch import Tensor

from golden import where
from golden.stored import Values

__all__ = ["drawn"]

ROWS = 24
LOADED: dict[str, dict[str, object]] = {
    "circles": {},
    "functions": {},
    "shells": {"n_train": 2, "n_validation": 1, "n_test": 1, "size": 16},
    "digits": {"train_size": 100, "validation": 50, "label_noise": 0.2, "seed": 1},
    "digits, random labels": {"random_labels": True, "pixels": "standard"},
}


def drawn() -> Values:
    """Digests of data and of corrupted images, in bytes; losses on lines and planes; how measures move, in float64."""
    found: Values = {}
    for name, options in LOADED.items():
        splits = where.load(name.partition(",")[0], **options)
        for split in ("train", "validation", "test"):
            rows = getattr(splits, split)
            found[f"{name} {split}"] = [_digest(rows.x), _digest(rows.y)]
    images = torch.linspace(0, 1, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32)
    for name in where.REGISTRIES["corruption"]:
        found[f"corruption {name}"] = _digest((255 * where.corrupt(images, name, 3, seed=1)).round().to(torch.uint8))
    net = BY_NAME["relu_mlp"]
    probe = where.landscope.Probe(net.model(), net.data(ROWS))
    found["plane"] = _rounded(where.landscope.landscape(probe, resolution=5).loss.tolist())
    found["line"] = _rounded(where.landscope.line(probe, resolution=5).loss.tolist())
    for one in (net, BY_NAME["residual_batchnorm"]):
        moved = where.landscope.invariance.movements(
            where.MEASURES["hessian_trace"](), where.landscope.Probe(one.model(), one.data(ROWS))
        )
        found[f"moved {one.name}"] = {name: move and [move.change, move.error] for name, move in moved.items()}
    return found


def _digest(tensor: Tensor) -> str:
    return hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()[:16]


def _rounded(values: object) -> object:
    """Numbers to nine digits: how many points are evaluated together depends on the clock, and so do the last ones."""
    return [_rounded(value) for value in values] if isinstance(values, list) else float(f"{values:.9g}")
