"""Noise: Gaussian, shot (Poisson), impulse (salt and pepper), speckle. Each pixel of each channel on its own."""

from __future__ import annotations

import functools

import numpy as np
import scipy
import torch
from torch import Tensor

from landscope.data.corruptions.filters import Draws


def gaussian_noise(x: Tensor, deviation: float, draws: Draws) -> Tensor:
    """Add N(0, deviation²)."""
    return x + deviation * draws.normal(0, *x.shape[1:])


def speckle_noise(x: Tensor, deviation: float, draws: Draws) -> Tensor:
    """Add x · N(0, deviation²)."""
    return x + x * deviation * draws.normal(0, *x.shape[1:])


def impulse_noise(x: Tensor, share: float, draws: Draws) -> Tensor:
    """Set a share of the values to 0 or 1, half and half."""
    u = draws.uniform(0, *x.shape[1:])
    return torch.where(u < share / 2, 0.0, torch.where(u < share, 1.0, x))


@functools.lru_cache
def _poisson_table(photons: float) -> Tensor:
    """Distribution functions of Poisson(level/255 · photons), row by row, row v lifted by v: one ascending sequence."""
    rates = np.arange(256)[:, None] / 255 * photons
    counts = np.arange(int(photons + 10 * np.sqrt(photons) + 10))
    return torch.from_numpy(np.arange(256)[:, None] + scipy.special.pdtr(counts, rates))


def shot_noise(x: Tensor, photons: float, draws: Draws) -> Tensor:
    """Poisson(x · photons) / photons, by inverting the distribution function in a table over the 256 byte levels."""
    table = _poisson_table(photons).to(x.device)
    level = (x * 255).round().long()
    lifted = level + draws.uniform(0, *x.shape[1:]).double()
    count = torch.searchsorted(table.reshape(-1), lifted) - level * table.shape[1]
    return count.to(x.dtype) / photons
