"""What one file under `sets/` says about its data set, and the registry of all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from landscope.core.registry import Registry
from landscope.data.card import Split, Task
from landscope.data.source import Version

__all__ = ["DATASETS", "DataSet", "Raw", "register"]


@dataclass(frozen=True, kw_only=True)
class Raw:
    """What a reader gives: rows as the files have them, before splitting, noise and scaling.

    Images come as bytes (uint8). Without `evaluation`, the share `DataSet.held_out` of the training rows becomes it;
    without `validation`, the rule that `load` was given makes it. `beside` holds tensors aligned with the evaluation
    rows, `texts` the sentences of all rows (training, then evaluation).
    """

    train: Split
    evaluation: Split | None = None
    validation: Split | None = None
    classes: tuple[str, ...] = ()
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    beside: Mapping[str, Tensor] = field(default_factory=dict)
    texts: tuple[tuple[str, str], ...] = ()
    notes: str = ""


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """A data set: where its files are, how they are read, and what its card says.

    `read` takes the located files (None for a set that is computed), `seed`, and the set's own options.
    """

    name: str
    title: str
    task: Task
    read: Callable[..., Raw]
    licence: str
    citation: str
    source: str
    versions: tuple[Version, ...] = ()
    held_out: float = 0.2
    requires: tuple[str, str] | None = None


DATASETS: Registry[DataSet] = Registry("data set")


def register(dataset: DataSet) -> DataSet:
    """File `dataset` under its name."""
    return DATASETS.register(dataset.name)(dataset)
