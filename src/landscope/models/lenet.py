"""The fifth paper's LeNet-5: two 5×5 convolutions with BatchNorm, three linear layers with dropout.

The text names LeNet-5 and its layers but no widths. The code has 12 and 32 channels and 256 and 128 units, twice
LeCun's 6, 16, 120 and 84, and applies dropout before the ReLU (which gives the same numbers as after it). LeCun's own
sizes are `channels=(6, 16), widths=(120, 84), padding=2, batch_norm=False`: 61,706 parameters.
"""

from __future__ import annotations

from typing import Annotated

from torch import Tensor, nn

from landscope.models.catalogue import Initialisation, OptionError, ParameterCount, initialise, register
from landscope.specs.schema import Natural, Probability, Range


@register(
    "lenet5",
    description="two 5×5 convolutions and three linear layers, for 28×28 images",
    input_shape=(1, 28, 28),
    classifier="fc",
    counts=(
        ParameterCount(
            (25 * 12 + 12 + 24) + (25 * 12 * 32 + 32 + 64) + (512 * 256 + 256) + (256 * 128 + 128) + 1290,
            "layer sizes of the fifth paper's code",
        ),
        ParameterCount(
            61_706,
            "LeCun et al. 1998, with the two convolutions connected fully",
            {"channels": (6, 16), "widths": (120, 84), "padding": 2, "batch_norm": False},
        ),
    ),
)
class LeNet5(nn.Module):
    """Convolution, BatchNorm, ReLU and 2×2 max-pooling, twice; then two hidden linear layers and the classifier."""

    def __init__(
        self,
        *,
        num_classes: Natural = 10,
        in_channels: Natural = 1,
        image_size: Natural = 28,
        channels: tuple[Natural, ...] = (12, 32),
        widths: tuple[Natural, ...] = (256, 128),
        padding: Annotated[int, Range(0)] = 0,
        batch_norm: bool = True,
        dropout: Probability = 0.5,
        init: Initialisation = "pytorch",
    ) -> None:
        super().__init__()
        if len(channels) != 2 or len(widths) != 2:
            raise OptionError(f"lenet5 has two channels and two widths; got channels={channels}, widths={widths}")
        side = ((image_size + 2 * padding - 4) // 2 - 4) // 2
        if side < 1:
            raise OptionError(f"lenet5 needs images of 16×16 or more without padding; got image_size={image_size}")
        features: list[nn.Module] = []
        for before, after, pad in zip((in_channels, channels[0]), channels, (padding, 0), strict=True):
            features.append(nn.Conv2d(before, after, 5, padding=pad))
            features += [nn.BatchNorm2d(after)] if batch_norm else []
            features += [nn.ReLU(), nn.MaxPool2d(2)]
        self.features = nn.Sequential(*features)
        hidden: list[nn.Module] = [nn.Flatten()]
        for before, after in zip((channels[1] * side**2, widths[0]), widths, strict=True):
            hidden += [nn.Linear(before, after), nn.ReLU(), nn.Dropout(dropout)]
        self.hidden = nn.Sequential(*hidden)
        self.fc = nn.Linear(widths[1], num_classes)
        initialise(self, init)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of images with side `image_size`."""
        return self.fc(self.hidden(self.features(x)))
