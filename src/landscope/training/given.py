"""What a run is given: a spec in one of its forms, and perhaps a model or data that no spec describes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from landscope.core.documents import read_spec
from landscope.core.schema import build
from landscope.training.sources import Task
from landscope.training.spec import TrainingSpec

__all__ = ["SpecLike", "fingerprints", "training_spec"]

SpecLike = TrainingSpec | Mapping[str, object] | str | os.PathLike[str]
"""A spec, the same as a mapping, or a YAML, TOML or JSON file."""


def training_spec(spec: SpecLike, model: nn.Module | None = None) -> TrainingSpec:
    """The spec, checked; a mapping need not name a model that is given.

    >>> training_spec({"epochs": 3}, nn.Linear(2, 2)).model.name
    'Linear'
    """
    if isinstance(spec, TrainingSpec):
        return spec
    if isinstance(spec, Mapping):
        own = {"model": type(model).__name__} if model is not None else {}
        return build(TrainingSpec, {**own, **spec})
    return read_spec(TrainingSpec, spec)


def fingerprints(task: Task, *, model: bool, data: bool) -> dict[str, str]:
    """Checksums of the model and of the training rows where they came as arguments: a spec does not say what they are."""
    found = {}
    if model:
        found["model"] = _fingerprint(value for value in task.model.state_dict().values() if isinstance(value, Tensor))
    if data:
        found["data"] = _fingerprint(task.train)
    return found


def _fingerprint(tensors: Iterable[Tensor]) -> str:
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
