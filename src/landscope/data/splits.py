"""Which rows go where: stratified draws that depend on a seed and nothing else."""

from __future__ import annotations

import torch
from torch import Tensor

from landscope.core.errors import OperandError
from landscope.core.seeding import generator

__all__ = ["draw"]


def draw(labels: Tensor, n: int, seed: int, stream: str) -> tuple[Tensor, Tensor]:
    """Two sorted sets of row numbers: `n` drawn ones, and the rest.

    Whole-number labels are drawn in proportion, by Webster's rule: the same share of each class, rounded to whole rows, the
    share being the one that adds up to `n`. A smaller draw is part of a larger one. Real targets are drawn at random.

    >>> drawn, rest = draw(torch.tensor([0, 0, 0, 0, 1, 1]), 3, seed=0, stream="test")
    >>> len(drawn), len(rest), int((drawn >= 4).sum())
    (3, 3, 1)
    """
    total = len(labels)
    if not 0 <= n <= total:
        raise OperandError(f"{n:,} rows cannot be drawn from {total:,}")
    order = torch.randperm(total, generator=generator(seed, "split", stream))
    if not labels.is_floating_point() and labels.ndim == 1:
        # A row's rank within its class, over the size of the class: sorting by it takes the same share of each.
        by_class = order[torch.argsort(labels[order], stable=True)]
        sizes = torch.bincount(labels)
        starts = torch.cumsum(sizes, 0) - sizes
        rank = torch.arange(total) - starts[labels[by_class]]
        share = (rank + 0.5) / sizes[labels[by_class]]
        order = by_class[torch.argsort(share, stable=True)]
    return order[:n].sort().values, order[n:].sort().values
