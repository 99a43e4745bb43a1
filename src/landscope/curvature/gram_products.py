"""Two ways to the part of Θ = J Jᵀ that belongs to a weight used alike at T positions of every sample.

With inputs a (n, G, T, K) and output gradients δ (n, C, G, T, O) of a weight in G groups of O×K, ∂z_ic/∂W_g = Σ_t δ_icgt a_igtᵀ,
and

    position pairs     Θ_{ic,jd} += Σ_g Σ_{s,t} ⟨a_igs, a_jgt⟩ ⟨δ_icgs, δ_jdgt⟩     G ((nT)² K + (nCT)² O) multiplications
    sample gradients   Θ += R Rᵀ, rows R_ic = all Σ_t δ_icgt a_igtᵀ                 G K O (nCT + (nC)²), columns of R in slices

Few positions favour the first (one: (A Aᵀ) ∘ (D Dᵀ), whatever the size of the weight), many the second. Sums are in float64, so
that a float32 network loses no more than its own rounding; Θ is filled in its upper triangle.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

__all__ = ["add_gram", "add_position_pairs", "add_sample_gradients", "add_shared_weight", "multiplications"]

BLOCKS = {"cpu": 256, "cuda": 2048}
"""Rows of Θ per product, by device: large enough for full speed, small enough to leave out the lower triangle."""
ELEMENTWISE = 16
"""What weighting one entry of the position pairs costs, in multiplications of a matrix product."""


def add_gram(theta: Tensor, rows: Tensor) -> None:
    """Θ += R Rᵀ.

    >>> theta = torch.zeros(2, 2, dtype=torch.float64)
    >>> add_gram(theta, torch.tensor([[1.0, 2.0], [0.0, 1.0]])); theta.triu()
    tensor([[5., 2.],
            [0., 1.]], dtype=torch.float64)
    """
    rows = rows.to(theta.dtype)
    block = BLOCKS.get(theta.device.type, 2048)
    for start in range(0, len(rows), block):
        theta[start : start + block, start:].addmm_(rows[start : start + block], rows[start:].T)


def multiplications(n: int, q: int, groups: int, positions: int, out: int, width: int) -> tuple[int, int]:
    """What position pairs and sample gradients cost for n samples with q outputs, in multiplications.

    >>> multiplications(2, 3, 1, 1, 10, 100)
    (1336, 42000)
    """
    pairs = groups * ((n * positions) ** 2 * width + (n * q * positions) ** 2 * (out + ELEMENTWISE))
    return pairs, groups * out * width * (n * q * positions + (n * q) ** 2)


def add_shared_weight(theta: Tensor, patches: Tensor, deltas: Tensor, room: int) -> None:
    """Θ += the part of a shared weight, the way that takes fewer operations within about `room` bytes."""
    n, q, groups, positions, out = deltas.shape
    pairs, gradients = multiplications(n, q, groups, positions, out, patches.shape[3])
    affordable = 16 * max(n * positions, q * positions) ** 2 <= room
    if pairs < gradients and (affordable or positions == 1):
        add_position_pairs(theta, patches, deltas, room)
    else:
        add_sample_gradients(theta, patches, deltas, room)


def add_position_pairs(theta: Tensor, patches: Tensor, deltas: Tensor, room: int) -> None:
    """Θ_{ic,jd} += Σ_{s,t} ⟨a_is, a_jt⟩ ⟨δ_ics, δ_jdt⟩, block by block of samples."""
    n, q, groups, positions, _ = deltas.shape
    side = max(1, math.isqrt(room // 16) // (q * positions))
    for g in range(groups):
        a = patches[:, g].flatten(0, 1).to(theta.dtype)
        weights = (a @ a.T).view(n, 1, positions, n, 1, positions)
        d = deltas[:, :, g].to(theta.dtype)
        for i in range(0, n, side):
            for j in range(i, n, side):
                left, right = d[i : i + side], d[j : j + side]
                pairs = left.flatten(0, 2) @ right.flatten(0, 2).T
                pairs = pairs.view(*left.shape[:3], *right.shape[:3]).mul_(weights[i : i + side, :, :, j : j + side])
                rows, columns = slice(i * q, (i + side) * q), slice(j * q, (j + side) * q)
                theta[rows, columns] += pairs.sum((2, 5)).flatten(2, 3).flatten(0, 1)


def add_sample_gradients(theta: Tensor, patches: Tensor, deltas: Tensor, room: int) -> None:
    """Θ += R Rᵀ, as many columns of R at a time as fit."""
    n, q, groups, _, out = deltas.shape
    each = n * q * patches.shape[3] * (deltas.element_size() + theta.element_size())
    slots = max(1, room // each)
    together, step = max(1, slots // out), min(slots, out)
    for g in range(0, groups, together):
        for o in range(0, out, step):
            part = deltas[:, :, g : g + together, :, o : o + step]
            rows = torch.einsum("ngtk,nqgto->nqgok", patches[:, g : g + together], part)
            add_gram(theta, rows.flatten(2).flatten(0, 1))
