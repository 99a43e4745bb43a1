"""Random numbers that belong to an image, not to a batch.

A counter-based generator: number j of stream t of image i is a hash of (seed, corruption, severity, i, t, j), computed
by the SplitMix64 finaliser (Steele et al. 2014) in integer arithmetic. The same numbers come out whatever the batch
size, the order of the calls or the device, and no state is kept.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from landscope.core.seeding import generator

__all__ = ["Draws"]


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value


_GOLDEN, _FIRST, _SECOND = (_signed(v) for v in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))


def _right(z: Tensor, bits: int) -> Tensor:
    """Logical shift; that of torch repeats the sign."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def _mixed(z: Tensor) -> Tensor:
    z = (z ^ _right(z, 30)) * _FIRST
    z = (z ^ _right(z, 27)) * _SECOND
    return z ^ _right(z, 31)


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
        return cls(_mixed(_mixed(indices.to(torch.int64) * _GOLDEN + base) + base))

    def uniform(self, stream: int, *shape: int) -> Tensor:
        """Numbers (n, *shape) in the open interval (0, 1), float32 with 23 random bits."""
        counter = torch.arange(math.prod(shape), device=self.keys.device) + (stream << 40)
        bits = _mixed(self.keys[:, None] + (counter + 1) * _GOLDEN)
        return ((_right(bits, 41).float() + 0.5) * 2.0**-23).reshape(len(self.keys), *shape)

    def between(self, low: float, high: float, stream: int, *shape: int) -> Tensor:
        """Uniform numbers in (low, high)."""
        return low + (high - low) * self.uniform(stream, *shape)

    def normal(self, stream: int, *shape: int) -> Tensor:
        """Draw standard normal numbers (n, *shape), by inversion."""
        numbers: Tensor = torch.special.ndtri(self.uniform(stream, *shape))
        return numbers

    def below(self, limit: int, stream: int, *shape: int) -> Tensor:
        """Whole numbers 0 … limit − 1, equally likely."""
        return (self.uniform(stream, *shape) * limit).long().clamp(max=limit - 1)
