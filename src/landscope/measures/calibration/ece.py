"""Expected calibration error: how far confidence is from accuracy, bin by bin (Naeini et al. 2015; Guo et al. 2017).

    ECE = Σ_b n_b/n |acc(b) − conf(b)|,    b over n_bins bins (lo, hi] of equal width of the largest probability

Confidence exactly 1.0 lies in the last bin, empty bins count nothing. torchmetrics (1.9) takes bins [lo, hi) and gives
confidence 1.0 a bin of its own; the two agree where no confidence lies on an edge. For probabilities instead of logits:
`ece(probabilities(p), labels)`.

The plug-in estimate is biased upwards, the more so with many bins, few samples and good calibration: bins of samples
never match exactly, and the error bar is about its spread, not about this bias. `details["if_calibrated"]` is what a
perfectly calibrated model would get from as many samples; an error well above it is hardly biased at all.
"""

from __future__ import annotations

from landscope.core.estimate import Estimate
from landscope.measures.calibration.binned_error import binned_error
from landscope.measures.calibration.bins import equal_width_edges, find_bins
from landscope.measures.calibration.scores import Array, Logits, Scores

__all__ = ["ece", "ece_value"]


def ece_value(logits: Logits, labels: Array, n_bins: int = 15) -> float:
    """The expected calibration error alone."""
    return ece(logits, labels, n_bins, resamples=0).value


def ece(logits: Logits, labels: Array, n_bins: int = 15, *, resamples: int = 1000, seed: int = 0) -> Estimate:
    """The expected calibration error with a bootstrap error bar. O(n·C + resamples · min(n, 1000) · n_bins).

    >>> import torch
    >>> ece(torch.zeros(4, 2), torch.tensor([0, 1, 1, 1])).value        # confidence 0.5, accuracy 0.25
    0.25
    """
    scores = Scores.of(logits, labels)
    bins = find_bins(scores.confidence, equal_width_edges(n_bins))
    return binned_error(scores.confidence, scores.correct, bins, n_bins, resamples, seed)
