"""Pre-activation residual network with bottlenecks (He et al. 2016b), the third paper's PreResNet-164.

Three stages of (depth − 2)/9 blocks: BN, ReLU, 1×1; BN, ReLU, 3×3; BN, ReLU, 1×1 to four times the channels; plus the
block's input, through a 1×1 convolution where the shape changes.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import relu

from landscope.models.catalogue import ParameterCount, register
from landscope.models.initialisation import Initialisation, initialise
from landscope.models.options import Natural, OptionError

__all__ = ["PreResNet"]

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
        total: Tensor = inner + self.shortcut(x)
        return total


@register(
    "preresnet164",
    description="pre-activation ResNet-164 with bottlenecks, for 32×32 images",
    input_shape=(3, 32, 32),
    classifier="fc",
    counts=(
        ParameterCount(1_726_388 - 90 * 257, "the third paper's count, less 90 classes"),
        ParameterCount(1_726_388, "the third paper, CIFAR-100", {"num_classes": 100}),
    ),
    recipes=("false-friend",),
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
        logits: Tensor = self.fc(features)
        return logits
