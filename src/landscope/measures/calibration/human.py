"""Calibration against people: predictions compared with how many people gave each label (CIFAR-10H and the like).

Where people disagree there is no right label, and confidence should match their disagreement, sample by sample. With
q_i the distribution of the labels that people gave to sample i (counts (n, C), or probabilities), p_i the prediction:

    human_cross_entropy    −mean_i Σ_c q_ic log p_ic                          Peterson et al. 2019
    human_kl               the same minus the people's own entropy: 0 for equal distributions
    human_distance         mean_i ½ Σ_c |p_ic − q_ic|, in [0, 1]              DistCE of Baan et al. 2022
    human_entropy_error    mean_i |H(p_i) − H(q_i)|, or signed                EntCE of Baan et al. 2022
    human_ece              Σ_b n_b/n |mean over b of q_i(ŷ_i) − conf(b)|: the ECE where a prediction ŷ is as right as the share
                           of people who agree; what ECE tends to when every person's label counts as a sample

Few people per sample make q_i itself noisy: of the true distribution, human_kl and human_distance are overestimates.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from landscope.core.errors import DataError, LabelRangeError, OperandError
from landscope.core.estimate import Estimate
from landscope.measures.calibration.bins import binned_sums, equal_width_edges, find_bins, mean_gap
from landscope.measures.calibration.resampling import bootstrap, mean_estimate
from landscope.measures.calibration.scores import Array, as_tensor, checked_logits

__all__ = ["human_cross_entropy", "human_distance", "human_ece", "human_entropy_error", "human_kl"]


def human_cross_entropy(logits: Array, counts: Array) -> Estimate:
    """−mean_i Σ_c q_ic log p_ic, with its standard error over samples.

    >>> round(human_cross_entropy(torch.zeros(2, 2), torch.tensor([[50, 0], [25, 25]])).value, 4)
    0.6931
    """
    log_p, q = _paired(logits, counts)
    return mean_estimate(-(q * log_p).sum(1))


def human_kl(logits: Array, counts: Array) -> Estimate:
    """mean_i KL(q_i ‖ p_i), with its standard error over samples.

    >>> human_kl(torch.zeros(1, 2), torch.tensor([[25, 25]])).value
    0.0
    """
    log_p, q = _paired(logits, counts)
    return mean_estimate((torch.xlogy(q, q) - q * log_p).sum(1))


def human_distance(logits: Array, counts: Array) -> Estimate:
    """mean_i ½ Σ_c |p_ic − q_ic|: total variation, sample by sample, with its standard error.

    >>> human_distance(torch.zeros(2, 2), torch.tensor([[50, 0], [25, 25]])).value
    0.25
    """
    log_p, q = _paired(logits, counts)
    return mean_estimate((log_p.exp() - q).abs().sum(1) / 2)


def human_entropy_error(logits: Array, counts: Array, *, signed: bool = False) -> Estimate:
    """mean_i |H(p_i) − H(q_i)| in nats; signed, it is positive where the model is less sure than people.

    >>> round(human_entropy_error(torch.zeros(1, 2), torch.tensor([[50, 0]]), signed=True).value, 4)
    0.6931
    """
    log_p, q = _paired(logits, counts)
    gap = torch.xlogy(q, q).sum(1) - (log_p.exp() * log_p).sum(1)
    return mean_estimate(gap if signed else gap.abs())


def human_ece(logits: Array, counts: Array, n_bins: int = 15, *, resamples: int = 1000, seed: int = 0) -> Estimate:
    """The expected calibration error with the share of people who agree in place of correctness.

    >>> human_ece(torch.zeros(2, 2), torch.tensor([[50, 0], [25, 25]])).value
    0.25
    """
    log_p, q = _paired(logits, counts)
    confidence = log_p.max(1).values.exp()
    agree = q.gather(1, log_p.argmax(1, keepdim=True))[:, 0]
    order = torch.from_numpy(np.lexsort((agree.numpy(), confidence.numpy())))
    bins = find_bins(confidence[order], equal_width_edges(n_bins))
    sums = binned_sums(bins, (agree - confidence)[order], n_bins)
    estimate = bootstrap(len(bins), sums, mean_gap, resamples, seed)
    return replace(estimate, details={**estimate.details, "mean_agreement": float(agree.mean())})


def _paired(logits: Array, counts: Array) -> tuple[Tensor, Tensor]:
    """Log-probabilities of the model and label distributions of people, both (n, C)."""
    log_p = checked_logits(logits).log_softmax(1)
    given = as_tensor(counts, "counts")
    if given.shape != log_p.shape:
        hint = " One label per sample is what ece, nll and brier take." if given.dim() == 1 else ""
        raise OperandError(
            f"counts of shape {tuple(log_p.shape)}, as the logits, were expected; {tuple(given.shape)} came.{hint}"
        )
    q = given.double()
    if not bool(torch.isfinite(q).all()):
        raise DataError("the label counts hold NaN or infinity")
    if bool((q < 0).any()):
        raise LabelRangeError("label counts must not be negative")
    total = q.sum(1, keepdim=True)
    if bool((total == 0).any()):
        raise DataError(f"{int((total == 0).sum())} samples have no labels at all; leave them out of logits and counts")
    return log_p, q / total
