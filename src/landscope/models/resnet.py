"""Residual networks: ResNet, pre-activation ResNet, WideResNet."""

from __future__ import annotations

from functools import partial
from typing import Literal, TypeAlias

from torch import Tensor, nn
from torch.nn.functional import pad, relu

from landscope.models.catalogue import Initialisation, OptionError, ParameterCount, initialise, register
from landscope.specs.schema import Natural, Probability

_register = partial(register, input_shape=(3, 32, 32), classifier="fc")

# Residual networks for small images (He et al. 2016): ResNet-18 with a 3×3 stem, and ResNet-20.


Shortcut: TypeAlias = Literal["project", "pad"]


class _PadShortcut(nn.Module):
    """Every other position, with zeros for the new channels: He et al.'s option A, without parameters."""

    def __init__(self, stride: int, new_channels: int) -> None:
        super().__init__()
        self.stride, self.new_channels = stride, new_channels

    def forward(self, x: Tensor) -> Tensor:
        before = self.new_channels // 2
        return pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, before, self.new_channels - before))


class _BasicBlock(nn.Module):
    """ReLU(BN(conv(ReLU(BN(conv(x))))) + shortcut(x))."""

    def __init__(self, in_channels: int, channels: int, stride: int, shortcut: Shortcut) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(in_channels, channels, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != channels:
            self.shortcut = (
                nn.Sequential(nn.Conv2d(in_channels, channels, 1, stride=stride, bias=False), nn.BatchNorm2d(channels))
                if shortcut == "project"
                else _PadShortcut(stride, channels - in_channels)
            )

    def forward(self, x: Tensor) -> Tensor:
        inner = self.bn2(self.conv2(relu(self.bn1(self.conv1(x)))))
        return relu(inner + self.shortcut(x))


class ResNet(nn.Module):
    """A 3×3 stem, stages of basic blocks (each after the first halves the side and doubles the channels), a mean."""

    def __init__(
        self,
        *,
        blocks: tuple[Natural, ...],
        num_classes: Natural,
        in_channels: Natural,
        width: Natural,
        shortcut: Shortcut,
        dropout: Probability,
        init: Initialisation,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(in_channels, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()
        )
        channels = width
        stages: list[nn.Module] = []
        for index, repeats in enumerate(blocks):
            layers: list[nn.Module] = []
            for repeat in range(repeats):
                after = width * 2**index
                layers.append(_BasicBlock(channels, after, 2 if index > 0 and repeat == 0 else 1, shortcut))
                channels = after
            stages.append(nn.Sequential(*layers))
        self.stages = nn.Sequential(*stages)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(channels, num_classes)
        initialise(self, init)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images of any size that the stages can halve."""
        features = self.stages(self.stem(x)).mean((-2, -1))
        return self.fc(self.dropout(features))


@_register(
    "resnet18",
    description="ResNet-18 with a 3×3 stem, for 32×32 images",
    counts=(
        ParameterCount(11_173_962, "the common CIFAR form"),
        ParameterCount(11_173_962 + 90 * 513, "the same, plus 90 classes", {"num_classes": 100}),
    ),
)
def resnet18(
    *,
    num_classes: Natural = 10,
    in_channels: Natural = 3,
    width: Natural = 64,
    dropout: Probability = 0.0,
    init: Initialisation = "he",
) -> ResNet:
    """ResNet-18: four stages of two blocks, projections where the shape changes."""
    return ResNet(
        blocks=(2, 2, 2, 2),
        num_classes=num_classes,
        in_channels=in_channels,
        width=width,
        shortcut="project",
        dropout=dropout,
        init=init,
    )


@_register(
    "resnet20",
    description="He et al.'s ResNet-20 for 32×32 images",
    counts=(
        ParameterCount(269_722, "He et al.'s 0.27M, with shortcuts that pad"),
        ParameterCount(
            269_722 + (16 * 32 + 2 * 32) + (32 * 64 + 2 * 64),
            "the same, plus two 1×1 convolutions with BatchNorm",
            {"shortcut": "project"},
        ),
    ),
)
def resnet20(
    *,
    num_classes: Natural = 10,
    in_channels: Natural = 3,
    width: Natural = 16,
    shortcut: Shortcut = "pad",
    dropout: Probability = 0.0,
    init: Initialisation = "he",
) -> ResNet:
    """ResNet-20: three stages of three blocks, shortcuts without parameters by default."""
    return ResNet(
        blocks=(3, 3, 3),
        num_classes=num_classes,
        in_channels=in_channels,
        width=width,
        shortcut=shortcut,
        dropout=dropout,
        init=init,
    )


# Pre-activation residual network with bottlenecks (He et al. 2016b), the third paper's PreResNet-164.
#
# Three stages of (depth − 2)/9 blocks: BN, ReLU, 1×1; BN, ReLU, 3×3; BN, ReLU, 1×1 to four times the channels; plus the
# block's input, through a 1×1 convolution where the shape changes.


_EXPANSION = 4


class _Bottleneck(nn.Module):
    def __init__(self, in_channels: int, channels: int, stride: int) -> None:
        super().__init__()
        out_channels = _EXPANSION * channels
        self.bn1 = nn.BatchNorm2d(in_channels)
        self.conv1 = nn.Conv2d(in_channels, channels, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride=stride, padding=1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, out_channels, 1, bias=False)
        changes = stride != 1 or in_channels != out_channels
        self.shortcut = nn.Conv2d(in_channels, out_channels, 1, stride=stride, bias=False) if changes else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        inner = self.conv1(relu(self.bn1(x)))
        inner = self.conv2(relu(self.bn2(inner)))
        inner = self.conv3(relu(self.bn3(inner)))
        return inner + self.shortcut(x)


@_register(
    "preresnet164",
    description="pre-activation ResNet-164 with bottlenecks, for 32×32 images",
    counts=(
        ParameterCount(1_726_388 - 90 * 257, "the third paper's count, less 90 classes"),
        ParameterCount(1_726_388, "the third paper, CIFAR-100", {"num_classes": 100}),
    ),
    fixed={"depth": 164},
)
class PreResNet(nn.Module):
    """Pre-activation ResNet of depth 9n + 2; `width` is the number of channels of the stem.

    >>> PreResNet(depth=11).fc
    Linear(in_features=256, out_features=10, bias=True)
    """

    def __init__(
        self,
        *,
        depth: Natural = 164,
        num_classes: Natural = 10,
        in_channels: Natural = 3,
        width: Natural = 16,
        init: Initialisation = "he",
    ) -> None:
        super().__init__()
        if depth < 11 or (depth - 2) % 9:
            raise OptionError(f"the depth of a bottleneck PreResNet must be 9n + 2 (11, 20, … 164), but is {depth}")
        self.stem = nn.Conv2d(in_channels, width, 3, padding=1, bias=False)
        channels = width
        blocks: list[nn.Module] = []
        for stage in range(3):
            for block in range((depth - 2) // 9):
                blocks.append(_Bottleneck(channels, width * 2**stage, 2 if stage > 0 and block == 0 else 1))
                channels = _EXPANSION * width * 2**stage
        self.blocks = nn.Sequential(*blocks)
        self.bn = nn.BatchNorm2d(channels)
        self.fc = nn.Linear(channels, num_classes)
        initialise(self, init)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images of any size."""
        features = relu(self.bn(self.blocks(self.stem(x)))).mean((-2, -1))
        return self.fc(features)


# Wide residual network (Zagoruyko and Komodakis 2016), WideResNet-28-10 of the third and fourth papers.
#
# Three stages of (depth − 4)/6 blocks: BN, ReLU, 3×3 (strided), dropout; BN, ReLU, 3×3; plus the block's input, through a
# 1×1 convolution where the shape changes. Two differences between the papers are options:
#
#     conv_bias=True      biases on all convolutions: the third paper's 36,546,980 at 100 classes
#     penultimate=64      one more linear layer and ReLU before the classifier: the fourth paper, which regularises there


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
        return inner + self.shortcut(x)


@_register(
    "wide_resnet28_10",
    description="WideResNet-28-10 for 32×32 images",
    counts=(
        ParameterCount(36_479_194, "Zagoruyko and Komodakis' 36.5M, 10 classes"),
        ParameterCount(36_546_980, "the third paper, CIFAR-100", {"num_classes": 100, "conv_bias": True}),
        ParameterCount(
            36_479_194 - 641 * 10 + 641 * 64 + 65 * 10,
            "the published count, with the fourth paper's added layer",
            {"penultimate": 64},
        ),
    ),
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
        return self.fc(relu(self.penultimate(features)))
