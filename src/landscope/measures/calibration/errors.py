"""Scores of logits and labels: accuracy, log-loss, Brier score and the calibration errors."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace

import torch
from torch import Tensor

from landscope.core.estimate import Estimate
from landscope.measures.calibration.scores import (
    Array,
    Logits,
    Scores,
    binned_sums,
    bootstrap,
    check_bins,
    equal_mass_edges,
    equal_width_edges,
    find_bins,
    mean_gap,
    refuse_infinite,
    scored,
)
from landscope.measures.calibration.tokens import TokenScores

# Accuracy and error: the share of samples whose most probable class is, or is not, the label.


def accuracy(logits: Logits, labels: Array) -> Estimate:
    """The accuracy with its standard error.

    >>> import torch
    >>> accuracy(torch.eye(4), torch.tensor([0, 1, 2, 0])).value
    0.75
    """
    scores = scored(logits, labels)
    return scores.mean(scores.correct)


def error(logits: Logits, labels: Array) -> Estimate:
    """The error rate with its standard error.

    >>> import torch
    >>> error(torch.eye(4), torch.tensor([0, 1, 2, 0])).value
    0.25
    """
    scores = scored(logits, labels)
    return scores.mean(1 - scores.correct)


# Negative log-likelihood of the labels, −mean_i log p_i(y_i): the cross-entropy, in natural logarithms.
#
# Logits are not turned into probabilities, so a confident mistake costs what they say, and a label of probability 0 infinitely
# much: then there is no estimate. scikit-learn's `log_loss` takes probabilities and clips them at the resolution of their type,
# which bounds the cost of one mistake to 36 in float64.


def nll(logits: Logits, labels: Array) -> Estimate:
    """The negative log-likelihood with its standard error. O(n·C).

    >>> import torch
    >>> round(nll(torch.zeros(3, 2), torch.tensor([0, 1, 1])).value, 4)
    0.6931
    """
    scores = scored(logits, labels)
    return scores.mean(refuse_infinite(scores.losses, "negative log-likelihood", "the label"))


# The Brier score of class probabilities, and its parts.
#
#     BS = mean_i Σ_c (p_ic − 1[y_i = c])²                                        Brier 1950; between 0 and 2
#
# Per class, and with the probability of the class sorted into bins b of equal width (Murphy 1973; Stephenson et al. 2008
# for the spread inside a bin, which Murphy's forecasts of a few fixed values do not have):
#
#     BS = reliability − resolution + uncertainty + within_bins
#     reliability  Σ_c Σ_b n_cb/n (p̄_cb − ō_cb)²      how far stated probabilities are from frequencies: 0 is calibrated
#     resolution   Σ_c Σ_b n_cb/n (ō_cb − ō_c)²        how far frequencies in bins are from the base rate: more is better
#     uncertainty  Σ_c ō_c (1 − ō_c)                    the data's own, whatever the model
#     within_bins  mean over samples of (p − p̄)² − 2 (p − p̄)(o − ō), which tends to 0 as bins narrow
#
# with p̄, ō the mean probability and the frequency of the class in the bin, ō_c in all samples. The identity is exact.


@dataclass(frozen=True)
class BrierParts:
    """The parts of a Brier score: score = reliability − resolution + uncertainty + within_bins."""

    score: float
    reliability: float
    resolution: float
    uncertainty: float
    within_bins: float


def brier_parts(logits: Logits, labels: Array, n_bins: int = 15) -> BrierParts:
    """The score and its parts over `n_bins` bins of equal width for each class. O(n·C).

    >>> brier_parts(torch.zeros(4, 2), torch.tensor([0, 1, 1, 1]))
    BrierParts(score=0.5, reliability=0.125, resolution=0.0, uncertainty=0.375, within_bins=0.0)
    """
    return _parts(Scores.of(logits, labels), n_bins)


def brier(logits: Logits, labels: Array, n_bins: int = 15) -> Estimate:
    """The Brier score with its standard error; its parts are in `details`, but for tokens. O(n·C).

    >>> brier(torch.zeros(4, 2), torch.tensor([0, 1, 1, 1])).value
    0.5
    """
    scores = scored(logits, labels)
    parts = asdict(_parts(scores, n_bins)) if isinstance(scores, Scores) else {}
    parts.pop("score", None)
    return scores.mean(scores.brier, parts)


def _parts(scores: Scores, n_bins: int) -> BrierParts:
    p, o = scores.p, scores.one_hot
    n, classes = p.shape
    place = (find_bins(p, equal_width_edges(n_bins)) + n_bins * torch.arange(classes)).flatten()
    sums = torch.zeros(classes * n_bins, 3, dtype=torch.float64)
    sums.index_add_(0, place, torch.stack([torch.ones_like(p), p, o], -1).view(-1, 3))
    count = sums[:, 0]
    mean_p, mean_o = (sums[:, k] / count.clamp(min=1) for k in (1, 2))
    base = o.mean(0)
    off_p, off_o = p - mean_p[place].view_as(p), o - mean_o[place].view_as(o)
    return BrierParts(
        score=float((p - o).square().sum() / n),
        reliability=float((count * (mean_p - mean_o).square()).sum() / n),
        resolution=float((count * (mean_o - base.repeat_interleave(n_bins)).square()).sum() / n),
        uncertainty=float((base * (1 - base)).sum()),
        within_bins=float((off_p * (off_p - 2 * off_o)).sum() / n),
    )


# The mean gap between stated probabilities and what happened, over bins: what the expected calibration errors share.


def binned_error(
    stated: Tensor,
    happened: Tensor,
    bins: Tensor,
    n_bins: int,
    resamples: int,
    seed: int,
    of: Scores | TokenScores | None = None,
) -> Estimate:
    """Σ_b n_b/n |mean of (happened − stated) in b|, over (n,) numbers or the mean over the columns of (n, C) of them.

    `details["if_calibrated"]` is its expected value for a perfectly calibrated model with these probabilities and this many
    samples: a bin's gaps then add up to a normal number of variance v_b = Σ p(1 − p), whose size is √(2 v_b / π) on average. An
    error near it is not evidence of miscalibration. Tokens, and what they count for, are those `of` some scores.

    >>> half = torch.full((100,), 0.5, dtype=torch.float64)
    >>> error = binned_error(half, (torch.arange(100) % 2).double(), torch.zeros(100, dtype=torch.long), 1, 0, 0)
    >>> error.value, round(error.details["if_calibrated"], 3)
    (0.0, 0.04)
    """
    n, weight, sequence = len(stated), of.weight if of else None, of.sequence if of else None
    estimate = bootstrap(n, binned_sums(bins, happened - stated, n_bins, weight), mean_gap, resamples, seed, sequence)
    whole = torch.zeros(n, dtype=torch.long)
    squared = None if weight is None else weight.square()
    variance = binned_sums(bins, stated * (1 - stated), n_bins, squared)(whole, 1)[0, :, 1].clamp(min=0)
    floor = float((2 / math.pi * variance).sqrt().sum()) / (stated.numel() if weight is None else float(weight.sum()))
    return replace(estimate, details={**estimate.details, "if_calibrated": floor})


# Expected calibration error: how far confidence is from accuracy, bin by bin (Naeini et al. 2015; Guo et al. 2017).
#
#     ECE = Σ_b n_b/n |acc(b) − conf(b)|,    b over n_bins bins (lo, hi] of equal width of the largest probability
#
# Confidence exactly 1.0 lies in the last bin, empty bins count nothing. torchmetrics (1.9) takes bins [lo, hi) and gives
# confidence 1.0 a bin of its own; the two agree where no confidence lies on an edge. For probabilities instead of logits:
# `ece(probabilities(p), labels)`.
#
# The plug-in estimate is biased upwards, the more so with many bins, few samples and good calibration: bins of samples
# never match exactly, and the error bar is about its spread, not about this bias. `details["if_calibrated"]` is what a
# perfectly calibrated model would get from as many samples; an error well above it is hardly biased at all.


def ece(logits: Logits, labels: Array, n_bins: int = 15, *, resamples: int = 1000, seed: int = 0) -> Estimate:
    """The expected calibration error with a bootstrap error bar. O(n·C + resamples · min(n, 1000) · n_bins).

    >>> import torch
    >>> ece(torch.zeros(4, 2), torch.tensor([0, 1, 1, 1])).value        # confidence 0.5, accuracy 0.25
    0.25
    """
    scores = scored(logits, labels)
    bins = find_bins(scores.confidence, equal_width_edges(n_bins))
    return binned_error(scores.confidence, scores.correct, bins, n_bins, resamples, seed, scores)


# Maximum calibration error: the worst bin (Naeini et al. 2015).
#
#     MCE = max_b |acc(b) − conf(b)|  over the bins of the expected calibration error that hold samples
#
# One sample alone in a bin can set it, so it is as noisy as its emptiest bin, and a bootstrap of a maximum is only a rough
# guide to that noise: `details` says how many samples the worst bin holds.


def mce(logits: Logits, labels: Array, n_bins: int = 15, *, resamples: int = 1000, seed: int = 0) -> Estimate:
    """The maximum calibration error with a bootstrap error bar. Costs what `ece` does.

    >>> mce(torch.tensor([[0.0, 0.0], [9.0, 0.0]]), torch.tensor([1, 0])).value       # the first sample's bin
    0.5
    """
    scores = scored(logits, labels)
    confidence = scores.confidence
    bins = find_bins(confidence, equal_width_edges(n_bins))
    sums = binned_sums(bins, scores.correct - confidence, n_bins, scores.weight)
    estimate = bootstrap(len(bins), sums, lambda s: _gaps(s).amax(-1), resamples, seed, scores.sequence)
    whole = sums(torch.zeros_like(bins), 1)[0]
    worst = int(_gaps(whole).argmax())
    held: dict[str, int] = {"worst_bin": worst, "worst_bin_samples": int((bins == worst).sum())}
    return replace(estimate, details={**estimate.details, **held})


def _gaps(sums: Tensor) -> Tensor:
    return sums[..., 1].abs() / torch.where(sums[..., 0] > 0, sums[..., 0], 1.0)  # an empty bin has no gap to divide


# Adaptive calibration error: the expected calibration error over bins that hold equally many samples.
#
#     ACE = Σ_b n_b/n |acc(b) − conf(b)|,    b over n_bins equal shares of the samples sorted by confidence
#
# of the largest probability (Nguyen and O'Connor 2015; AdaECE of Mukhoti et al. 2020), or with `classwise=True` the mean of
# the same over the classes, each with its own probability sorted (the ACE of Nixon et al. 2019). Equal widths put most of a
# trained network's samples into one bin; equal shares spread them. Samples of one confidence share a bin.


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
    check_bins(n_bins)
    stated, happened, scores = _classwise(logits, labels) if classwise else _of_the_largest(logits, labels)
    bins = torch.stack([find_bins(column, equal_mass_edges(column, n_bins)) for column in stated.T], 1)
    return binned_error(stated, happened, bins, n_bins, resamples, seed, scores)


def _of_the_largest(logits: Logits, labels: Array) -> tuple[Tensor, Tensor, Scores | TokenScores]:
    scores = scored(logits, labels)
    return scores.confidence[:, None], scores.correct[:, None], scores


def _classwise(logits: Logits, labels: Array) -> tuple[Tensor, Tensor, Scores]:
    scores = Scores.of(logits, labels)
    return scores.p, scores.one_hot, scores


# Classwise expected calibration error: every probability counts, not only the largest one.
#
#     cwECE = 1/C Σ_c Σ_b n_cb/n |freq_c(b) − p̄_c(b)|,    b over bins (lo, hi] of equal width of the probability of class c
#
# (Kull et al. 2019; the static calibration error of Nixon et al. 2019). A class that no label names has frequency 0 in
# every bin and counts like any other: probability assigned to it is misplaced. With many classes nearly all probabilities
# lie in the lowest bin and the number shrinks like 1/C: compare it between models, not between data sets.


def classwise_ece(logits: Logits, labels: Array, n_bins: int = 15, *, resamples: int = 1000, seed: int = 0) -> Estimate:
    """The classwise calibration error with a bootstrap error bar. O(n·C + resamples · min(n, 1000) · C · n_bins).

    >>> import torch
    >>> classwise_ece(torch.zeros(4, 2), torch.tensor([0, 1, 1, 1])).value
    0.25
    """
    p, happened, _ = _classwise(logits, labels)
    bins = find_bins(p, equal_width_edges(n_bins))
    return binned_error(p, happened, bins, n_bins, resamples, seed)
