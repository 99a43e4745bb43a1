"""All-CNN-C (Springenberg et al. 2015), the third paper's 9-layer CNN, in the form of the DeepOBS suite.

3 → 96 → 96 → 96 (stride 2) → 192 → 192 → 192 (stride 2) → 192 (no padding) → 192 (1×1) → C (1×1) → mean over positions

Every convolution, the last too, is followed by a ReLU, so logits are never negative; convolutions pad as TensorFlow
does; weights start by Xavier's rule and biases at 0.1.
"""

from __future__ import annotations

from torch import Tensor, nn

from landscope.models.catalogue import ParameterCount, initialise, register
from landscope.models.efficientnet import SameConv2d
from landscope.specs.schema import Natural, Probability

_START_BIAS = 0.1


@register(
    "cnn9",
    description="All-CNN-C: nine convolutions and a mean; the last layer is a 1×1 convolution",
    input_shape=(3, 32, 32),
    classifier="classifier",
    counts=(
        ParameterCount(1_387_108 - 90 * 193, "the third paper's count, less 90 classes"),
        ParameterCount(1_387_108, "the third paper, CIFAR-100", {"num_classes": 100}),
    ),
)
class AllCNN(nn.Module):
    """Nine convolutions, no pooling, no normalisation; `width` is the number of channels of the first stage."""

    def __init__(
        self,
        *,
        num_classes: Natural = 10,
        in_channels: Natural = 3,
        width: Natural = 96,
        input_dropout: Probability = 0.2,
        dropout: Probability = 0.5,
        output_relu: bool = True,
    ) -> None:
        super().__init__()
        wide = 2 * width
        self.features = nn.Sequential(
            nn.Dropout(input_dropout),
            *(SameConv2d(in_channels, width, 3), nn.ReLU()),
            *(SameConv2d(width, width, 3), nn.ReLU()),
            *(SameConv2d(width, width, 3, stride=2), nn.ReLU()),
            nn.Dropout(dropout),
            *(SameConv2d(width, wide, 3), nn.ReLU()),
            *(SameConv2d(wide, wide, 3), nn.ReLU()),
            *(SameConv2d(wide, wide, 3, stride=2), nn.ReLU()),
            nn.Dropout(dropout),
            *(nn.Conv2d(wide, wide, 3), nn.ReLU()),
            *(nn.Conv2d(wide, wide, 1), nn.ReLU()),
        )
        self.classifier = nn.Conv2d(wide, num_classes, 1)
        self.output = nn.ReLU() if output_relu else nn.Identity()
        initialise(self, "xavier")
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d) and layer.bias is not None:
                nn.init.constant_(layer.bias, _START_BIAS)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images of 12×12 or more."""
        return self.output(self.classifier(self.features(x))).mean((-2, -1))
