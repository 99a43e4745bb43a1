"""The matrix itself, a few columns at a time: the exact way, where P products are affordable."""

from __future__ import annotations

import torch
from torch import Tensor

from landscope.spectra.protocol import CountedOperator

__all__ = ["BLOCK", "diagonal_and_norms"]

BLOCK = 8
"""Vectors per block of products."""


def diagonal_and_norms(op: CountedOperator) -> tuple[Tensor, Tensor]:
    """All diagonal entries and all column norms, float64 on the CPU; P products, memory for 3 blocks.

    >>> from landscope.spectra.protocol import as_operator
    >>> diagonal_and_norms(as_operator(torch.tensor([[3.0, 4.0], [4.0, 0.0]])))
    (tensor([3., 0.], dtype=torch.float64), tensor([5., 4.], dtype=torch.float64))
    """
    diagonal, norms = torch.empty(op.size, dtype=torch.float64), torch.empty(op.size, dtype=torch.float64)
    for at in range(0, op.size, BLOCK):
        here = torch.arange(at, min(at + BLOCK, op.size), device=op.device)
        units = torch.zeros((len(here), op.size), dtype=op.dtype, device=op.device)
        units[here - at, here] = 1
        products = op.rows(units)
        diagonal[at : at + BLOCK] = products[here - at, here].double().cpu()
        norms[at : at + BLOCK] = torch.linalg.vector_norm(products, dim=1).double().cpu()
    return diagonal, norms
