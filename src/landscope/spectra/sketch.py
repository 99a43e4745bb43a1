"""Whether a sketch of the range pays, judged from products that are there anyway.

Hutch++ (Meyer, Musco, Musco & Woodruff 2021) spends k products on a sketch Y = AΩ and k more on AQ, Q = orth(Y), to be
rid of the variance that lies in the range of Q. The yᵢ themselves tell beforehand what would be left: the squared
distance of yᵢ from the span of the other columns is an unbiased estimate of ‖(I − QQᵀ)A‖²_F for a sketch of size k − 1
(the leave-one-out idea of XTrace, Epperly, Tropp & Webber 2024). The same for half of the columns gives the rate of
decay, and a power law through the two extrapolates. Nothing but a k × k Gram matrix is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from landscope.spectra.lanczos import orthogonalise

__all__ = ["LEAST_PROBES", "Plan", "left_over", "orthonormal_rows", "plan"]

LEAST_PROBES = 4
"""Fresh probes behind any sketch: fewer say too little about their own variance."""


@dataclass(frozen=True)
class Plan:
    """The best sketch size (0: none), the further products it is predicted to need, and whether they reach the goal."""

    sketch: int
    products: float
    reaches: bool


def orthonormal_rows(rows: Tensor, rounding: float) -> Tensor:
    """Write an orthonormal basis of the span of `rows` over them; fewer rows where they are dependent.

    >>> orthonormal_rows(torch.tensor([[2.0, 0.0], [3.0, 0.0], [1.0, 1.0]]), 1e-6)
    tensor([[1., 0.],
            [0., 1.]])
    """
    kept = 0
    for i in range(rows.shape[0]):
        rest, _ = orthogonalise(rows[i : i + 1], rows[:kept])
        length, before = float(torch.linalg.vector_norm(rest)), float(torch.linalg.vector_norm(rows[i]))
        if length > rounding * before:
            rows[kept] = rest[0] / length
            kept += 1
    return rows[:kept]


def left_over(gram: Tensor) -> float:
    """Mean squared distance of each vector from the span of the others, given their Gram matrix.

    >>> [round(left_over(gram), 6) for gram in (torch.eye(3, dtype=torch.float64), torch.ones((3, 3)).double())]
    [1.0, 0.0]
    """
    values, vectors = torch.linalg.eigh(gram)
    # 1 / (G⁻¹)ᵢᵢ; what rounding leaves of a dependent direction must not turn negative
    floor = torch.finfo(gram.dtype).eps * gram.diagonal().sum()
    return float((1 / (vectors.square() / values.clamp(min=floor)).sum(1)).mean())


def plan(gram: Tensor, variance: float, goal: float, left: int, largest: int) -> Plan:
    """Decide what to do with `left` products after k probes with Gram matrix `gram` of products, forms of `variance`.

    Candidates are no sketch at all and sketches of k … `largest` columns. The cheapest that brings the standard error
    to `goal` wins; if none can, the one that brings it lowest.
    """
    k = gram.shape[0]
    half = k // 2
    now = left_over(gram)
    before = (left_over(gram[:half, :half]) + left_over(gram[half:, half:])) / 2
    rate = max(0.0, math.log2(before / now)) if now > 0 else 0.0
    best = Plan(0, max(variance / goal**2 - k, 0.0), reaches=variance / goal**2 - k <= left)
    lowest = variance / (k + left)
    for size in range(k, largest + 1):
        spent, remaining = 2 * size - k, 2 * now * (size / k) ** -rate
        probes = max(remaining / goal**2, LEAST_PROBES)
        if spent + probes <= left:
            if not best.reaches or spent + probes < best.products:
                best = Plan(size, spent + probes, reaches=True)
        elif not best.reaches and left - spent >= LEAST_PROBES and remaining / (left - spent) < lowest:
            best, lowest = Plan(size, spent + probes, reaches=False), remaining / (left - spent)
    return best
