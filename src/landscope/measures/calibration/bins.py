"""Bins of confidence: equal widths (lo, hi], or equal numbers of samples.

With n bins of equal width the edges are the fractions k/n, rounded once. A confidence on an edge belongs to the bin below
it, so exactly 1.0 lies in the last bin; exactly 0 lies in the first. With bins of equal mass, samples of one confidence
stay together, whatever the order in which they came: where many are tied (a saturated model), bins are fewer and uneven.
"""

from __future__ import annotations

import torch
from torch import Tensor

from landscope.measures.calibration.resampling import AddUp

__all__ = ["binned_sums", "check_bins", "equal_mass_edges", "equal_width_edges", "find_bins", "mean_gap"]


TIE = 1e-6
"""Confidences that differ by less are the same: equal samples differ by rounding in other batches or on other devices."""


def check_bins(n_bins: int) -> int:
    """A whole number of bins, at least one."""
    if isinstance(n_bins, bool) or not isinstance(n_bins, int) or n_bins < 1:
        raise ValueError(f"n_bins must be a whole number, at least 1, got {n_bins!r}")
    return n_bins


def equal_width_edges(n_bins: int) -> Tensor:
    """0, 1/n, …, 1: exactly the floating-point numbers that the decimals mean.

    >>> float(equal_width_edges(15)[9]) == 0.6, float(torch.linspace(0, 1, 16, dtype=torch.float64)[3]) == 0.2
    (True, True)
    """
    return torch.arange(n_bins + 1, dtype=torch.float64) / check_bins(n_bins)


def equal_mass_edges(values: Tensor, n_bins: int) -> Tensor:
    """0, then the largest value of each of `n_bins` equal shares of the sorted values, the last being 1.

    >>> equal_mass_edges(torch.tensor([0.9, 0.5, 0.6, 0.8]), 2)
    tensor([0.0000, 0.6000, 1.0000])
    """
    n = len(values)
    last = (torch.arange(1, check_bins(n_bins)) * n + n_bins - 1) // n_bins - 1
    inner = (values.sort().values[last.clamp(min=0)] + TIE).clamp(max=1)
    return torch.cat([values.new_zeros(1), inner, values.new_ones(1)])


def find_bins(values: Tensor, edges: Tensor) -> Tensor:
    """The number k of the bin (edges[k], edges[k + 1]] that holds each value; the first bin includes its lower edge.

    >>> find_bins(torch.tensor([0.0, 0.5, 0.51, 1.0]), torch.tensor([0.0, 0.5, 1.0]))
    tensor([0, 0, 1, 1])
    """
    return (torch.searchsorted(edges, values.contiguous()) - 1).clamp(0, len(edges) - 2)


def binned_sums(bins: Tensor, gap: Tensor, n_bins: int) -> AddUp:
    """For resampling: the number of samples and the sum of their gaps in each bin, (groups, n_bins, 2).

    Bins and gaps (n, C) of several classes count as C · `n_bins` bins, the classes one after the other.
    """
    per_sample = bins.reshape(len(bins), -1)
    classes = per_sample.shape[1]
    place = per_sample + n_bins * torch.arange(classes)
    rows = torch.stack([torch.ones_like(gap), gap], -1).reshape(-1, 2)

    def add_up(group: Tensor, groups: int) -> Tensor:
        index = (group[:, None] * classes * n_bins + place).flatten()
        return rows.new_zeros(groups * classes * n_bins, 2).index_add_(0, index, rows).view(groups, -1, 2)

    return add_up


def mean_gap(sums: Tensor) -> Tensor:
    """Σ_b n_b/n |mean gap of bin b|, from the sums (…, bins, 2)."""
    return sums[..., 1].abs().sum(-1) / sums[..., 0].sum(-1)
