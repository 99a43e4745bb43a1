"""Images with every 2×2 pixels averaged: a quarter of the work, so that two cores learn them by the hundred networks."""

from __future__ import annotations

from torch.nn.functional import avg_pool2d

from landscope.data import load
from landscope.data.dataset import Split

__all__ = ["halved", "halved_fashion_mnist"]


def halved(name: str, train: int, validation: int) -> dict[str, Split]:
    """A data set with `train` images to learn from, each class with its share; all those to test."""
    whole = load(name, pixels="standard", validation=validation, train_size=train)
    splits = {"train": whole.train, "validation": whole.validation, "test": whole.test}
    return {split: Split(avg_pool2d(x, 2), y) for split, (x, y) in splits.items() if len(x)}


def halved_fashion_mnist(train: int = 1_000) -> dict[str, Split]:
    """`train` images of 14×14 pixels to learn from, and 10,000 to test."""
    return halved("fashion_mnist", train, validation=0)
