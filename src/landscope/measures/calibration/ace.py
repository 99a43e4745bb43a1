"""Adaptive calibration error: the expected calibration error over bins that hold equally many samples.

    ACE = Σ_b n_b/n |acc(b) − conf(b)|,    b over n_bins equal shares of the samples sorted by confidence

of the largest probability (Nguyen and O'Connor 2015; AdaECE of Mukhoti et al. 2020), or with `classwise=True` the mean of
the same over the classes, each with its own probability sorted (the ACE of Nixon et al. 2019). Equal widths put most of a
trained network's samples into one bin; equal shares spread them. Samples of one confidence share a bin.
"""

from __future__ import annotations

import torch

from landscope.core.estimate import Estimate
from landscope.measures.calibration.binned_error import binned_error
from landscope.measures.calibration.bins import check_bins, equal_mass_edges, find_bins
from landscope.measures.calibration.scores import Array, Logits, Scores

__all__ = ["ace", "ace_value"]


def ace_value(logits: Logits, labels: Array, n_bins: int = 15, *, classwise: bool = False) -> float:
    """The adaptive calibration error alone."""
    return ace(logits, labels, n_bins, classwise=classwise, resamples=0).value


def ace(
    logits: Logits,
    labels: Array,
    n_bins: int = 15,
    *,
    classwise: bool = False,
    resamples: int = 1000,
    seed: int = 0,
) -> Estimate:
    """The adaptive calibration error with a bootstrap error bar; the bins are those of the whole sample.

    >>> ace(torch.zeros(4, 2), torch.tensor([0, 1, 1, 1])).value
    0.25
    """
    scores = Scores.of(logits, labels)
    check_bins(n_bins)
    stated, happened = (
        (scores.p, scores.one_hot) if classwise else (scores.confidence[:, None], scores.correct[:, None])
    )
    bins = torch.stack([find_bins(column, equal_mass_edges(column, n_bins)) for column in stated.T], 1)
    return binned_error(stated, happened, bins, n_bins, resamples, seed)
