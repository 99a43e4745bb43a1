"""Data that can be trusted to be the same on every pass.

Anything that yields batches is read twice and the two passes are compared sample by sample, whatever their order: a
shuffling loader is harmless, a random transform is not. What fits into memory is kept, so that later passes cost no
loading. Tensors and lists of batches cannot change and are taken as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from landscope.core.errors import ChangingDataError, DataError, EmptyDataError, OneShotDataError
from landscope.core.memory import available_bytes
from landscope.core.seeding import generator, preserved_rng
from landscope.core.text import shape
from landscope.probe.batches import Batch, as_tensors, join, map_tensors, tensors_in

DataLike = (
    DataLoader[object]
    | Dataset[object]
    | Tensor
    | np.ndarray
    | Mapping[str, object]
    | Sequence[object]
    | Iterable[object]
)
"""A DataLoader, a Dataset, (x, y) tensors or a dict of tensors, or any re-iterable of batches."""

HASHED_AT_ONCE = 2**18
"""Numbers of samples that are hashed together."""
DATASET_BATCH = 256


@dataclass(frozen=True)
class FixedData:
    """Batches that are the same on every pass: kept in memory, or read again from a source that was checked."""

    source: Iterable[object]
    kept: tuple[object, ...] | None
    own_batches: bool
    """Whether the batches are the user's (a loader, a list) or free to be cut again (tensors, a Dataset)."""
    same_order: bool
    """Whether two passes gave the same batches in the same order."""
    times: int = 1
    """How often every sample occurs, where each occurs as often as the others."""
    stacked: str = ""
    """Shapes of one item of an IterableDataset that may be a whole batch and was taken as one sample."""

    def notices(self) -> Iterator[str]:
        """What a reader of the numbers should know: what counts as a sample decides how large errors over the data are."""
        if self.times > 1:
            yield (
                f"every sample occurs {self.times} times in the data, and counts as often: do several workers or processes "
                f"read the same ones?"
            )
        if self.stacked:
            yield (
                f"each item of the dataset ({self.stacked}) counts as one sample; if it is a whole batch, pass "
                f"torch.utils.data.DataLoader(dataset, batch_size=None)"
            )

    def __iter__(self) -> Iterator[object]:
        if self.kept is not None:
            yield from self.kept
            return
        with preserved_rng(*_generators(self.source)):
            for raw in self.source:
                yield as_tensors(raw)


class FrozenBatches(list[object]):
    """Batches that no longer change: a list that is known to hold batches, even if they are bare tensors."""


def freeze(data: DataLike, batch_size: int | None = None) -> FrozenBatches:
    """One pass over the data, kept: a list of batches that no longer changes.

    Use it where the data differs between passes (random transforms) and one draw of it is to be measured.

    >>> noisy = DataLoader([(torch.rand(2), i) for i in range(4)], batch_size=2)
    >>> [tuple(x.shape) for x, y in freeze(noisy)]
    [(2, 2), (2, 2)]
    """
    source, _, _ = _source(data, batch_size)
    with preserved_rng(*_generators(source)):
        batches = FrozenBatches(map_tensors(torch.clone, as_tensors(raw)) for raw in source)
        _refuse_repeated(source, sum(len(sample_hashes(batch)) for batch in batches))
    return batches


def read(data: DataLike, batch_size: int | None = None) -> FixedData:
    """The data as `FixedData`, refused where two passes differ, where it can be read only once or where it is empty."""
    source, own_batches, static = _source(data, batch_size)
    if static:
        kept = tuple(as_tensors(raw) for raw in source)
        if not kept:
            raise EmptyDataError("the data holds no batches")
        return FixedData(source, kept, own_batches, True)
    with preserved_rng(*_generators(source)):
        first = _Pass(source, keep=available_bytes(torch.device("cpu")) // 4)
        second = _Pass(source, keep=0, reference=first.kept)
        _refuse_repeated(source, first.samples)
    if first.batches == 0:
        raise EmptyDataError("the data holds no batches")
    if second.batches == 0:
        raise OneShotDataError(
            f"the data gave {first.batches} batches on the first pass and none on the second: it can be read once only. "
            f"Pass a DataLoader or a list of batches: landscope.freeze(data) makes one."
        )
    if (first.samples, first.fingerprint) != (second.samples, second.fingerprint):
        raise ChangingDataError(_what_changed(first, second, data))
    same_order = first.order == second.order
    stacked = _stacked(first.example) if isinstance(data, IterableDataset) else ""
    fitting = None if first.kept is None else tuple(first.kept)
    return FixedData(source, fitting, own_batches, same_order, first.times(), stacked)


def _stacked(raw: object) -> str:
    """The shapes of one item where items with as many labels as rows were collated: samples of many labels, or whole batches.

    >>> _stacked((torch.zeros(4, 16, 3), torch.zeros(4, 16).long())), _stacked((torch.zeros(4, 3), torch.zeros(4).long()))
    ('16×3 and 16', '')
    """
    tensors = tensors_in(raw)
    rows = {t.shape[1] for t in tensors if t.dim() > 2}
    labels = [t for t in tensors if t.dim() == 2 and not t.is_floating_point()]
    if len(tensors) < 2 or len(rows) != 1 or not labels or any(t.shape[1] not in rows for t in labels):
        return ""
    return " and ".join(shape(t.shape[1:]) for t in tensors)


def held(
    batches: Iterable[Batch], divisible: bool, device: torch.device, ready: Callable[[object], object]
) -> tuple[Batch, ...]:
    """Batches that fit into memory, as one where they can be joined, and on the device where they fit there too."""
    found = [Batch(batch.raw, batch.size, batch.divisible and divisible) for batch in batches]
    whole = join(found)
    found = found if whole is None else [whole]
    needed = sum(t.numel() * t.element_size() for batch in found for t in tensors_in(batch.raw))
    if needed < available_bytes(device) // 4:
        found = [batch.prepared(ready) for batch in found]
    return tuple(found)


def _source(data: DataLike, batch_size: int | None) -> tuple[Iterable[object], bool, bool]:
    """(what to iterate over, whether its batches are the user's own, whether it cannot change)."""
    if batch_size is not None and batch_size < 1:
        raise DataError(f"batch_size must be at least 1, got {batch_size}")
    if isinstance(data, FrozenBatches):
        return data, True, True
    if isinstance(data, DataLoader):
        sampler = data.sampler
        if isinstance(sampler, DistributedSampler) and sampler.total_size > len(sampler.dataset):  # type: ignore[arg-type]
            raise DataError(
                f"the DistributedSampler repeats {sampler.total_size - len(sampler.dataset)} samples "  # type: ignore[arg-type]
                f"to make the shards even, which would count them twice. Give each process its own part: "
                f"torch.utils.data.Subset(dataset, range(rank, len(dataset), world_size))."
            )
        return data, True, False
    if isinstance(data, (Tensor, np.ndarray)):
        return _cut((data,), batch_size), False, True
    if isinstance(data, Mapping):
        return _cut(data, batch_size), False, True
    if isinstance(data, (tuple, list)) and data and all(isinstance(item, (Tensor, np.ndarray)) for item in data):
        if isinstance(data, list) and _are_batches(data):
            return data, True, True
        return _cut(tuple(data), batch_size), False, True
    if isinstance(data, Dataset) or (
        hasattr(data, "__getitem__") and hasattr(data, "__len__") and not isinstance(data, (tuple, list))
    ):
        return DataLoader(data, batch_size=batch_size or DATASET_BATCH), False, False  # type: ignore[arg-type]
    if isinstance(data, Iterator):
        raise OneShotDataError(
            f"the data is an iterator ({type(data).__name__}) that can be read once only, and every measure needs several "
            f"passes. Pass a DataLoader or a list of batches: landscope.freeze(data) makes one."
        )
    if not isinstance(data, Iterable):
        raise DataError(
            f"the data is a {type(data).__name__}; expected a DataLoader, a Dataset, (x, y) tensors or an iterable of batches"
        )
    return data, True, type(data) in (list, tuple)


def _are_batches(tensors: Sequence[Tensor | np.ndarray]) -> bool:
    """Whether a list of tensors is a list of batches without labels, and not (inputs, targets); refused where it may be both.

    >>> _are_batches([torch.ones(4, 2), torch.ones(3, 2)]), _are_batches([torch.ones(4, 2), torch.ones(4).long()])
    (True, False)
    """
    if len(tensors) < 2 or len({(tuple(tensor.shape[1:]), tensor.dtype) for tensor in tensors}) > 1:
        return False
    if len({len(tensor) if tensor.ndim else 0 for tensor in tensors}) > 1:
        return True
    if all(tensor is tensors[0] for tensor in tensors):
        return False
    raise DataError(
        f"the data is a list of {len(tensors)} tensors of one shape: batches without targets, or inputs and targets? Pass a "
        f"tuple (x, y) for the latter, and tuples in the list for batches: [(first,), (second,)]."
    )


def _refuse_repeated(source: object, samples: int) -> None:
    """An IterableDataset that gives every worker of its loader the same samples: one worker alone would give fewer."""
    if not (isinstance(source, DataLoader) and isinstance(source.dataset, IterableDataset) and source.num_workers > 1):
        return
    alone = _Pass(
        DataLoader(
            source.dataset,
            batch_size=source.batch_size,
            collate_fn=source.collate_fn,
            drop_last=source.drop_last,
            num_workers=1,
            timeout=source.timeout,
            worker_init_fn=source.worker_init_fn,
            multiprocessing_context=source.multiprocessing_context,
        ),
        keep=0,
    )
    if samples > alone.samples:
        raise DataError(
            f"the loader's {source.num_workers} workers give {samples} samples, one worker alone {alone.samples}: the "
            f"IterableDataset gives each worker the same samples, and they would count {samples / alone.samples:.3g} times. "
            f"Share them out in its __iter__ (torch.utils.data.get_worker_info(): every num_workers-th sample from id on), "
            f"or set num_workers to 1."
        )


def _cut(whole: Mapping[str, object] | tuple[object, ...], batch_size: int | None) -> list[object]:
    """Tensors of one length, cut into batches."""
    tensors = as_tensors(whole)
    lengths = {int(t.shape[0]) for t in tensors_in(tensors) if t.dim() > 0}
    if not lengths:
        raise DataError("the data holds no tensors: turn lists into tensors first, torch.tensor(values)")
    if len(lengths) != 1:
        raise DataError(
            f"the tensors given as data have different numbers of samples: {sorted(lengths)}{_one_for_all(tensors, max(lengths))}"
        )
    (length,) = lengths
    if length == 0:
        raise EmptyDataError("the tensors given as data hold no samples")
    if batch_size is None or batch_size >= length:
        return [tensors]
    starts = range(0, length, batch_size)
    return [map_tensors(lambda t, a=a: t[a : a + batch_size], tensors) for a in starts]  # type: ignore[misc]


def _one_for_all(tensors: object, length: int) -> str:
    """For messages: what has one row for all samples, as masks and positions of texts often do."""
    single = (
        [key for key, value in tensors.items() if isinstance(value, Tensor) and value.dim() and len(value) == 1]
        if isinstance(tensors, Mapping)
        else []
    )
    if not single:
        return ""
    names = ", ".join(map(repr, single))
    return f". One row of {names} for all samples? Give each its own: tensor.expand({length}, *tensor.shape[1:])"


def _generators(source: object) -> list[torch.Generator]:
    """The generators that reading a loader would advance."""
    owners = (source, getattr(source, "sampler", None), getattr(source, "batch_sampler", None))
    found = {
        id(g): g for g in (getattr(owner, "generator", None) for owner in owners) if isinstance(g, torch.Generator)
    }
    return list(found.values())


class _Pass:
    """One pass over a source: counts, a fingerprint that ignores the order of samples, and the batches where they fit."""

    def __init__(self, source: Iterable[object], keep: int, reference: Sequence[object] | None = None) -> None:
        self.batches = self.samples = self.fingerprint = 0
        self.order: list[int] = []
        self.hashes: list[Tensor] = []
        self.kept: list[object] | None = [] if keep > 0 else None
        self.first_change: tuple[int, float] | None = None
        self.example: object = None
        """The first batch."""
        for index, item in enumerate(source):
            raw = as_tensors(item)
            self.example = raw if index == 0 else self.example
            hashes = sample_hashes(raw)
            batch_hash = int(hashes.sum())
            self.batches += 1
            self.samples += len(hashes)
            self.fingerprint = (self.fingerprint + batch_hash) % 2**64
            self.order.append(batch_hash)
            self.hashes.append(hashes)
            if self.kept is not None:
                keep -= sum(t.numel() * t.element_size() for t in tensors_in(raw))
                if keep < 0:
                    self.kept = None
                else:
                    self.kept.append(raw)
            if reference is not None and self.first_change is None and index < len(reference):
                change = _largest_change(reference[index], raw)
                self.first_change = (index, change) if change > 0 else None

    def times(self) -> int:
        """How often every sample occurs; 1 where some occur more often than others."""
        counts = torch.cat(self.hashes).unique(return_counts=True)[1]
        return int(counts[0]) if bool((counts == counts[0]).all()) else 1


def sample_hashes(raw: object) -> Tensor:
    """One 64-bit number per sample (a random linear function of its bytes), the same wherever the sample stands.

    A padding with zeros does not change it, so that batches padded to different lengths still compare.
    """
    tensors = tensors_in(raw)
    size = next((int(t.shape[0]) for t in reversed(tensors) if t.dim() > 0), 1)
    total = torch.zeros(size, dtype=torch.int64)
    for field, tensor in enumerate(tensors):
        tensor = tensor.detach().cpu()
        per_sample = tensor.dim() > 0 and tensor.shape[0] == size
        rows = tensor.reshape(size, -1) if per_sample else tensor.reshape(1, -1)
        numbers = rows.shape[1] * (2 if rows.is_complex() else 1)
        weights = torch.randint(
            -(2**63), 2**63 - 1, (numbers,), generator=generator(field, "fingerprint"), dtype=torch.int64
        )
        parts = rows.split(max(1, HASHED_AT_ONCE // max(1, numbers)))  # what stays in the cache: ten times as fast
        hashed = torch.cat([_words(part.contiguous()) @ (weights | 1) for part in parts])
        total = (total ^ (total >> 29)) * -7046029254386353131 + hashed
    return total ^ (total >> 32)


def _words(rows: Tensor) -> Tensor:
    """The bits of each number as an integer, so that equal means bit-identical."""
    if rows.is_complex():
        rows = torch.view_as_real(rows).flatten(1)
    if rows.dtype == torch.bool:
        return rows.to(torch.int64)
    kind = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[rows.element_size()]
    return rows.view(kind).to(torch.int64)


def _largest_change(a: object, b: object) -> float:
    pairs = list(zip(tensors_in(a), tensors_in(b), strict=False))
    if any(x.shape != y.shape for x, y in pairs):
        return float("inf")
    return max((float((x.double() - y.double()).abs().max()) for x, y in pairs if x.numel()), default=0.0)


def _what_changed(first: _Pass, second: _Pass, data: object) -> str:
    if first.samples != second.samples:
        found = f"{first.samples} samples on the first pass and {second.samples} on the second"
    elif second.first_change is not None and second.first_change[1] < float("inf"):
        found = "different samples on two passes (batch {}, largest change {:.2g})".format(*second.first_change)
    else:
        found = "different samples on two passes"
    remedy = (
        "Remove random transforms from the dataset that you measure on, or fix one draw of it: "
        "Probe(model, landscope.freeze(data))."
    )
    if isinstance(data, DataLoader) and data.drop_last:
        remedy = (
            "The loader drops its last batch (drop_last=True), so a shuffled pass leaves other samples out. " + remedy
        )
    return f"the data gave {found}. Sharpness is defined for fixed data. {remedy}"
