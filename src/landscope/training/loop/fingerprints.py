"""What a run is given: a spec in one of its forms, and perhaps a model or data that no spec describes."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from landscope.core.errors import SpecError
from landscope.specs.documents import read_spec
from landscope.specs.schema import parse
from landscope.training.spec import TrainingSpec
from landscope.training.task import Task

__all__ = ["SpecLike", "fingerprints", "require_same", "training_spec"]

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
        return parse(TrainingSpec, {**own, **spec})
    return read_spec(TrainingSpec, spec)


FIRST, LATER = ("model", "data"), ("structure", "rows")
"""Fingerprints that every version wrote, and those that folders of older versions lack."""
PASSING = re.compile(r" at 0x[0-9a-fA-F]+| \((?:cuda|mps|xpu)(?::\d+)?\)")
"""What a text of a module says of this process only: addresses in memory, devices."""


def fingerprints(task: Task, *, model: bool, data: bool) -> dict[str, str]:
    """Checksums of the model and of the rows where they came as arguments: a spec does not say what they are.

    `model` and `data` are the bytes of the weights and of the training rows. `structure` is the text of the module, with its
    types and settings, which tensors there are and which of them are trained; `rows` is everything about all splits.
    """
    found: dict[str, str] = {}
    if model:
        net = task.model
        weights = {name: value for name, value in net.state_dict().items() if isinstance(value, Tensor)}
        trained = [name for name, parameter in net.named_parameters() if parameter.requires_grad]
        about = [PASSING.sub("", repr(net)), *map(_form, weights, weights.values()), *trained]
        found |= {"model": _fingerprint(weights.values()), "structure": _fingerprint((), about)}
    if data:
        rows = task.rows
        parts = {"train": rows.train, "validation": rows.validation, "test": rows.test, "extra": rows.extra.values()}
        tensors = [tensor for part in parts.values() for tensor in part]
        about = [rows.kind, str(rows.classes), *rows.extra, *(_form(name, t) for name in parts for t in parts[name])]
        found |= {"data": _fingerprint(rows.train), "rows": _fingerprint(tensors, about)}
    return found


def require_same(folder: Path, there: Mapping[str, str], here: Mapping[str, str]) -> None:
    """Refuse to go on with a run in a folder that was given something else; what an older version did not note is not compared.

    >>> require_same(Path("run"), {"data": "1"}, {"data": "1", "rows": "2"})
    >>> require_same(Path("run"), {"data": "1", "rows": "3"}, {"data": "1", "rows": "2"})
    Traceback (most recent call last):
    landscope.core.errors.SpecError: run holds a run that began from another model or other data. Choose ...
    """
    noted = [*FIRST, *(key for key in LATER if key in there)]
    if any(there.get(key) != here.get(key) for key in noted):
        raise SpecError(
            f"{folder} holds a run that began from another model or other data. Choose another folder, or begin anew with "
            "resume=False"
        )


def _form(name: str, tensor: Tensor) -> str:
    return f"{name} {tensor.dtype} {tuple(tensor.shape)}"


def _fingerprint(tensors: Iterable[Tensor], about: Sequence[str] = ()) -> str:
    digest = hashlib.sha256("\n".join(about).encode())
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()
