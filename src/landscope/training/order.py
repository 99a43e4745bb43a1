"""In which order the rows come: a function of the seed and the epoch, so that nothing of it needs to be remembered."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from landscope.core.seeding import generator

__all__ = ["epoch_batches", "steps_per_epoch"]

BatchSize = int | Literal["full"]


def steps_per_epoch(rows: int, batch_size: BatchSize, drop_last: bool = False) -> int:
    """How many batches one pass over the rows has.

    >>> steps_per_epoch(10, 4), steps_per_epoch(10, 4, drop_last=True), steps_per_epoch(10, "full")
    (3, 2, 1)
    """
    if batch_size == "full":
        return 1
    return rows // batch_size if drop_last else -(-rows // batch_size)


def epoch_batches(
    rows: int, batch_size: BatchSize, seed: int, epoch: int, *, drop_last: bool = False
) -> tuple[Tensor, ...]:
    """The numbers of the rows in each batch of an epoch, counted from 0; a full batch keeps the order of the rows.

    >>> [sorted(batch.tolist()) for batch in epoch_batches(3, "full", seed=0, epoch=0)]
    [[0, 1, 2]]
    >>> torch.cat(epoch_batches(10, 4, seed=0, epoch=0)).sort().values.equal(torch.arange(10))
    True
    """
    if batch_size == "full":
        return (torch.arange(rows),)
    order = torch.randperm(rows, generator=generator(seed, "order", epoch))
    return order.split(batch_size)[: steps_per_epoch(rows, batch_size, drop_last)]
