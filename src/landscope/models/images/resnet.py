"""Residual networks for small images (He et al. 2016): ResNet-18 with a 3×3 stem, and ResNet-20."""

from __future__ import annotations

from typing import Literal, TypeAlias

from torch import Tensor, nn
from torch.nn.functional import pad, relu

from landscope.models.catalogue import ParameterCount, register
from landscope.models.initialisation import Initialisation, initialise
from landscope.models.options import Natural, Probability

__all__ = ["ResNet", "resnet18", "resnet20"]

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
        logits: Tensor = self.fc(self.dropout(features))
        return logits


@register(
    "resnet18",
    description="ResNet-18 with a 3×3 stem, for 32×32 images",
    input_shape=(3, 32, 32),
    classifier="fc",
    counts=(
        ParameterCount(11_173_962, "the common CIFAR form"),
        ParameterCount(11_173_962 + 90 * 513, "the same, plus 90 classes", {"num_classes": 100}),
    ),
    recipes=("function-centric", "fam"),
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


@register(
    "resnet20",
    description="He et al.'s ResNet-20 for 32×32 images",
    input_shape=(3, 32, 32),
    classifier="fc",
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
