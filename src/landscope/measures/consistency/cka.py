"""Linear centred kernel alignment between the features of models (Kornblith et al. 2019).

    CKA(X, Y) = H(X, Y) / √(H(X, X) H(Y, Y)),    H(X, Y) = ‖Xᵀ Y‖_F²  with centred features X (n, d), Y (n, d′)

It is 1 for features that differ by a rotation and a scale, and may compare layers of different widths. With fewer samples
than features it is biased upwards: two random layers look alike. Debiased, H is the unbiased estimate of Song et al. 2012,

    H(X, Y) = ‖Xᵀ Y‖_F² − n/(n − 2) Σ_i ‖x_i‖² ‖y_i‖² + ‖X‖_F² ‖Y‖_F² / ((n − 1)(n − 2))

whose mean does not depend on n; it can be slightly negative. The error over the data is the infinitesimal jackknife: H is a
sum over samples of t_i = x_iᵀ (Xᵀ Y) y_i (less the sample's own part), and a sample's weight moves CKA by
CKA · (2 t_i^XY / H_XY − t_i^XX / H_XX − t_i^YY / H_YY). A bootstrap would not do: repeated samples are alike by
construction, and look like alignment.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from landscope.core.errors import DataError, OperandError
from landscope.measures.calibration.scores import Array, as_tensor
from landscope.measures.consistency.pool import Consistency, jackknife_over_models

__all__ = ["linear_cka"]


def linear_cka(features: Sequence[Array], *, debiased: bool = False) -> Consistency:
    """CKA of all pairs of feature matrices (n, d), whose widths may differ. O(M²·n·d·min(n, d)).

    Features of more dimensions (n, channels, height, width) are flattened.

    >>> x = torch.randn(50, 4, generator=torch.Generator().manual_seed(0))
    >>> round(linear_cka([x, 3 * x @ torch.linalg.qr(x[:4])[0]]).mean, 6)
    1.0
    """
    centred = _centred(features, 4 if debiased else 2)
    count, n = len(centred), len(centred[0])
    own = [_shares(x, x, debiased) for x in centred]
    for number, share in enumerate(own):
        if not float(share.sum()) > 0:
            raise DataError(
                f"the features of model {number} do not vary more over these {n} samples than chance: alignment is not defined"
                + (" without bias; use more samples" if debiased else "")
            )
    matrix, influence = np.eye(count), torch.zeros(n, dtype=torch.float64)
    scaled = [share / share.sum() for share in own]
    norms = [math.sqrt(float(share.sum())) for share in own]
    for a in range(count):
        for b in range(a + 1, count):
            shares = _shares(centred[a], centred[b], debiased) / (norms[a] * norms[b])
            value = float(shares.sum())
            matrix[a, b] = matrix[b, a] = value
            influence += 2 * shares - value * (scaled[a] + scaled[b])
    mean, stderr = jackknife_over_models(matrix)
    data_stderr = float(influence.norm()) / (count * (count - 1) / 2)
    return Consistency("linear_cka", matrix, mean, stderr, data_stderr, n)


def _shares(x: Tensor, y: Tensor, debiased: bool) -> Tensor:
    """t_i (n,), whose sum is H(X, Y): through features or through n×n products, whichever is smaller."""
    n = len(x)
    shares = ((x @ (x.T @ y)) * y).sum(1) if x.shape[1] * y.shape[1] < n * n else ((x @ x.T) * (y @ y.T)).sum(1)
    if not debiased:
        return shares
    r, s = x.square().sum(1), y.square().sum(1)
    return shares - n / (n - 2) * r * s + r.sum() * s.sum() / (n * (n - 1) * (n - 2))


def _centred(features: Sequence[Array], least: int) -> list[Tensor]:
    tensors = [as_tensor(one, "features") for one in features]
    if len(tensors) < 2:
        raise OperandError(f"consistency compares models: features of at least two were expected, {len(tensors)} came")
    sizes = sorted({len(x) if x.dim() > 1 else 0 for x in tensors})
    if len(sizes) > 1 or sizes[0] < least:
        shapes = ", ".join(str(tuple(x.shape)) for x in tensors)
        raise OperandError(f"features (n, d) of the same n ≥ {least} samples were expected; {shapes} came")
    matrices = [x.double().flatten(1) for x in tensors]
    for number, x in enumerate(matrices):
        if not bool(torch.isfinite(x).all()):
            raise DataError(f"the features of model {number} hold NaN or infinity")
    return [x - x.mean(0) for x in matrices]
