"""The corruptions of CIFAR-C (Hendrycks and Dietterich 2019), fifteen and four more, at severities 1 to 5.

`corrupt(images, name, severity, seed)` works on tensors of any size from 28 up, grey or colour, in batches, on the
device where the images are; an image's noise depends on the seed and its number alone. The constants are those
published for CIFAR-C. Frost is the one corruption made from other material: ice textures that are computed here, where
CIFAR-C cuts pieces out of photographs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from landscope.core.errors import OperandError
from landscope.core.registry import Registry
from landscope.data.corruptions.blur import defocus_blur, gaussian_blur, glass_blur, motion_blur, zoom_blur
from landscope.data.corruptions.digital import contrast, elastic_transform, jpeg_compression, pixelate, saturate
from landscope.data.corruptions.filters import Draws
from landscope.data.corruptions.noise import gaussian_noise, impulse_noise, shot_noise, speckle_noise
from landscope.data.corruptions.weather import brightness, fog, frost, luma, snow, spatter

__all__ = ["CORRUPTIONS", "EXTRA_CORRUPTIONS", "MAIN_CORRUPTIONS", "Corruption", "corrupt"]


@dataclass(frozen=True)
class Corruption:
    """A function of (images in [0, 1], settings, draws) and its settings at severities 1 to 5.

    `coloured` corruptions know three channels only; grey images pass through them as colour ones.
    """

    apply: Callable[..., Tensor]
    settings: tuple[object, object, object, object, object]
    coloured: bool = False


CORRUPTIONS: Registry[Corruption] = Registry("corruption")

for _name, _corruption in {
    "gaussian_noise": Corruption(gaussian_noise, (0.04, 0.06, 0.08, 0.09, 0.10)),
    "shot_noise": Corruption(shot_noise, (500.0, 250.0, 100.0, 75.0, 50.0)),
    "impulse_noise": Corruption(impulse_noise, (0.01, 0.02, 0.03, 0.05, 0.07)),
    "defocus_blur": Corruption(defocus_blur, ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1.0, 0.2), (1.5, 0.1))),
    "glass_blur": Corruption(glass_blur, ((0.05, 1), (0.25, 1), (0.4, 1), (0.25, 2), (0.4, 2))),
    "motion_blur": Corruption(motion_blur, ((6, 1.0), (6, 1.5), (6, 2.0), (8, 2.0), (9, 2.5))),
    "zoom_blur": Corruption(zoom_blur, (1.06, 1.11, 1.16, 1.21, 1.26)),
    "snow": Corruption(
        snow,
        (
            (0.1, 0.2, 1.0, 0.6, 8, 3.0, 0.95),
            (0.1, 0.2, 1.0, 0.5, 10, 4.0, 0.9),
            (0.15, 0.3, 1.75, 0.55, 10, 4.0, 0.9),
            (0.25, 0.3, 2.25, 0.6, 12, 6.0, 0.85),
            (0.3, 0.3, 1.25, 0.65, 14, 12.0, 0.8),
        ),
    ),
    "frost": Corruption(frost, ((1.0, 0.2), (1.0, 0.3), (0.9, 0.4), (0.85, 0.4), (0.75, 0.45))),
    "fog": Corruption(fog, ((0.2, 3.0), (0.5, 3.0), (0.75, 2.5), (1.0, 2.0), (1.5, 1.75))),
    "brightness": Corruption(brightness, (0.05, 0.1, 0.15, 0.2, 0.3)),
    "contrast": Corruption(contrast, (0.75, 0.5, 0.4, 0.3, 0.15)),
    "elastic_transform": Corruption(
        elastic_transform,
        ((0.0, 0.0, 0.08), (0.05, 0.2, 0.07), (0.08, 0.06, 0.06), (0.1, 0.04, 0.05), (0.1, 0.03, 0.03)),
    ),
    "pixelate": Corruption(pixelate, (0.95, 0.9, 0.85, 0.75, 0.65)),
    "jpeg_compression": Corruption(jpeg_compression, (80, 65, 58, 50, 40)),
    "speckle_noise": Corruption(speckle_noise, (0.06, 0.1, 0.12, 0.16, 0.2)),
    "gaussian_blur": Corruption(gaussian_blur, (0.4, 0.6, 0.7, 0.8, 1.0)),
    "spatter": Corruption(
        spatter,
        (
            (0.62, 0.1, 0.7, 0.7, 0.5, False),
            (0.65, 0.1, 0.8, 0.7, 0.5, False),
            (0.65, 0.3, 1.0, 0.69, 0.5, False),
            (0.65, 0.1, 0.7, 0.69, 0.6, True),
            (0.65, 0.1, 0.5, 0.68, 0.6, True),
        ),
        coloured=True,
    ),
    "saturate": Corruption(saturate, ((0.3, 0.0), (0.1, 0.0), (1.5, 0.0), (2.0, 0.1), (2.5, 0.2)), coloured=True),
}.items():
    CORRUPTIONS.register(_name)(_corruption)

EXTRA_CORRUPTIONS = ("speckle_noise", "gaussian_blur", "spatter", "saturate")
MAIN_CORRUPTIONS = (
    "gaussian_noise", "shot_noise", "impulse_noise", "defocus_blur", "glass_blur", "motion_blur", "zoom_blur", "snow",
    "frost", "fog", "brightness", "contrast", "elastic_transform", "pixelate", "jpeg_compression",
)  # fmt: skip

# Values per chunk: the hashed integers of one chunk take 32 MiB, whatever the number of images.
_CHUNK = 1 << 22


@torch.no_grad()
def corrupt(images: Tensor, name: str, severity: int, seed: int = 0, *, first_index: int = 0) -> Tensor:
    """Corrupt `images` (n, 1 or 3, H, W) in [0, 1], H and W at least 28, with the corruption `name` at severity 1 … 5.

    Image i has the number `first_index` + i, and its noise depends on (seed, name, severity, number) alone: cutting a
    set into batches changes nothing. As in CIFAR-C the work begins and ends with bytes: inputs are rounded to multiples
    of 1/255, results are cut down to them. Same shape, dtype and device come back; bytes (uint8) may come and go too.

    >>> x = torch.rand(4, 3, 32, 32)
    >>> whole = corrupt(x, "fog", severity=3, seed=0)
    >>> bool(torch.equal(whole[2:], corrupt(x[2:], "fog", severity=3, seed=0, first_index=2)))
    True
    """
    corruption = CORRUPTIONS[name]
    if isinstance(severity, bool) or severity not in (1, 2, 3, 4, 5):
        raise OperandError(f"expected a severity of 1, 2, 3, 4 or 5, got {severity!r}")
    if images.ndim != 4 or images.shape[1] not in (1, 3) or min(images.shape[2:]) < 28:
        raise OperandError(f"expected images (n, 1 or 3, at least 28, at least 28), got {tuple(images.shape)}")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise OperandError(f"expected images as bytes or real numbers in [0, 1], got {images.dtype}")
    step = max(1, _CHUNK // math.prod(images.shape[1:]))
    out = torch.empty_like(images)
    for start in range(0, len(images), step):
        chunk = images[start : start + step]
        levels = chunk.float() if chunk.dtype == torch.uint8 else _levels(chunk)
        numbers = torch.arange(start, start + len(chunk), device=images.device) + first_index
        draws = Draws.of(seed, f"{name} {severity}", numbers)
        x = levels / 255
        grey = corruption.coloured and x.shape[1] == 1
        x = corruption.apply(x.expand(-1, 3, -1, -1) if grey else x, corruption.settings[severity - 1], draws)
        x = luma(x) if grey else x
        # A thousandth of a level keeps the rounding error of v/255·255 from costing a whole one.
        done = torch.floor(x.clamp(0, 1) * 255 + 1e-3)
        out[start : start + step] = done.to(torch.uint8) if images.dtype == torch.uint8 else done / 255
    return out


def _levels(x: Tensor) -> Tensor:
    if not bool(((x >= 0) & (x <= 1)).all()):
        raise OperandError(
            f"pixels must lie in [0, 1]; they run from {float(x.min()):.3g} to {float(x.max()):.3g}. Corrupt images "
            'before they are normalised (`load(name, pixels="unit")`)'
        )
    return (x.float() * 255).round()
