"""FashionMNIST with every 2×2 pixels averaged: images that two cores learn by the hundred networks."""

from __future__ import annotations

from torch.nn.functional import avg_pool2d

from landscope.data import load
from landscope.data.card import Split

__all__ = ["halved_fashion_mnist"]


def halved_fashion_mnist(train: int = 1_000) -> dict[str, Split]:
    """`train` images of 14×14 pixels, each class with its share, to learn from, and all 10,000 to test."""
    whole = load("fashion_mnist", pixels="standard", validation=0, train_size=train)
    return {split: Split(avg_pool2d(x, 2), y) for split, (x, y) in (("train", whole.train), ("test", whole.test))}
