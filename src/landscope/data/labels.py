"""Labels made worse on purpose: symmetric noise, and labels that mean nothing.

Only training labels are ever changed. Zhang et al. (2017) fit random labels to show that capacity alone does not
explain generalisation; the second paper uses them on circles.
"""

from __future__ import annotations

import torch
from torch import Tensor

from landscope.core.errors import OperandError
from landscope.core.seeding import generator

__all__ = ["noisy_labels", "uniform_labels"]


def noisy_labels(labels: Tensor, fraction: float, n_classes: int, seed: int) -> Tensor:
    """Copy in which exactly round(fraction·n) labels are replaced by another class, each other class equally likely.

    >>> noisy = noisy_labels(torch.zeros(10, dtype=torch.int64), 0.3, n_classes=4, seed=0)
    >>> int((noisy != 0).sum())
    3
    """
    if not 0 <= fraction <= 1 or n_classes < 2:
        raise OperandError(f"label noise needs a fraction in [0, 1] and two classes; {fraction} and {n_classes} came")
    rng = generator(seed, "label noise")
    hit = torch.randperm(len(labels), generator=rng)[: round(fraction * len(labels))]
    shift = torch.randint(1, n_classes, (len(hit),), generator=rng)
    noisy = labels.clone()
    noisy[hit] = (labels[hit] + shift) % n_classes
    return noisy


def uniform_labels(labels: Tensor, n_classes: int, seed: int) -> Tensor:
    """Independent uniform labels in place of `labels`, whatever the inputs are.

    >>> uniform_labels(torch.zeros(4, dtype=torch.int64), n_classes=2, seed=0).shape
    torch.Size([4])
    """
    return torch.randint(0, n_classes, labels.shape, generator=generator(seed, "random labels"))
