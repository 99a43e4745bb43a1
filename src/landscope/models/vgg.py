"""VGG-11, -16 and -19 (Simonyan and Zisserman 2015), with heads for small images and for ImageNet.

The convolutions are VGG's: 3×3, five stages, each ended by a 2×2 max-pool, which leave one position of a 32×32 image.
What follows them differs between the papers:

    hidden        Dropout, Linear 512→512, BatchNorm, ReLU, Linear 512→C     first paper's code: 20.3M for VGG-19
    linear        Dropout, Linear 512→C                                      the common form for CIFAR
    two_hidden    (Dropout, Linear 512→512, ReLU) twice, Linear 512→C        third paper's code (there dropout 0.5)
    ImageNet      7×7 pooling, (Linear →4096, ReLU, Dropout) twice, Linear   the 140M that the first paper's text means
"""

from __future__ import annotations

from functools import partial
from typing import Literal, TypeAlias

from torch import Tensor, nn

from landscope.models.catalogue import Initialisation, ParameterCount, initialise, register
from landscope.specs.schema import Natural, Probability

Depth: TypeAlias = Literal[11, 16, 19]
Head: TypeAlias = Literal["hidden", "linear", "two_hidden"]

_register = partial(register, input_shape=(3, 32, 32), classifier="fc")

# Convolutions per stage; channels double from stage to stage up to eight times the first.
_STAGES: dict[Depth, tuple[int, ...]] = {11: (1, 1, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
_GROWTH = (1, 2, 4, 8, 8)


def _convolutions(depth: Depth, in_channels: int, width: int, *, batch_norm: bool) -> nn.Sequential:
    layers: list[nn.Module] = []
    for repeats, growth in zip(_STAGES[depth], _GROWTH, strict=True):
        for _ in range(repeats):
            layers.append(nn.Conv2d(in_channels, width * growth, 3, padding=1))
            layers += [nn.BatchNorm2d(width * growth)] if batch_norm else []
            layers.append(nn.ReLU())
            in_channels = width * growth
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(*layers)


def _hidden_layer(width: int, *, batch_norm: bool, dropout: float) -> list[nn.Module]:
    normalisation = [nn.BatchNorm1d(width)] if batch_norm else []
    return [nn.Dropout(dropout), nn.Linear(width, width), *normalisation, nn.ReLU()]


@_register(
    "vgg11",
    description="VGG-11 for 32×32 images",
    counts=(
        ParameterCount(9_231_114 + 512 * 513 + 1_024, "the common form's count, plus the hidden layer"),
        ParameterCount(9_231_114, "the common CIFAR form", {"head": "linear"}),
    ),
    fixed={"depth": 11},
)
@_register(
    "vgg16",
    description="VGG-16 for 32×32 images",
    counts=(
        ParameterCount(14_728_266 + 512 * 513 + 1_024, "the common form's count, plus the hidden layer"),
        ParameterCount(14_728_266, "the common CIFAR form", {"head": "linear"}),
        ParameterCount(
            14_728_266 + 2 * 512 * 513 + 90 * 513,
            "the common form's count, plus two hidden layers and 90 classes",
            {"head": "two_hidden", "num_classes": 100},
        ),
        ParameterCount(
            14_728_266 - 2 * 4_224, "4,224 channels without BatchNorm", {"head": "linear", "batch_norm": False}
        ),
    ),
    fixed={"depth": 16},
)
@_register(
    "vgg19",
    description="VGG-19 for 32×32 images, as in the first paper's code",
    counts=(
        ParameterCount(20_040_522 + 512 * 513 + 1_024, "the common form's count, plus the hidden layer: 20.3M"),
        ParameterCount(20_040_522, "the common CIFAR form", {"head": "linear"}),
        ParameterCount(20_040_522 + 512 * 513 - 2 * 5_504, "5,504 channels without BatchNorm", {"batch_norm": False}),
    ),
    fixed={"depth": 19},
)
class VGG(nn.Module):
    """VGG with a small head; `width` is the number of channels of the first stage, an eighth of the last.

    >>> VGG(depth=11, num_classes=100).fc
    Linear(in_features=512, out_features=100, bias=True)
    """

    def __init__(
        self,
        *,
        depth: Depth = 19,
        num_classes: Natural = 10,
        in_channels: Natural = 3,
        width: Natural = 64,
        head: Head = "hidden",
        batch_norm: bool = True,
        dropout: Probability = 0.0,
        init: Initialisation = "pytorch",
    ) -> None:
        super().__init__()
        self.features = _convolutions(depth, in_channels, width, batch_norm=batch_norm)
        last = _GROWTH[-1] * width
        hidden: list[nn.Module] = [nn.Flatten()]
        if head == "hidden":
            hidden += _hidden_layer(last, batch_norm=batch_norm, dropout=dropout)
        elif head == "two_hidden":
            hidden += [layer for _ in range(2) for layer in _hidden_layer(last, batch_norm=False, dropout=dropout)]
        else:
            hidden.append(nn.Dropout(dropout))
        self.hidden = nn.Sequential(*hidden)
        self.fc = nn.Linear(last, num_classes)
        initialise(self, init)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of 32×32 images (up to 63×63: one position must be left)."""
        return self.fc(self.hidden(self.features(x)))


@_register(
    "vgg11_imagenet_head",
    description="VGG-11 with the ImageNet head",
    counts=(ParameterCount(132_868_840 - 990 * 4_097, "the published ImageNet model, less 990 classes"),),
    fixed={"depth": 11},
)
@_register(
    "vgg16_imagenet_head",
    description="VGG-16 with the ImageNet head",
    counts=(
        ParameterCount(138_365_992 - 990 * 4_097, "the published ImageNet model, less 990 classes"),
        ParameterCount(138_357_544, "the published ImageNet model", {"num_classes": 1000, "batch_norm": False}),
    ),
    fixed={"depth": 16},
)
@_register(
    "vgg19_imagenet_head",
    description="VGG-19 with the ImageNet head, as in the first paper's text",
    counts=(
        ParameterCount(139_622_218, "143,678,248 of the published ImageNet model, less 990 classes"),
        ParameterCount(139_611_210, "143,667,240 of the published one, less 990 classes", {"batch_norm": False}),
        ParameterCount(143_678_248, "the published ImageNet model", {"num_classes": 1000}),
    ),
    fixed={"depth": 19},
)
class VGGImageNetHead(nn.Module):
    """VGG with the two wide linear layers of the ImageNet model, for images of any size from 32×32.

    On 32×32 images the pooling to 7×7 repeats one position 49 times.
    """

    def __init__(
        self,
        *,
        depth: Depth = 19,
        num_classes: Natural = 10,
        in_channels: Natural = 3,
        width: Natural = 64,
        hidden_width: Natural = 4096,
        batch_norm: bool = True,
        dropout: Probability = 0.0,
        init: Initialisation = "pytorch",
    ) -> None:
        super().__init__()
        self.features = _convolutions(depth, in_channels, width, batch_norm=batch_norm)
        self.pool = nn.AdaptiveAvgPool2d(7)
        self.hidden = nn.Sequential(
            nn.Flatten(),
            *(nn.Linear(_GROWTH[-1] * width * 49, hidden_width), nn.ReLU(), nn.Dropout(dropout)),
            *(nn.Linear(hidden_width, hidden_width), nn.ReLU(), nn.Dropout(dropout)),
        )
        self.fc = nn.Linear(hidden_width, num_classes)
        initialise(self, init)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images of 32×32 or more."""
        return self.fc(self.hidden(self.pool(self.features(x))))
