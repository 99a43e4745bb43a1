"""Wide residual network (Zagoruyko and Komodakis 2016), WideResNet-28-10 of the third and fourth papers.

Three stages of (depth − 4)/6 blocks: BN, ReLU, 3×3 (strided), dropout; BN, ReLU, 3×3; plus the block's input, through a
1×1 convolution where the shape changes. Two differences between the papers are options:

    conv_bias=True      biases on all convolutions: the third paper's 36,546,980 at 100 classes
    penultimate=64      one more linear layer and ReLU before the classifier: the fourth paper, which regularises there
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import relu

from landscope.models.catalogue import ParameterCount, register
from landscope.models.initialisation import Initialisation, initialise
from landscope.models.options import Natural, OptionError, Probability

__all__ = ["WideResNet"]


class _WideBlock(nn.Module):
    def __init__(self, in_channels: int, channels: int, stride: int, *, bias: bool, dropout: float) -> None:
        super().__init__()
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=bias)
        self.dropout = nn.Dropout(dropout)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=bias)
        changes = stride != 1 or in_channels != channels
        self.shortcut = nn.Conv2d(in_channels, channels, 1, stride=stride, bias=bias) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        inner = self.dropout(self.conv1(relu(self.bn1(x))))
        inner = self.conv2(relu(self.bn2(inner)))
        total: Tensor = inner + self.shortcut(x)
        return total


@register(
    "wide_resnet28_10",
    description="WideResNet-28-10 for 32×32 images",
    input_shape=(3, 32, 32),
    classifier="fc",
    counts=(
        ParameterCount(36_479_194, "Zagoruyko and Komodakis' 36.5M, 10 classes"),
        ParameterCount(36_546_980, "the third paper, CIFAR-100", {"num_classes": 100, "conv_bias": True}),
        ParameterCount(
            36_479_194 - 641 * 10 + 641 * 64 + 65 * 10,
            "the published count, with the fourth paper's added layer",
            {"penultimate": 64},
        ),
    ),
    recipes=("false-friend", "fam"),
    fixed={"depth": 28},
)
class WideResNet(nn.Module):
    """WideResNet of depth 6n + 4 with `widen_factor` times 16, 32 and 64 channels.

    With `penultimate`, `model.penultimate` is the added linear layer. The output of the ReLU after it feeds `model.fc`.

    >>> WideResNet(depth=10, widen_factor=1, penultimate=64).penultimate
    Linear(in_features=64, out_features=64, bias=True)
    """

    def __init__(
        self,
        *,
        depth: Natural = 28,
        num_classes: Natural = 10,
        in_channels: Natural = 3,
        widen_factor: Natural = 10,
        penultimate: Natural | None = None,
        conv_bias: bool = False,
        dropout: Probability = 0.0,
        init: Initialisation = "he",
    ) -> None:
        super().__init__()
        if depth < 10 or (depth - 4) % 6:
            raise OptionError(f"the depth of a WideResNet must be 6n + 4 (10, 16, 22, 28, …), but is {depth}")
        self.stem = nn.Conv2d(in_channels, 16, 3, padding=1, bias=conv_bias)
        channels = 16
        blocks: list[nn.Module] = []
        for stage in range(3):
            for block in range((depth - 4) // 6):
                after, stride = widen_factor * 16 * 2**stage, 2 if stage > 0 and block == 0 else 1
                blocks.append(_WideBlock(channels, after, stride, bias=conv_bias, dropout=dropout))
                channels = after
        self.blocks = nn.Sequential(*blocks)
        self.bn = nn.BatchNorm2d(channels)
        self.penultimate = nn.Identity() if penultimate is None else nn.Linear(channels, penultimate)
        self.fc = nn.Linear(penultimate or channels, num_classes)
        initialise(self, init)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images of any size."""
        features = relu(self.bn(self.blocks(self.stem(x)))).mean((-2, -1))
        # The mean of ReLU outputs is never negative: without the added layer the second ReLU changes nothing.
        logits: Tensor = self.fc(relu(self.penultimate(features)))
        return logits
