"""The mean gap between stated probabilities and what happened, over bins: what the expected calibration errors share."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from landscope.core.estimate import Estimate
from landscope.measures.calibration.bins import binned_sums, mean_gap
from landscope.measures.calibration.resampling import bootstrap

__all__ = ["binned_error"]


def binned_error(stated: Tensor, happened: Tensor, bins: Tensor, n_bins: int, resamples: int, seed: int) -> Estimate:
    """Σ_b n_b/n |mean of (happened − stated) in b|, over (n,) numbers or the mean over the columns of (n, C) of them.

    `details["if_calibrated"]` is what a perfectly calibrated model with these probabilities would get from this many samples:
    a bin's gaps then add up to a normal number of variance v_b = Σ p(1 − p), whose size is √(2 v_b / π) on average. An error
    near it says nothing against the model.

    >>> half = torch.full((100,), 0.5, dtype=torch.float64)
    >>> error = binned_error(half, (torch.arange(100) % 2).double(), torch.zeros(100, dtype=torch.long), 1, 0, 0)
    >>> error.value, round(error.details["if_calibrated"], 3)
    (0.0, 0.04)
    """
    n = len(stated)
    estimate = bootstrap(n, binned_sums(bins, happened - stated, n_bins), mean_gap, resamples, seed)
    whole = torch.zeros(n, dtype=torch.long)
    variance = binned_sums(bins, stated * (1 - stated), n_bins)(whole, 1)[0, :, 1].clamp(min=0)
    floor = float((2 / math.pi * variance).sqrt().sum()) / stated.numel()
    return replace(estimate, details={**estimate.details, "if_calibrated": floor})
