"""What the fourth paper's studies need besides the catalogues: RTE in word pieces, and a network that enlarges its images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from torch import Tensor, nn
from torch.nn.functional import pad

from landscope.data import DataSplits, load
from landscope.models.bert import tokenize
from landscope.models.efficientnet import EfficientNetLite0

__all__ = ["enlarged_efficientnet", "rte_word_pieces"]


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
