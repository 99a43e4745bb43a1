"""Classwise expected calibration error: every probability counts, not only the largest one.

    cwECE = 1/C Σ_c Σ_b n_cb/n |freq_c(b) − p̄_c(b)|,    b over bins (lo, hi] of equal width of the probability of class c

(Kull et al. 2019; the static calibration error of Nixon et al. 2019). A class that no label names has frequency 0 in
every bin and counts like any other: probability given to it is misplaced. With many classes nearly all probabilities
lie in the lowest bin and the number shrinks like 1/C: compare it between models, not between data sets.
"""

from __future__ import annotations

from landscope.core.estimate import Estimate
from landscope.measures.calibration.binned_error import binned_error
from landscope.measures.calibration.bins import equal_width_edges, find_bins
from landscope.measures.calibration.scores import Array, Logits, Scores

__all__ = ["classwise_ece", "classwise_ece_value"]


def classwise_ece_value(logits: Logits, labels: Array, n_bins: int = 15) -> float:
    """The classwise calibration error alone."""
    return classwise_ece(logits, labels, n_bins, resamples=0).value


def classwise_ece(logits: Logits, labels: Array, n_bins: int = 15, *, resamples: int = 1000, seed: int = 0) -> Estimate:
    """The classwise calibration error with a bootstrap error bar. O(n·C + resamples · min(n, 1000) · C · n_bins).

    >>> import torch
    >>> classwise_ece(torch.zeros(4, 2), torch.tensor([0, 1, 1, 1])).value
    0.25
    """
    scores = Scores.of(logits, labels)
    p = scores.p
    bins = find_bins(p, equal_width_edges(n_bins))
    return binned_error(p, scores.one_hot, bins, n_bins, resamples, seed)
