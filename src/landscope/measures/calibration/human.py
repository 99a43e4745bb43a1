"""Calibration against people: predictions compared with how many people gave each label (CIFAR-10H and the like).

Where people disagree there is no right label, and confidence should match their disagreement, sample by sample. With
q_i the distribution of the labels that people gave to sample i (counts (n, C), or probabilities), p_i the prediction:

    human_cross_entropy    −mean_i Σ_c q_ic log p_ic                          Peterson et al. 2019
    human_kl               the same minus the people's own entropy: 0 for equal distributions
    human_distance         mean_i ½ Σ_c |p_ic − q_ic|, in [0, 1]              DistCE of Baan et al. 2022
    human_entropy_error    mean_i |H(p_i) − H(q_i)|, or signed                EntCE of Baan et al. 2022
    human_ece              Σ_b n_b/n |mean over b of q_i(ŷ_i) − conf(b)|: the ECE where a prediction ŷ is as right as the share
                           of people who agree; what ECE tends to when every person's label counts as a sample

With few people per sample q_i itself is noisy, and human_kl and human_distance overestimate the distance to the true
distribution.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from landscope.core.errors import DataError, LabelRangeError, OperandError
from landscope.core.estimate import Estimate
from landscope.measures.calibration.scores import (
    Array,
    Logits,
    as_tensor,
    binned_sums,
    bootstrap,
    equal_width_edges,
    find_bins,
    mean_estimate,
    mean_gap,
    predicted,
    refuse_infinite,
)


def human_cross_entropy(logits: Logits, counts: Array) -> Estimate:
    """−mean_i Σ_c q_ic log p_ic, with its standard error over samples.

    >>> round(human_cross_entropy(torch.zeros(2, 2), torch.tensor([[50, 0], [25, 25]])).value, 4)
    0.6931
    """
    _, log_p, q = _paired(logits, counts)
    return mean_estimate(refuse_infinite(_cross_entropies(q, log_p), "cross-entropy", "a label that people gave"))


def human_kl(logits: Logits, counts: Array) -> Estimate:
    """mean_i KL(q_i ‖ p_i), with its standard error over samples.

    >>> human_kl(torch.zeros(1, 2), torch.tensor([[25, 25]])).value
    0.0
    """
    _, log_p, q = _paired(logits, counts)
    losses = torch.xlogy(q, q).sum(1) + _cross_entropies(q, log_p)
    return mean_estimate(refuse_infinite(losses, "divergence", "a label that people gave"))


def human_distance(logits: Logits, counts: Array) -> Estimate:
    """mean_i ½ Σ_c |p_ic − q_ic|: total variation, sample by sample, with its standard error.

    >>> human_distance(torch.zeros(2, 2), torch.tensor([[50, 0], [25, 25]])).value
    0.25
    """
    p, _, q = _paired(logits, counts)
    return mean_estimate((p - q).abs().sum(1) / 2)


def human_entropy_error(logits: Logits, counts: Array, *, signed: bool = False) -> Estimate:
    """mean_i |H(p_i) − H(q_i)| in nats; signed, it is positive where the model is less sure than people.

    >>> round(human_entropy_error(torch.zeros(1, 2), torch.tensor([[50, 0]]), signed=True).value, 4)
    0.6931
    """
    p, log_p, q = _paired(logits, counts)
    gap = torch.xlogy(q, q).sum(1) + _cross_entropies(p, log_p)
    return mean_estimate(gap if signed else gap.abs())


def human_ece(logits: Logits, counts: Array, n_bins: int = 15, *, resamples: int = 1000, seed: int = 0) -> Estimate:
    """The expected calibration error with the share of people who agree in place of correctness.

    >>> human_ece(torch.zeros(2, 2), torch.tensor([[50, 0], [25, 25]])).value
    0.25
    """
    p, _, q = _paired(logits, counts)
    confidence = p.max(1).values
    agree = q.gather(1, p.argmax(1, keepdim=True))[:, 0]
    order = torch.from_numpy(np.lexsort((agree.numpy(), confidence.numpy())))
    bins = find_bins(confidence[order], equal_width_edges(n_bins))
    sums = binned_sums(bins, (agree - confidence)[order], n_bins)
    estimate = bootstrap(len(bins), sums, mean_gap, resamples, seed)
    return replace(estimate, details={**estimate.details, "mean_agreement": float(agree.mean())})


def _cross_entropies(q: Tensor, log_p: Tensor) -> Tensor:
    """−Σ_c q_ic log p_ic of each sample, where 0 · log 0 is 0."""
    return -torch.where(q > 0, q * log_p, 0.0).sum(1)


def _paired(logits: Logits, counts: Array) -> tuple[Tensor, Tensor, Tensor]:
    """Probabilities of the model, their logarithms and label distributions of people, all (n, C)."""
    p, log_p = predicted(logits)
    given = as_tensor(counts, "counts")
    if given.shape != log_p.shape:
        hint = " For one label per sample, use ece, nll or brier." if given.dim() == 1 else ""
        raise OperandError(
            f"expected counts of the shape of the logits, {tuple(log_p.shape)}, got {tuple(given.shape)}.{hint}"
        )
    q = given.double()
    if not bool(torch.isfinite(q).all()):
        raise DataError("the label counts hold NaN or infinity")
    if bool((q < 0).any()):
        raise LabelRangeError("label counts must not be negative")
    total = q.sum(1, keepdim=True)
    if bool((total == 0).any()):
        raise DataError(f"{int((total == 0).sum())} samples have no labels at all; leave them out of logits and counts")
    return p, log_p, q / total
