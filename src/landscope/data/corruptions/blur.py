"""Blurs: defocus (a disc), frosted glass, motion, zoom, Gaussian."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from landscope.data.corruptions.filters import Draws, convolve, gaussian, motion, zoom


def gaussian_blur(x: Tensor, sigma: float, _: Draws) -> Tensor:
    """Gaussian of the given deviation, edges repeated."""
    return gaussian(x, sigma)


def disc(radius: float, sigma: float) -> Tensor:
    """Disc of the given radius, softened by a 3×3 Gaussian; sums to 1.

    >>> round(float(disc(1.5, 0.1).sum()), 6)
    1.0
    """
    reach = max(2, math.ceil(radius) + 1)
    line = torch.arange(-reach, reach + 1, dtype=torch.float64)
    flat = (line[:, None] ** 2 + line**2 <= radius**2).double()
    soft = torch.exp(-(torch.tensor([-1.0, 0.0, 1.0], dtype=torch.float64) ** 2) / (2 * sigma**2))
    soft /= soft.sum()
    return convolve(flat / flat.sum(), soft[:, None] * soft)


def defocus_blur(x: Tensor, settings: tuple[float, float], _: Draws) -> Tensor:
    """Correlation with a disc of (radius, softness), edges mirrored."""
    return convolve(x, disc(*settings))


def glass_blur(x: Tensor, settings: tuple[float, int], draws: Draws) -> Tensor:
    """Blur, pixels taken from a random neighbour, blur again; settings are (σ, rounds).

    The published loop swaps pixels through numpy views, which copies the neighbour and loses the pixel; it runs from
    the last pixel to the first and looks up and left only, so each round is one gather. Rows and columns 0 and 1 stay.
    """
    sigma, rounds = settings
    n, channels, height, width = x.shape
    x = torch.floor(gaussian(x, sigma) * 255 + 1e-3) / 255
    rows, columns = torch.arange(height, device=x.device)[:, None], torch.arange(width, device=x.device)
    moved = (rows > 1) & (columns > 1)
    for turn in range(rounds):
        up, left = (draws.below(2, 2 * turn + k, height, width) * moved for k in (0, 1))
        index = ((rows - up) * width + columns - left).reshape(n, 1, -1).expand(-1, channels, -1)
        x = x.reshape(n, channels, -1).gather(2, index).reshape(x.shape)
    return gaussian(x, sigma)


def motion_blur(x: Tensor, settings: tuple[int, float], draws: Draws) -> Tensor:
    """Motion of (radius, σ) along an angle between −45° and 45°."""
    return motion(x, *settings, draws.between(-45, 45, 0))


def zoom_blur(x: Tensor, largest: float, _: Draws) -> Tensor:
    """Mean of the image and its enlargements by 1, 1.01, … up to `largest`."""
    factors = np.arange(1, largest, 0.01).tolist()
    total = x.clone()
    for factor in factors:
        total += zoom(x, factor)
    return total / (len(factors) + 1)
