"""Maximum calibration error: the worst bin (Naeini et al. 2015).

    MCE = max_b |acc(b) − conf(b)|  over the bins of the expected calibration error that hold samples

One sample alone in a bin can set it, so it is as noisy as its emptiest bin, and a bootstrap of a maximum is only a rough
guide to that noise: `details` says how many samples the worst bin holds.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from landscope.core.estimate import Estimate
from landscope.measures.calibration.bins import binned_sums, equal_width_edges, find_bins
from landscope.measures.calibration.resampling import bootstrap
from landscope.measures.calibration.scores import Array, Logits, Scores

__all__ = ["mce", "mce_value"]


def mce_value(logits: Logits, labels: Array, n_bins: int = 15) -> float:
    """The maximum calibration error alone."""
    return mce(logits, labels, n_bins, resamples=0).value


def mce(logits: Logits, labels: Array, n_bins: int = 15, *, resamples: int = 1000, seed: int = 0) -> Estimate:
    """The maximum calibration error with a bootstrap error bar. Costs what `ece` does.

    >>> mce(torch.tensor([[0.0, 0.0], [9.0, 0.0]]), torch.tensor([1, 0])).value       # the first sample's bin
    0.5
    """
    scores = Scores.of(logits, labels)
    confidence = scores.confidence
    bins = find_bins(confidence, equal_width_edges(n_bins))
    sums = binned_sums(bins, scores.correct - confidence, n_bins)
    estimate = bootstrap(len(bins), sums, lambda s: _gaps(s).amax(-1), resamples, seed)
    whole = sums(torch.zeros_like(bins), 1)[0]
    worst = int(_gaps(whole).argmax())
    held: dict[str, int] = {"worst_bin": worst, "worst_bin_samples": int(whole[worst, 0])}
    return replace(estimate, details={**estimate.details, **held})


def _gaps(sums: Tensor) -> Tensor:
    return sums[..., 1].abs() / sums[..., 0].clamp(min=1)  # an empty bin has no gap to divide
