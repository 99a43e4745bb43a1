"""What the notebooks of paper 5 trained on and with, where its text says something else."""

from __future__ import annotations

import numpy as np
import torch
from torch import nn

from landscope.data import load
from landscope.data.dataset import Split
from landscope.measures.as_published.left_in_evaluation import leave_in_evaluation
from landscope.models import LeNet5

__all__ = ["abalone_of_the_notebook", "lenet5_left_in_evaluation"]

SPLIT_SEED, TEST_SHARE = 42, 0.2


def abalone_of_the_notebook(train_size: int | None = None) -> dict[str, Split]:
    """Abalone as the FCNN notebook reads and splits it; `train_size` keeps the first rows of its training part.

    The first row of the file is taken for a header; scikit-learn's `train_test_split` with seed 42 leaves 3,340 rows for training
    and 836 for testing; inputs and targets have mean 0 and deviation 1 over the training rows.

    >>> rows = abalone_of_the_notebook()
    >>> len(rows["train"].y), len(rows["test"].y), bool(rows["train"].y.std() - 1 < 1e-6)
    (3340, 836, True)
    """
    x, y = (part[1:] for part in _in_file_order())
    order = torch.from_numpy(np.random.RandomState(SPLIT_SEED).permutation(len(y)))
    held_out = int(np.ceil(TEST_SHARE * len(y)))
    test, train = order[:held_out], order[held_out:]
    x, y = ((part - part[train].mean(0)) / part[train].std(0) for part in (x, y))
    train = train[:train_size]
    return {"train": Split(x[train], y[train]), "test": Split(x[test], y[test])}


def _in_file_order() -> Split:
    splits = load("abalone", validation=0)
    order = torch.cat([splits.indices["train"], splits.indices["test"]]).argsort()
    x, y = (torch.cat([train, test])[order] for train, test in zip(splits.train, splits.test, strict=True))
    return Split(x, y)


def lenet5_left_in_evaluation(
    *, steps: int, num_classes: int = 10, in_channels: int = 1, image_size: int = 28, dropout: float = 0.5
) -> nn.Module:
    """LeNet-5 as the notebook trains it: after `steps`, the length of its first epoch, it stays in evaluation mode."""
    network = LeNet5(num_classes=num_classes, in_channels=in_channels, image_size=image_size, dropout=dropout)
    return leave_in_evaluation(network, steps)
