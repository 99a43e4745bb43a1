"""The diagonal from products alone, with an error bar for every entry.

With independent signs ω the vector ω ∘ Aω has mean diag A (Bekas, Kokiopoulou & Saad 2007); its i-th entry scatters by
the off-diagonal part of row i, Σ_{j≠i} a²_ij, which the same numbers estimate. Diagonal matrices come out exactly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from landscope.core.estimate import Status
from landscope.core.seeding import generator, rademacher
from landscope.spectra.columns import BLOCK, diagonal_and_norms
from landscope.spectra.probes import student_factor
from landscope.spectra.protocol import MatrixLike, as_operator, check_budget

__all__ = ["DiagonalEstimate", "diagonal"]


@dataclass(frozen=True)
class DiagonalEstimate:
    """Diagonal entries (P,) with standard errors (P,), in the operator's precision and place.

    The errors are infinite where one probe alone was affordable: it says nothing about its own scatter.
    """

    values: Tensor
    stderr: Tensor
    status: Status
    matvecs: int


def diagonal(op: MatrixLike, max_matvecs: int | None = 64, seed: int = 0) -> DiagonalEstimate:
    """Find diag A from min(P, `max_matvecs`) products: exact if that is P, estimated with random signs otherwise.

    Two standard errors hold the truth with about 95 % probability (Student's factor included). Memory: 2 vectors of
    length P and 4 blocks of 8.

    >>> diagonal(torch.tensor([[2.0, 1.0], [1.0, 3.0]])).values
    tensor([2., 3.])
    """
    counted, budget, rng = as_operator(op), check_budget(max_matvecs), generator(seed, "diagonal")
    if counted.size <= budget:
        entries, norms = diagonal_and_norms(counted)
        exact, errors = (x.to(dtype=counted.dtype, device=counted.device) for x in (entries, counted.rounding * norms))
        return DiagonalEstimate(exact, errors, Status.EXACT, counted.matvecs)
    mean = torch.zeros(counted.size, dtype=counted.dtype, device=counted.device)
    scatter, size = torch.zeros_like(mean), 0.0
    for done in range(budget):
        if done % BLOCK == 0:
            count = min(BLOCK, budget - done)
            signs = [rademacher((counted.size,), rng, counted.dtype, counted.device) for _ in range(count)]
            rows = torch.stack(signs)
            products = counted.rows(rows).mul(rows)
            size = max(size, float(products.square().mean()) ** 0.5)
        step = products[done % BLOCK] - mean  # Welford's update, which does not cancel
        mean += step / (done + 1)
        scatter += step * (products[done % BLOCK] - mean)
    if budget == 1:
        errors = torch.full_like(mean, torch.inf)
    else:
        errors = student_factor(budget - 1) * (scatter / (budget * (budget - 1))).sqrt()
    rounding = counted.rounding * mean.abs().clamp(min=size)
    return DiagonalEstimate(mean, torch.hypot(errors, rounding), Status.BUDGET_SPENT, counted.matvecs)
