"""Jensen–Shannon divergence between the predicted distributions of models (Lin 1991).

    JS(p, q) = ½ KL(p ‖ m) + ½ KL(q ‖ m),  m = (p + q)/2;    per sample, then the mean

in nats, between 0 and ln 2; normalised, it is divided by ln 2 and lies in [0, 1]. It is not its square root, the distance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from landscope.measures.calibration.scores import Array
from landscope.measures.consistency.pool import Consistency, compare_samples, stacked_logits

__all__ = ["jensen_shannon"]


def jensen_shannon(logits: Array | Sequence[Array], *, normalised: bool = False) -> Consistency:
    """The divergence of all pairs of models, from logits (M, n, C). O(M²·n·C).

    >>> sure = torch.tensor([[[99.0, 0.0]], [[0.0, 99.0]]])
    >>> round(jensen_shannon(sure).mean, 4), round(jensen_shannon(sure, normalised=True).mean, 4)
    (0.6931, 1.0)
    """
    unit = math.log(2) if normalised else 1.0
    return compare_samples(
        "jensen_shannon", stacked_logits(logits).log_softmax(-1), lambda p, q: _divergence(p, q) / unit
    )


def _divergence(log_p: Tensor, log_q: Tensor) -> Tensor:
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)
    twice = _share(log_p, log_m) + _share(log_q, log_m)
    return (twice.sum(-1) / 2).clamp(min=0)


def _share(log_p: Tensor, log_m: Tensor) -> Tensor:
    """P log(p/m), which is 0 where p is."""
    return torch.where(log_p == -math.inf, 0.0, log_p.exp() * (log_p - log_m))
