"""The fourth paper's shape auto-encoder: 64³ voxels through a code of 8 numbers.

Five 3×3×3 convolutions of stride 2 leave 8 channels of 2³ voxels, 64 numbers; a linear layer 64→8 gives the code, a
second one 8→64 (`decode`, whose weight is the paper's 64×8) reads it, and five transposed convolutions of stride 2 lead
back. The paper gives these numbers and about 1M parameters; the channels 32, 64, 128, 64, 8, instance normalisation
and ReLU are the simplest that agree with them and with the public training script.
"""

from __future__ import annotations

from torch import Tensor, nn

from landscope.models.catalogue import Initialisation, OptionError, ParameterCount, initialise, register
from landscope.specs.schema import Natural

_LEVELS = 5


@register(
    "autoencoder3d",
    description="auto-encoder for 64³ voxels with a code of 8; the paper regularises decode (64×8), not a classifier",
    input_shape=(1, 64, 64, 64),
    classifier="decode",
    counts=(
        ParameterCount(
            2 * 27 * (32 + 32 * 64 + 64 * 128 + 128 * 64 + 64 * 8) + 1 + (64 * 8 + 8) + (8 * 64 + 64),
            "kernel sizes; the paper says about 1M",
        ),
        ParameterCount(
            2 * 27 * (32 + 32 * 64 + 64 * 128 + 128 * 64 + 64 * 8)
            + (32 + 64 + 128 + 64 + 8)
            + (64 + 128 + 64 + 32 + 1)
            + (64 * 8 + 8)
            + (8 * 64 + 64),
            "kernel sizes, with the biases that instance normalisation makes idle",
            {"instance_norm": False},
        ),
    ),
)
class Autoencoder3d(nn.Module):
    """Occupancy probabilities of a shape from a damaged one; `image_size` must be a multiple of 32."""

    def __init__(
        self,
        *,
        channels: tuple[Natural, ...] = (32, 64, 128, 64, 8),
        code_size: Natural = 8,
        in_channels: Natural = 1,
        image_size: Natural = 64,
        instance_norm: bool = True,
        init: Initialisation = "pytorch",
    ) -> None:
        super().__init__()
        if len(channels) != _LEVELS:
            raise OptionError(f"autoencoder3d has {_LEVELS} convolutions; got channels={channels}")
        if image_size % 2**_LEVELS:
            raise OptionError(f"image_size must be a multiple of {2**_LEVELS}, but is {image_size}")
        side = image_size // 2**_LEVELS
        flat = channels[-1] * side**3
        bias = not instance_norm
        down: list[nn.Module] = []
        up: list[nn.Module] = []
        for outer, inner in zip((in_channels, *channels), channels, strict=False):
            down += _layer(nn.Conv3d(outer, inner, 3, stride=2, padding=1, bias=bias), inner, norm=instance_norm)
        for inner, outer in zip(channels[::-1], channels[-2::-1], strict=False):
            deconvolution = nn.ConvTranspose3d(inner, outer, 3, stride=2, padding=1, output_padding=1, bias=bias)
            up += _layer(deconvolution, outer, norm=instance_norm)
        self.down = nn.Sequential(*down, nn.Flatten())
        self.encode = nn.Linear(flat, code_size)
        self.decode = nn.Linear(code_size, flat)
        self.up = nn.Sequential(
            *(nn.ReLU(), nn.Unflatten(1, (channels[-1], side, side, side))),
            *up,
            *(nn.ConvTranspose3d(channels[0], in_channels, 3, stride=2, padding=1, output_padding=1), nn.Sigmoid()),
        )
        initialise(self, init)

    def forward(self, x: Tensor) -> Tensor:
        """Probabilities, of the shape of `x`."""
        return self.up(self.decode(self.encode(self.down(x))))


def _layer(convolution: nn.Module, channels: int, *, norm: bool) -> list[nn.Module]:
    return [convolution, *([nn.InstanceNorm3d(channels)] if norm else []), nn.ReLU()]
