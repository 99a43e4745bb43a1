"""Training-time augmentation of whole batches where they live, without a loop over images.

Flips, crops (He et al. 2016: zero padding of 4) and cutout (DeVries and Taylor 2017: a square of 16 set to 0), both also with
another colour than 0. The random numbers come from the generator that is passed; they are drawn on the CPU, so a batch is
augmented alike on every device. Data that is measured is never augmented: call this in the training loop only.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from landscope.core.distributed import send
from landscope.core.errors import OperandError


def _checked(images: Tensor) -> Tensor:
    if images.ndim != 4:
        raise OperandError(f"expected images (n, channels, height, width), got a tensor of shape {tuple(images.shape)}")
    return images


def random_flip(images: Tensor, rng: torch.Generator) -> Tensor:
    """Mirror each image left to right with chance ½."""
    flip = torch.rand(len(_checked(images)), generator=rng) < 0.5
    return torch.where(send(flip, images.device)[:, None, None, None], images.flip(3), images)


Colour = float | tuple[float, ...]
"""One number, or one for each channel."""


def _of_channels(colour: Colour, images: Tensor) -> Tensor:
    """A colour as a tensor (channels, 1, 1) or of no dimension."""
    if isinstance(colour, tuple) and len(colour) != images.shape[1]:
        raise OperandError(
            f"fill has {len(colour)} numbers for images of {images.shape[1]} channels; give one for each, or one for all"
        )
    values = torch.tensor(colour, dtype=images.dtype)
    return send(values[:, None, None] if values.dim() else values, images.device)


def random_crop(images: Tensor, rng: torch.Generator, padding: int = 4, fill: Colour = 0.0) -> Tensor:
    """Shift each image by up to `padding` pixels in both directions; what comes in is of the colour `fill`.

    >>> rng = torch.Generator().manual_seed(0)
    >>> random_crop(torch.ones(2, 1, 8, 8), rng).shape
    torch.Size([2, 1, 8, 8])
    """
    n, channels, height, width = _checked(images).shape
    if padding < 0:
        raise OperandError(f"expected padding of at least 0, got {padding}")
    top, left = send(torch.randint(0, 2 * padding + 1, (2, n, 1), generator=rng), images.device)
    rows = top + torch.arange(height, device=images.device)
    columns = left + torch.arange(width, device=images.device)
    padded = pad(images, (padding,) * 4)
    if fill:
        inside = pad(torch.ones_like(images[:1, :1], dtype=torch.bool), (padding,) * 4)
        padded = torch.where(inside, padded, _of_channels(fill, images))
    index = torch.arange(n, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[:, None, None]
    return padded[index, channel, rows[:, None, :, None], columns[:, None, None, :]]


def cutout(images: Tensor, rng: torch.Generator, size: int = 16, fill: Colour = 0.0) -> Tensor:
    """Paint a square of `size` pixels in each image with `fill`; its centre is uniform, so it may reach over the edge.

    >>> rng = torch.Generator().manual_seed(0)
    >>> float(cutout(torch.ones(1, 1, 32, 32), rng).sum()) >= 1024 - 256
    True
    """
    n, _, height, width = _checked(images).shape

    def covered(extent: int) -> Tensor:
        centre = send(torch.randint(0, extent, (n, 1), generator=rng), images.device)
        offset = torch.arange(extent, device=images.device) - centre
        return (offset >= -(size // 2)) & (offset < size - size // 2)

    hole = covered(height)[:, None, :, None] & covered(width)[:, None, None, :]
    return torch.where(hole, _of_channels(fill, images), images) if fill else images.masked_fill(hole, 0)


@dataclass(frozen=True, kw_only=True)
class Augmentation:
    """Crop, flip and cutout in this order; 0 or False leaves a step out.

    The first paper's condition is the default: flip and crop with padding 4. On normalised pixels 0 is the mean colour.

    >>> batch = torch.rand(16, 3, 32, 32)
    >>> Augmentation(cutout=16)(batch, torch.Generator().manual_seed(0)).shape
    torch.Size([16, 3, 32, 32])
    """

    crop: int = 4
    """Pad by this many pixels, then crop to the original size at random."""
    flip: bool = True
    cutout: int = 0
    """The side of a square that is blanked."""
    fill: float | tuple[float, ...] = 0.0
    """What crops are padded and squares painted with: one number, or one for each channel, in the scale of the pixels (black is
    −1 where they are symmetric)."""

    def __call__(self, images: Tensor, rng: torch.Generator) -> Tensor:
        """Augmented copy of `images` (n, channels, height, width)."""
        if self.crop:
            images = random_crop(images, rng, self.crop, self.fill)
        if self.flip:
            images = random_flip(images, rng)
        return cutout(images, rng, self.cutout, self.fill) if self.cutout else images
