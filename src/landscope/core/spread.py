"""A few samples from all over the data, of as many labels as possible.

Data often comes sorted by class: its first samples then do not show what a loss does with classes of different weight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from landscope.core.batches import Batch, join, map_tensors, tensors_in
from landscope.core.seeding import generator

__all__ = ["spread"]


def spread(batches: Iterable[Batch], targets: Callable[[Batch], object], count: int) -> Batch | None:
    """At most `count` samples as one batch: one of each label first, then random ones. One pass over the data.

    Only samples of one shape go into a batch: the shape that most of them have. `None` where batches cannot be cut.

    >>> x = torch.arange(100)
    >>> found = spread([Batch((x, x // 99), 100, True)], lambda batch: batch.raw[1], 4)
    >>> found.size, sorted(found.raw[1].tolist())
    (4, [0, 0, 0, 1])
    """
    draw = generator(0, "spread")
    seen: set[int] = set()
    best: list[tuple[float, Batch]] = []
    for batch in batches:
        if not batch.divisible:
            return None
        rank = torch.rand(batch.size, generator=draw)
        rank[_first_of_new_labels(targets(batch), seen)] += 1
        highest = rank.topk(min(count, batch.size))
        for value, row in zip(highest.values.tolist(), highest.indices.tolist(), strict=True):
            if len(best) < count or value > best[-1][0]:
                best.append((value, _row(batch, row)))
        best = sorted(best, key=lambda ranked: ranked[0], reverse=True)[:count]
    alike: dict[object, list[Batch]] = {}
    for _, one in best:
        alike.setdefault(tuple((t.shape, t.dtype) for t in tensors_in(one.raw)), []).append(one)
    return join(max(alike.values(), key=len, default=[]))


def _first_of_new_labels(labels: object, seen: set[int]) -> list[int]:
    """The rows at which labels occur for the first time; they are `seen` from then on."""
    if not isinstance(labels, Tensor) or labels.dim() != 1 or labels.is_floating_point():
        return []
    values, place = labels.cpu().unique(return_inverse=True)
    first = torch.full((len(values),), len(place)).scatter_reduce(0, place, torch.arange(len(place)), "amin")
    new = [row for value, row in zip(values.tolist(), first.tolist(), strict=True) if value not in seen]
    seen.update(values.tolist())
    return new


def _row(batch: Batch, row: int) -> Batch:
    return Batch(map_tensors(lambda t: t[row : row + 1].clone(), batch.raw), 1, True)
