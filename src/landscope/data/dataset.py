"""What one file under `sets/` says about its data set, and the registry of all of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from landscope.core.registry import Registry
from landscope.data.files import Version

# What a loader hands over: the splits as tensors, and a card that says what they are.
#
# Every row of a data set has one number, its place in the files read in order (training files first, evaluation files
# after them). `DataSplits.indices` holds these numbers for each split, so that splits can be seen to be disjoint and a
# result can be traced to an image.


TaskKind = Literal["classification", "regression", "reconstruction", "node classification", "text classification"]


class Split(NamedTuple):
    """Inputs and targets of one split, row by row."""

    x: Tensor
    y: Tensor


@dataclass(frozen=True, kw_only=True)
class DataCard:
    """What is in the data, where it comes from, and under which terms.

    `mean` and `std` are per channel (images, in units where white is 1) or per column (tables), taken over the whole
    official training set; they are what `pixels="standard"` divides by. `settings` holds whatever was asked for that
    changes a number: the seed, the noise, the rule that made the splits.
    """

    name: str
    title: str
    task: TaskKind
    input_shape: tuple[int, ...]
    target_shape: tuple[int, ...]
    classes: tuple[str, ...]
    counts: Mapping[str, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    licence: str
    citation: str
    source: str
    version: str
    checksums: Mapping[str, str]
    settings: Mapping[str, str | int | float | bool]
    notes: str = ""

    @property
    def n_classes(self) -> int:
        """How many classes there are; 0 where the target is not a class."""
        return len(self.classes)

    def to_dict(self) -> dict[str, object]:
        """Plain containers, ready for JSON."""
        return asdict(self)

    def __str__(self) -> str:
        counts = ", ".join(f"{n:,} {split}" for split, n in self.counts.items())
        kind = f"{self.n_classes} classes" if self.classes else self.task
        return f"{self.title}: {counts}; inputs {'×'.join(map(str, self.input_shape))}, {kind}; {self.licence}"


@dataclass(frozen=True, kw_only=True)
class DataSplits:
    """Disjoint training, validation and test data with their card.

    `extra` holds tensors that belong to no split or stand beside one (the graph of a node-classification set, human
    label counts); `texts` the sentences that token ids were made from.

    >>> from landscope.data import load
    >>> splits = load("circles")
    >>> x, y = splits.train
    >>> x.shape, y.dtype, splits.card.counts
    (torch.Size([100, 2]), torch.int64, {'train': 100, 'validation': 100, 'test': 100})
    """

    train: Split
    validation: Split
    test: Split
    card: DataCard
    indices: Mapping[str, Tensor]
    extra: Mapping[str, Tensor] = field(default_factory=dict)
    texts: Mapping[str, tuple[tuple[str, str], ...]] = field(default_factory=dict)

    def to(self, device: torch.device | str) -> DataSplits:
        """Copy with the tensors on `device`: image sets live on the accelerator whole, without worker processes."""

        def move(split: Split) -> Split:
            return Split(split.x.to(device), split.y.to(device))

        return replace(
            self,
            train=move(self.train),
            validation=move(self.validation),
            test=move(self.test),
            extra={key: value.to(device) for key, value in self.extra.items()},
        )


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

    `read` takes the located files where the set has any, `seed` where it draws, and the set's own options by keyword.
    """

    name: str
    title: str
    task: TaskKind
    read: Callable[..., Raw]
    licence: str
    citation: str
    source: str
    versions: tuple[Version, ...] = ()
    held_out: float = 0.2
    requires: tuple[str, str] | None = None


DATASETS: Registry[DataSet] = Registry("data set")
