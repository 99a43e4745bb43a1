"""Cosine between the logits of two models at the same sample, averaged over samples.

    cos(a, b) = mean_i ⟨z_i^a, z_i^b⟩ / (‖z_i^a‖ ‖z_i^b‖)

Adding a number to all logits of a sample changes no prediction; centred (the default), each sample's logits have their
mean over classes taken out first, so that it changes no cosine either. Where a sample's logits are all zero (centred:
all equal) there is no direction, and the cosine counts as 0.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.nn.functional import normalize

from landscope.core.errors import DataError
from landscope.measures.calibration.scores import Array
from landscope.measures.consistency.pool import Consistency, compare_samples, stacked_logits

__all__ = ["logit_cosine"]

TINY = 1e-150
"""Shorter vectors are zero."""


def logit_cosine(logits: Array | Sequence[Array], *, centred: bool = True) -> Consistency:
    """The mean cosine of all pairs of models, from logits (M, n, C). O(M²·n·C).

    >>> import torch
    >>> z = torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]]])
    >>> round(logit_cosine(z).mean, 6), logit_cosine(z, centred=False).mean
    (-1.0, 0.0)
    """
    z = stacked_logits(logits)
    if not bool(torch.isfinite(z).all()):
        raise DataError("a cosine needs finite logits; these hold −inf for classes that are masked out. Leave them out")
    if centred:
        z = z - z.mean(-1, keepdim=True)
    return compare_samples("logit_cosine", normalize(z, dim=-1, eps=TINY), lambda one, others: (one * others).sum(-1))
