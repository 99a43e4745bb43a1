"""Negative log-likelihood of the labels, −mean_i log p_i(y_i): the cross-entropy, in natural logarithms.

Logits are not turned into probabilities, so a confident mistake costs what they say, and a label of probability 0 infinitely
much: then there is no estimate. scikit-learn's `log_loss` takes probabilities and clips them at the resolution of their type,
which bounds the cost of one mistake to 36 in float64.
"""

from __future__ import annotations

from torch import Tensor

from landscope.core.estimate import Estimate
from landscope.measures.calibration.resampling import mean_estimate, refuse_infinite
from landscope.measures.calibration.scores import Array, Logits, Scores

__all__ = ["nll", "nll_value"]


def _per_sample(logits: Logits, labels: Array) -> Tensor:
    scores = Scores.of(logits, labels)
    return -scores.log_p.gather(1, scores.labels[:, None])[:, 0]


def nll_value(logits: Logits, labels: Array) -> float:
    """−mean_i log softmax(z_i)_{y_i}."""
    return float(_per_sample(logits, labels).mean())


def nll(logits: Logits, labels: Array) -> Estimate:
    """The negative log-likelihood with its standard error. O(n·C).

    >>> import torch
    >>> round(nll(torch.zeros(3, 2), torch.tensor([0, 1, 1])).value, 4)
    0.6931
    """
    losses = _per_sample(logits, labels)
    return mean_estimate(refuse_infinite(losses, "negative log-likelihood", "the label"))
