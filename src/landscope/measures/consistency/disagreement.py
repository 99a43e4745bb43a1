"""Prediction disagreement: how often two models of a pool predict different classes.

    d(a, b) = mean_i 1[argmax z_i^a ≠ argmax z_i^b],    averaged over unordered pairs

(churn; the disagreement of Jiang et al. 2022). Ordered pairs would count every comparison twice and, taken for
independent samples, make any test look sharper than it is.
"""

from __future__ import annotations

from collections.abc import Sequence

from landscope.measures.calibration.scores import Array
from landscope.measures.consistency.pool import Consistency, compare_samples, stacked_logits

__all__ = ["disagreement"]


def disagreement(logits: Array | Sequence[Array]) -> Consistency:
    """Disagreement of all pairs of models, from logits (M, n, C). O(M²·n).

    >>> import torch
    >>> disagreement(torch.tensor([[[1.0, 0], [1, 0]], [[1, 0], [0, 1]], [[0, 1], [0, 1]]])).matrix
    array([[0. , 0.5, 1. ],
           [0.5, 0. , 0.5],
           [1. , 0.5, 0. ]])
    """
    return compare_samples("disagreement", stacked_logits(logits).argmax(-1), lambda one, others: one != others)
