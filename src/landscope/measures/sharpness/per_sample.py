"""A mean over samples and its standard error over the data, from sums that any order of samples gives."""

from __future__ import annotations

import math

from torch import Tensor

__all__ = ["FORWARD_LOAD", "mean_and_error", "sums"]

FORWARD_LOAD = 4.0
"""Memory allowed to a forward pass, in gradients: far more than it holds, because on a CPU pieces of some 40 images run 1.4
times as fast as those that just fit (ResNet-18: fresh pages cost more than the products)."""


def sums(values: Tensor) -> tuple[Tensor, Tensor]:
    """Σ v and Σ v² of one number per sample, in float64: what adds up over pieces and processes."""
    v = values.detach().double()
    return v.sum(), v.square().sum()


def mean_and_error(total: Tensor, squares: Tensor, n: int) -> tuple[float, float | None]:
    """The mean, and the standard error of a mean of n independent samples; `None` for a single one.

    >>> import torch
    >>> mean_and_error(*sums(torch.tensor([1.0, 3.0])), 2)
    (2.0, 1.0)
    """
    mean = float(total) / n
    if n < 2:
        return mean, None
    return mean, math.sqrt(max(float(squares) / n - mean**2, 0.0) / (n - 1))
