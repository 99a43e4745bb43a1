"""The data of a task, whatever it comes from: a data set by name, a user's function, splits, pairs of tensors, Datasets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from landscope.core.errors import SpecError
from landscope.core.seeding import generator
from landscope.data import DataSplits, Split, load
from landscope.data.dataset import TaskKind
from landscope.specs.names import call_imported, is_import
from landscope.training.spec import DataSpec

SPLITS = ("train", "validation", "test")
GIVEN = "the given data"
"""The name of data that was passed as an argument."""


@dataclass(frozen=True, kw_only=True)
class TaskData:
    """Training, validation and test samples, and what kind of task they are; a split that is not there is empty."""

    train: Split
    validation: Split
    test: Split
    kind: TaskKind
    classes: int
    name: str
    extra: Mapping[str, Tensor] = field(default_factory=dict)

    def to(self, device: torch.device | None = None, dtype: torch.dtype | None = None) -> TaskData:
        """The data on a device, floating-point numbers in `dtype`."""

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else None)

        return replace(
            self,
            train=Split(*map(moved, self.train)),
            validation=Split(*map(moved, self.validation)),
            test=Split(*map(moved, self.test)),
            extra={key: moved(value) for key, value in self.extra.items()},
        )


DataLike = TaskData | DataSplits | Mapping[str, object]
"""Splits as `landscope.data.load` gives them, or "train", "validation", "test" → (x, y) or a Dataset of such pairs."""


def load_task_data(spec: DataSpec) -> TaskData:
    """The data that a spec names.

    >>> samples = load_task_data(DataSpec(name="circles"))
    >>> samples.train.x.shape, samples.classes, samples.kind
    (torch.Size([100, 2]), 2, 'classification')
    """
    if is_import(spec.name):
        return as_task_data(call_imported(spec.name, spec.options), spec.name)
    try:
        return as_task_data(load(spec.name, **spec.options), spec.name)  # type: ignore[arg-type]
    except TypeError as error:
        raise SpecError(f"data: {spec.name} cannot be loaded with the options {dict(spec.options)}: {error}") from error


def as_task_data(data: object, name: str) -> TaskData:
    """Data from splits, or from tensors or Datasets, alone as the training's or by split; whole-number targets are classes.

    >>> x, y = torch.zeros(6, 3), torch.arange(6) % 3
    >>> as_task_data({"train": (x, y)}, "mine").classes, as_task_data((x, y), "mine").classes
    (3, 3)
    >>> len(as_task_data(DataLoader(torch.utils.data.TensorDataset(x, y)), "mine").train.x)
    6
    """
    if isinstance(data, TaskData):
        return data
    if isinstance(data, DataSplits):
        return TaskData(
            train=_inputs(data.train),
            validation=_inputs(data.validation),
            test=_inputs(data.test),
            kind=data.card.task,
            classes=data.card.n_classes,
            name=name,
            extra=data.extra,
        )
    if isinstance(data, DataLoader):
        data = data.dataset
    if isinstance(data, Dataset) or (isinstance(data, Sequence) and len(data) == 2):
        data = {"train": data}
    if not isinstance(data, Mapping) or "train" not in data or set(data) - set(SPLITS):
        found = f"the keys {', '.join(map(str, data))}" if isinstance(data, Mapping) else f"a {type(data).__name__}"
        raise SpecError(
            f"data: {name}: expected (x, y), a Dataset, or a mapping of these with train, validation and test; got {found}"
        )
    given = {key: _inputs(_split(value, f"{name}, {key}")) for key, value in data.items() if value is not None}
    train = given["train"]
    nothing = Split(train.x[:0], train.y[:0])
    labels = not train.y.is_floating_point() and train.y.dim() == 1
    present = [split.y for split in given.values() if len(split.y)]
    kind: TaskKind = "classification" if labels else "reconstruction" if _alike(train) else "regression"
    return TaskData(
        train=train,
        validation=given.get("validation", nothing),
        test=given.get("test", nothing),
        kind=kind,
        classes=1 + max((int(y.max()) for y in present), default=-1) if labels else 0,
        name=name,
    )


def _alike(split: Split) -> bool:
    return split.x.dim() > 2 and split.x.shape == split.y.shape


def _inputs(split: Split) -> Split:
    """Bytes become numbers that a network can take."""
    return split._replace(x=split.x.float()) if split.x.dtype == torch.uint8 else split


def _split(value: object, name: str) -> Split:
    if isinstance(value, Dataset):
        pairs = [value[at] for at in range(len(value))]  # type: ignore[arg-type]
        value = tuple(torch.stack([torch.as_tensor(entry) for entry in column]) for column in zip(*pairs, strict=True))
    if not isinstance(value, Sequence) or len(value) != 2:
        raise SpecError(f"data: {name}: expected (x, y) or a Dataset of such pairs, got a {type(value).__name__}")
    x, y = (torch.as_tensor(part) for part in value)
    if len(x) != len(y):
        raise SpecError(f"data: {name}: {len(x)} inputs and {len(y)} targets")
    return Split(x, y)


# The order of the samples: a function of the seed and the epoch, so that none of it needs to be stored.


BatchSize = int | Literal["full"]


def steps_per_epoch(samples: int, batch_size: BatchSize, drop_last: bool = False) -> int:
    """How many batches one pass over the samples has.

    >>> steps_per_epoch(10, 4), steps_per_epoch(10, 4, drop_last=True), steps_per_epoch(10, "full")
    (3, 2, 1)
    """
    if batch_size == "full":
        return 1
    return samples // batch_size if drop_last else -(-samples // batch_size)


def epoch_batches(
    samples: int, batch_size: BatchSize, seed: int, epoch: int, *, drop_last: bool = False
) -> tuple[Tensor, ...]:
    """The numbers of the samples in each batch of an epoch, counted from 0; a full batch keeps the order of the samples.

    >>> [sorted(batch.tolist()) for batch in epoch_batches(3, "full", seed=0, epoch=0)]
    [[0, 1, 2]]
    >>> torch.cat(epoch_batches(10, 4, seed=0, epoch=0)).sort().values.equal(torch.arange(10))
    True
    """
    if batch_size == "full":
        return (torch.arange(samples),)
    order = torch.randperm(samples, generator=generator(seed, "order", epoch))
    return order.split(batch_size)[: steps_per_epoch(samples, batch_size, drop_last)]
