"""Seeded smooth deformations of a volume, many at once.

A deformation is a rotation and a stretch of a few per cent, and a displacement field spanned by cubic B-splines on a
coarse grid (Rueckert et al. 1999), drawn per shape.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from landscope.core.seeding import generator

__all__ = ["deformed", "spline_basis"]


def spline_basis(size: int, knots: int) -> Tensor:
    """Matrix (size, knots) of cubic B-splines at `size` even places; each row sums to 1.

    >>> bool(torch.allclose(spline_basis(64, 7).sum(1), torch.ones(64)))
    True
    """
    places = torch.linspace(0, knots - 3, size, dtype=torch.float64)
    distance = (places[:, None] - torch.arange(-1, knots - 1, dtype=torch.float64)).abs()
    near = 2 / 3 - distance**2 + distance**3 / 2
    far = (2 - distance).clamp(min=0) ** 3 / 6
    return torch.where(distance < 1, near, far).float()


def _affine(n: int, rng: torch.Generator, stretch: float, angle: float) -> Tensor:
    """Matrices (n, 3, 3): rotations about the three axes times stretches."""
    turn = angle * torch.randn(n, 3, generator=rng)
    scale = torch.exp(stretch * torch.randn(n, 3, generator=rng))
    skew = torch.zeros(n, 3, 3)
    skew[:, 0, 1], skew[:, 0, 2], skew[:, 1, 2] = turn.unbind(1)
    rotation: Tensor = torch.linalg.matrix_exp(skew - skew.transpose(1, 2))
    return rotation @ torch.diag_embed(scale)


def deformed(
    levels: Tensor,
    n: int,
    size: int,
    seed: int,
    stream: str,
    *,
    stretch: float = 0.05,
    angle: float = 0.06,
    bend: float = 0.04,
    knots: int = 7,
    chunk: int = 8,
) -> Tensor:
    """Deform the shape `levels` (k, d, d, d) `n` times and sample it: booleans (n, size, size, size).

    `stretch` is the deviation of the logarithm of the three stretches, `angle` of the rotations in radians, `bend` of
    the spline coefficients in half widths of the volume. Shape i depends on `seed`, `stream` and i alone.

    >>> from landscope.data.heads import phantom_skull
    >>> deformed(phantom_skull(32), 2, 16, seed=0, stream="train").shape
    torch.Size([2, 16, 16, 16])
    """
    basis = spline_basis(size, knots)
    line = torch.linspace(-1 + 1 / size, 1 - 1 / size, size)
    grid = torch.stack(torch.meshgrid(line, line, line, indexing="ij")[::-1], -1)
    out = torch.empty(n, size, size, size, dtype=torch.bool)
    draws = [generator(seed, "deform", stream, i) for i in range(n)]
    affine = torch.cat([_affine(1, rng, stretch, angle) for rng in draws]) if n else torch.empty(0, 3, 3)
    # Neighbouring splines overlap, so a field of deviation `bend` needs larger coefficients.
    gain = bend / math.sqrt(float(basis.square().sum(1).mean()) ** 3)
    for start in range(0, n, chunk):
        rngs = draws[start : start + chunk]
        coefficients = gain * torch.stack([torch.randn(3, knots, knots, knots, generator=rng) for rng in rngs])
        field = torch.einsum("ncabd,za,yb,xd->nzyxc", coefficients, basis, basis, basis)
        places = torch.einsum("zyxi,nji->nzyxj", grid, affine[start : start + chunk]) + field
        # The border value is repeated outside, where every level function is positive.
        sampled = grid_sample(
            levels.expand(len(rngs), *levels.shape), places, padding_mode="border", align_corners=False
        )
        out[start : start + chunk] = (sampled < 0).all(1)
    return out
