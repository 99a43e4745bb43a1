"""Linear filters and resampling as small matrices, and gathers with mirrored edges.

A separable filter on an image of height H is a matrix (H, H) from the left and one (W, W) from the right: exact at the
edges whatever the rule there, and a matrix product on every device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from landscope.core.seeding import GOLDEN, generator, shifted, splitmix

Edge = Literal["nearest", "reflect", "mirror"]
"""What lies before a b c d: a a a (nearest), c b a (reflect), d c b (mirror)."""


def fold(index: Tensor, size: int, edge: Edge) -> Tensor:
    """Index inside 0 … size − 1 that stands for `index`.

    >>> fold(torch.tensor([-2, -1, 0, 3, 4, 5]), 4, "reflect"), fold(torch.tensor([-2, -1, 4, 5]), 4, "mirror")
    (tensor([1, 0, 0, 3, 3, 2]), tensor([2, 1, 2, 1]))
    """
    if edge == "nearest":
        return index.clamp(0, size - 1)
    if edge == "reflect":
        index = index.remainder(2 * size)
        return torch.where(index < size, index, 2 * size - 1 - index)
    index = index.remainder(max(1, 2 * size - 2))
    return torch.where(index < size, index, 2 * size - 2 - index)


def _matrix(size: int, weights: Tensor, edge: Edge) -> Tensor:
    """Matrix (size, size) that correlates with `weights`, whose middle is the pixel itself."""
    reach = len(weights) // 2
    columns = fold(torch.arange(size)[:, None] + torch.arange(-reach, reach + 1), size, edge)
    return torch.zeros(size, size, dtype=torch.float64).scatter_add_(1, columns, weights.double().expand(size, -1))


def apply(x: Tensor, vertical: Tensor, horizontal: Tensor) -> Tensor:
    """Vertical @ x @ horizontalᵀ for images (…, H, W)."""
    return vertical.to(x) @ x @ horizontal.to(x).T


def gaussian(x: Tensor, sigma: float, edge: Edge = "nearest", truncate: float = 4.0) -> Tensor:
    """Gaussian blur as scipy and scikit-image do it: weights cut at truncate·σ, summing to 1."""
    reach = int(truncate * sigma + 0.5)
    if reach == 0:
        return x
    weights = torch.exp(-0.5 * (torch.arange(-reach, reach + 1, dtype=torch.float64) / sigma) ** 2)
    weights /= weights.sum()
    return apply(x, _matrix(x.shape[-2], weights, edge), _matrix(x.shape[-1], weights, edge))


def convolve(x: Tensor, kernel: Tensor, edge: Edge = "mirror") -> Tensor:
    """Correlation of images (…, H, W) with a small kernel, as OpenCV's filter2D."""
    height, width = x.shape[-2:]
    rows, columns = kernel.shape[0] // 2, kernel.shape[1] // 2
    out = torch.zeros_like(x)
    for i, j in kernel.nonzero().tolist():
        row = fold(torch.arange(height, device=x.device) + i - rows, height, edge)
        column = fold(torch.arange(width, device=x.device) + j - columns, width, edge)
        out = out + float(kernel[i, j]) * x[..., row, :][..., column]
    return out


def _zoom_matrix(size: int, factor: float) -> Tensor:
    crop = math.ceil(size / factor)
    top, grown = (size - crop) // 2, round(crop * factor)
    trim = (grown - size) // 2
    place = torch.arange(trim, trim + size, dtype=torch.float64) * ((crop - 1) / max(1, grown - 1))
    low = place.floor().clamp(max=max(0, crop - 2)).long()
    share = place - low
    matrix = torch.zeros(size, size, dtype=torch.float64)
    matrix.scatter_add_(1, top + low[:, None], (1 - share)[:, None])
    return matrix.scatter_add_(1, (top + low[:, None] + 1).clamp(max=size - 1), share[:, None])


def zoom(x: Tensor, factor: float) -> Tensor:
    """Middle of the images (…, H, W) enlarged by `factor` ≥ 1 to the same size, linear as scipy's zoom of order 1."""
    return apply(x, _zoom_matrix(x.shape[-2], factor), _zoom_matrix(x.shape[-1], factor))


def sample(x: Tensor, rows: Tensor, columns: Tensor, edge: Edge) -> Tensor:
    """Bilinear values of images (n, c, H, W) at real places (n, H, W)."""
    n, channels, height, width = x.shape
    low_row, low_column = rows.floor(), columns.floor()
    down, right = (rows - low_row).unsqueeze(1), (columns - low_column).unsqueeze(1)
    flat = x.reshape(n, channels, -1)

    def corner(i: int, j: int) -> Tensor:
        index = fold(low_row.long() + i, height, edge) * width + fold(low_column.long() + j, width, edge)
        return flat.gather(2, index.reshape(n, 1, -1).expand(-1, channels, -1)).reshape(x.shape)

    top = corner(0, 0) * (1 - right) + corner(0, 1) * right
    bottom = corner(1, 0) * (1 - right) + corner(1, 1) * right
    return top * (1 - down) + bottom * down


def motion(x: Tensor, radius: int, sigma: float, degrees: Tensor) -> Tensor:
    """Motion blur of images (n, c, H, W) along an angle each, as ImageMagick's.

    Half of a Gaussian of 2·radius + 1 weights, one for each whole step along the direction, edges repeated.
    """
    n, channels, height, width = x.shape
    steps = torch.arange(2 * radius + 1, dtype=torch.float64)
    weights = torch.exp(-(steps**2) / (2 * sigma**2))
    weights /= weights.sum()
    angle = degrees.double() * (math.pi / 180)
    rows, columns = torch.arange(height, device=x.device), torch.arange(width, device=x.device)
    flat, out = x.reshape(n, channels, -1), torch.zeros_like(x)
    for step, weight in enumerate(weights.tolist()):
        # Rounded as in the original: halves go down.
        right, down = (torch.ceil(step * turn - 0.5).long()[:, None] for turn in (angle.cos(), angle.sin()))
        row, column = fold(rows + down, height, "nearest"), fold(columns + right, width, "nearest")
        index = (row[:, :, None] * width + column[:, None, :]).reshape(n, 1, -1)
        out += weight * flat.gather(2, index.expand(-1, channels, -1)).reshape(x.shape)
    return out


def box_resize(levels: Tensor, height: int, width: int) -> Tensor:
    """Resize byte levels (…, H, W) with Pillow's BOX filter, bit for bit: columns, then rows, each rounded to bytes."""

    def weights(old: int, new: int) -> Tensor:
        scale = old / new
        support = 0.5 * max(scale, 1.0)
        matrix = np.zeros((new, old))
        for i in range(new):
            centre = (i + 0.5) * scale
            low, high = max(0, int(centre - support + 0.5)), min(old, int(centre + support + 0.5))
            distance = (np.arange(low, high) - centre + 0.5) / max(scale, 1.0)
            matrix[i, low:high] = (distance > -0.5) & (distance <= 0.5)
        matrix /= matrix.sum(1, keepdims=True)
        return torch.from_numpy(np.floor(matrix * 2**22 + 0.5))

    def rounded(total: Tensor) -> Tensor:
        return torch.floor((total + 2**21) / 2**22).clamp(0, 255)

    wide = rounded(levels.double() @ weights(levels.shape[-1], width).to(levels.device).T)
    return rounded(weights(levels.shape[-2], height).to(levels.device) @ wide).to(levels.dtype)


# Random numbers that belong to an image, not to a batch.
#
# A counter-based generator: number j of stream t of image i is a hash of (seed, corruption, severity, i, t, j), computed
# by the SplitMix64 finaliser (Steele et al. 2014) in integer arithmetic. The same numbers come out whatever the batch
# size, the order of the calls or the device, and no state is kept.


@dataclass(frozen=True)
class Draws:
    """Streams of uniform and normal numbers, one row per image."""

    keys: Tensor

    @classmethod
    def of(cls, seed: int, stream: str, indices: Tensor) -> Draws:
        """Draws of the images numbered `indices` (n,), on their device.

        >>> whole = Draws.of(0, "fog", torch.arange(4)).uniform(0, 3)
        >>> bool(torch.equal(whole[2:], Draws.of(0, "fog", torch.arange(2, 4)).uniform(0, 3)))
        True
        """
        base = int(torch.randint(-(2**62), 2**62, (), generator=generator(seed, "corruption", stream)))
        return cls(splitmix(splitmix(indices.to(torch.int64) * GOLDEN + base) + base))

    def uniform(self, stream: int, *shape: int) -> Tensor:
        """Numbers (n, *shape) in the open interval (0, 1), float32 with 23 random bits."""
        counter = torch.arange(math.prod(shape), device=self.keys.device) + (stream << 40)
        bits = splitmix(self.keys[:, None] + (counter + 1) * GOLDEN)
        return ((shifted(bits, 41).float() + 0.5) * 2.0**-23).reshape(len(self.keys), *shape)

    def between(self, low: float, high: float, stream: int, *shape: int) -> Tensor:
        return low + (high - low) * self.uniform(stream, *shape)

    def normal(self, stream: int, *shape: int) -> Tensor:
        """Draw standard normal numbers (n, *shape), by inversion."""
        return torch.special.ndtri(self.uniform(stream, *shape))

    def below(self, limit: int, stream: int, *shape: int) -> Tensor:
        """Whole numbers 0 … limit − 1, equally likely."""
        return (self.uniform(stream, *shape) * limit).long().clamp(max=limit - 1)
