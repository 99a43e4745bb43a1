"""Batches of exactly m samples, for measures that are defined as means over such batches (m-sharpness, IGS).

The cut is part of the definition of those measures, so it depends on the samples and the seed alone: every sample gets
a random number from its content, its repetition count and the seed; sorted by it, the data is cut into consecutive
batches of m; what is left over at the end (fewer than m samples) is not used. The loader's batch size, the order of the
data, the dtype of the probe and the number of processes change nothing. One pass over the data (hashing, no model),
once per probe.

Two kinds of data cannot be cut again. Batches that are one piece (a graph, or `batch_statistics` mode, where they define
the function) are yielded whole, as they come; batches whose samples differ in shape from one batch to the next (texts
padded to different lengths) are cut where they lie, each into pieces of m.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils import _pytree as pytree

from landscope.core.distributed import processes
from landscope.core.errors import NotApplicableError
from landscope.core.memory import available_bytes
from landscope.core.seeding import generator
from landscope.probe.batches import Batch, map_tensors, tensors_in
from landscope.probe.probe import Probe
from landscope.probe.reading import sample_hashes
from landscope.probe.shared import once_per_probe

GOLDEN = -7046029254386353131
"""2⁶⁴ over the golden ratio, as a signed integer: the usual odd multiplier for mixing bits."""


def m_batches(probe: Probe, m: int, count: int | None = None, seed: int = 0) -> Iterator[Batch]:
    """Yield the first `count` (default: all) batches of exactly m samples, on the probe's device and in its dtype.

    Fewer than m samples in all give one batch of all of them; where fewer than `count` batches can be cut, all are
    given. With several processes, batch j goes to process j mod (number of processes), the samples being exchanged;
    every process must consume its iterator to the end, and `gather_values` puts the results together. Batches that
    cannot be cut (graphs, `batch_statistics`) and ragged ones are yielded by the process that holds them, up to `count`
    on each.

    >>> probe = Probe(torch.nn.Linear(1, 1), (torch.arange(7.0)[:, None], torch.zeros(7, 1)), "mse")
    >>> [batch.size for batch in m_batches(probe, 3)]
    [3, 3]
    """
    if m < 1 or (count is not None and count < 1):
        raise ValueError(f"m_batches needs m ≥ 1 and count ≥ 1 (or None), got m={m}, count={count}")
    order, total = _cut_order(probe, seed), batch_count(probe, m, count, seed)
    if order is None or total is None:
        yield from _as_they_lie(probe, m, count)
        return
    ids, first, rank, world = order
    m = min(m, len(ids))
    sample = next(next(probe.batches()).pieces(1))
    sample_bytes = sum(t.numel() * t.element_size() for t in tensors_in(sample.raw))
    home = tensors_in(sample.raw)[0].device
    group = max(world, available_bytes(home) // (8 * m * sample_bytes))
    for start in range(0, total, group):
        stop = min(start + group, total)
        rows = _rows(probe, ids[start * m : stop * m], first, world)
        for j in range(start + (rank - start) % world, stop, world):
            a = (j - start) * m
            yield Batch(probe.ready(map_tensors(lambda t, a=a: t[a : a + m], rows)), m, True)  # type: ignore[misc]


def batch_count(probe: Probe, m: int, count: int | None = None, seed: int = 0) -> int | None:
    """How many batches `m_batches` gives in a random order; `None` where they are cut as they lie."""
    order = _cut_order(probe, seed)
    if order is None:
        return None
    total = len(order[0]) // min(m, len(order[0]))
    return total if count is None else min(count, total)


def gather_values(values: Sequence[float]) -> list[float]:
    """One value per batch of every process, in the order of the batches; the same list on each process.

    >>> gather_values([1.0, 2.0])
    [1.0, 2.0]
    """
    if processes() == 1:
        return list(values)
    parts: list[list[float]] = [[] for _ in range(processes())]
    dist.all_gather_object(parts, list(values))
    longest = max(len(part) for part in parts)
    return [part[i] for i in range(longest) for part in parts if i < len(part)]


@once_per_probe
def _cut_order(probe: Probe, seed: int) -> tuple[Tensor, int, int, int] | None:
    """(sample numbers in the order of the cut, first number held here, rank, processes), or `None`: no new cut."""
    found = _hashes(probe)
    if found is None:
        return None
    hashes, first, rank, world = found
    return _shuffled(hashes, seed), first, rank, world


@once_per_probe
def _hashes(probe: Probe) -> tuple[Tensor, int, int, int] | None:
    """(hashes of all samples, first number held here, rank, processes), or `None` where samples cannot be distinguished."""
    hashes, shapes = [], set()
    cuttable = True
    for batch in probe.batches():
        cuttable = cuttable and batch.divisible
        shapes.add(tuple(t.shape[1:] for t in tensors_in(batch.raw)) if batch.divisible else ())
        if cuttable and len(shapes) == 1:
            hashes.append(sample_hashes(map_tensors(_comparable, batch.raw)))
    mine: Tensor | None = torch.cat(hashes) if cuttable and len(shapes) == 1 else None
    parts: list[Tensor | None] = [mine]
    rank, world = 0, processes()
    if world > 1:
        rank, parts = dist.get_rank(), [None] * world
        dist.all_gather_object(parts, mine)
    known = [part for part in parts if part is not None]
    if len(known) < world:
        return None
    return torch.cat(known), sum(len(part) for part in known[:rank]), rank, world


def _comparable(tensor: Tensor) -> Tensor:
    """float64 copies of float32 data must hash alike."""
    return tensor.to("cpu", torch.float32) if tensor.is_floating_point() else tensor


def _shuffled(hashes: Tensor, seed: int) -> Tensor:
    """Permute the samples by their content: repeated ones are distinguished by their count, not by their place."""
    by_hash = hashes.argsort(stable=True)
    ordered = hashes[by_hash]
    place = torch.arange(len(hashes))
    is_first = torch.ones(len(hashes), dtype=torch.bool)
    is_first[1:] = ordered[1:] != ordered[:-1]
    repetition = place - torch.where(is_first, place, 0).cummax(0).values
    salt = int(torch.randint(-(2**62), 2**62, (1,), generator=generator(seed, "m-batches")))
    keys = (ordered ^ salt) + repetition * GOLDEN
    for shift in (31, 27, 33):
        keys = (keys ^ (keys >> shift)) * GOLDEN
    return by_hash[keys.argsort(stable=True)]


def _rows(probe: Probe, ids: Tensor, first: int, world: int) -> object:
    """Fetch the samples with these numbers, in this order, whoever holds them."""
    places, parts, offset = [], [], first
    for batch in probe.batches():
        inside = ((ids >= offset) & (ids < offset + batch.size)).nonzero()[:, 0]
        if len(inside):
            places.append(inside)
            parts.append(map_tensors(lambda t, i=ids[inside] - offset: t[i.to(t.device)], batch.raw))  # type: ignore[misc]
        offset += batch.size
    found: list[tuple[Tensor, object]] = list(zip(places, parts, strict=True))
    if world > 1:
        shares: list[list[tuple[Tensor, object]]] = [[] for _ in range(world)]
        dist.all_gather_object(shares, [(place, map_tensors(lambda t: t.cpu(), part)) for place, part in found])
        found = [item for share in shares for item in share]
    back = torch.cat([place for place, _ in found]).argsort()
    leaves = [pytree.tree_flatten(part) for _, part in found]
    columns = zip(*(tensors for tensors, _ in leaves), strict=True)
    return pytree.tree_unflatten([torch.cat(c)[back.to(c[0].device)] for c in columns], leaves[0][1])


def _as_they_lie(probe: Probe, m: int, count: int | None) -> Iterator[Batch]:
    given = 0
    for batch in probe.batches():
        pieces = batch.pieces(m) if batch.divisible else [batch]
        for piece in pieces:
            if piece.divisible and piece.size < m:
                continue
            if count is not None and given >= count:
                return
            given += 1
            yield Batch(probe.ready(piece.raw), piece.size, piece.divisible)
    if not given:
        raise NotApplicableError(
            f"no batch of the data holds {m} samples, and batches of different shapes cannot be joined. Ask for "
            f"smaller batches (batch_size=…), pad all samples alike, or let the loader yield larger batches."
        )


# A 64-bit key for every sample, from its content and the number of its copy: not from its place in the data.
#
# Copies of a sample must not share random numbers, or an error bar that takes samples as independent is too small. They are
# distinguished by counting: whichever copy comes first is the first, and as copies are alike, sums over samples do not depend on
# the batch size, the order of the data and the number of processes. One pass over the data (hashing, no model), once per probe.


KEYS_AT_ONCE = 1024
"""Samples whose bytes are hashed together."""
UNSIGNED_GOLDEN = 0x9E3779B97F4A7C15
"""2⁶⁴ over the golden ratio: the keys of copies lie that far apart."""


class SampleKeys:
    """The keys of one pass over the data: `of` a piece before it is worked on, `count` once that has succeeded.

    >>> probe = Probe(torch.nn.Linear(1, 1), (torch.ones(3, 1), torch.zeros(3, 1)), "mse")
    >>> keys = SampleKeys(probe)
    >>> len(set(keys.of(next(probe.batches())).tolist()))
    3
    """

    def __init__(self, probe: Probe) -> None:
        self._device = probe.device
        self._repeated = _repeated(probe)
        self._seen = Counter(self._repeated)

    def of(self, batch: Batch) -> Tensor:
        """One key per sample (n,), a signed 64-bit integer."""
        hashes = sample_hashes(batch.raw)
        if self._repeated:
            here = Counter[int]()
            for place, content in enumerate(hashes.tolist()):
                if content in self._repeated:
                    hashes[place] = _wrapped(content + (self._seen[content] + here[content]) * UNSIGNED_GOLDEN)
                    here[content] += 1
        return hashes.to(self._device)

    def count(self, batch: Batch) -> None:
        """Its copies are taken: those that follow get other keys."""
        if self._repeated:
            self._seen.update(content for content in sample_hashes(batch.raw).tolist() if content in self._repeated)


@once_per_probe
def row_keys(probe: Probe) -> Tensor:
    """The keys of all samples of this process (n,), on the CPU, in the order of the data."""
    keys, found = SampleKeys(probe), []
    for batch in probe.batches():
        for piece in batch.pieces(KEYS_AT_ONCE):
            found.append(keys.of(piece).cpu())
            keys.count(piece)
    return torch.cat(found)


@once_per_probe
def _repeated(probe: Probe) -> dict[int, int]:
    """Contents that occur more than once in all processes, and how often in those of a lower rank."""
    mine = torch.cat([sample_hashes(probe.ready(batch.raw)) for batch in probe.batches()])
    parts, rank = [mine], 0
    if processes() > 1:
        gathered: list[Tensor | None] = [None] * processes()
        dist.all_gather_object(gathered, mine)
        parts, rank = [part for part in gathered if part is not None], dist.get_rank()
    contents, counts = torch.cat(parts).unique(return_counts=True)
    repeated = set(contents[counts > 1].tolist())
    before = Counter(content for part in parts[:rank] for content in part.tolist() if content in repeated)
    return {content: before[content] for content in repeated}


def _wrapped(number: int) -> int:
    """Modulo 2⁶⁴, as a signed integer."""
    return (number + 2**63) % 2**64 - 2**63
