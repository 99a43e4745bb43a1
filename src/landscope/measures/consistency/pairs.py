"""A pool of models compared pair by pair: the matrix, its mean over pairs, and the error of that mean.

The mean over the M(M − 1)/2 unordered pairs of M models is a U-statistic: pairs that share a model are not independent, and
a standard error over pairs would be too small by about √M / 2. The jackknife over models (Arvesen 1969) leaves out one
model, and with it all its pairs, at a time:

    m_(a) = the mean over pairs without model a        stderr² = (M − 1)/M Σ_a (m_(a) − mean of the m_(a))²

which errs on the large side for few models (Efron and Stein 1981). What another sample of the data would change is kept
apart as `data_stderr`: every sample has its own mean over pairs, and samples are independent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import normalize

from landscope.core.errors import DataError, OperandError
from landscope.core.estimate import Estimate
from landscope.measures.calibration.scores import Array, as_tensor, checked_logits
from landscope.measures.facts import SCORES, Score

if TYPE_CHECKING:
    import pandas as pd

SCORES.register("disagreement")(Score(title="disagreement", better="lower"))
SCORES.register("jensen_shannon")(Score(title="Jensen–Shannon divergence", better="lower", unit="nats"))
SCORES.register("logit_cosine")(Score(title="cosine of logits", better="higher"))
SCORES.register("linear_cka")(Score(title="linear CKA", better="higher"))

CHUNK = 1 << 20
"""Numbers of all models together that are compared at once."""


@dataclass(frozen=True, eq=False)
class Consistency:
    """The result of comparing all pairs of a pool of models.

    `stderr` is the error over pools of as many models (`None` for two models: one pair has no spread), `data_stderr` the error
    over samples of the data.
    """

    name: str
    matrix: NDArray[np.float64]
    mean: float
    stderr: float | None
    data_stderr: float | None
    samples: int

    @property
    def models(self) -> int:
        """M, the number of models."""
        return len(self.matrix)

    @property
    def estimate(self) -> Estimate:
        """The mean with both errors."""
        details = {"models": self.models, "pairs": self.models * (self.models - 1) // 2, "samples": self.samples}
        reason = "" if self.stderr is not None else "two models are one pair, which has no spread over pools"
        return Estimate(self.mean, self.stderr or 0.0, self.data_stderr, reason=reason, details=dict(details))

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """A confidence interval of the mean over pairs of all models of this kind, by Student's t with M − 1 degrees of freedom.

        >>> pool = Consistency("x", np.zeros((3, 3)), 0.5, 0.1, None, 10)
        >>> [round(bound, 2) for bound in pool.interval()]
        [0.07, 0.93]
        """
        if self.stderr is None:
            raise DataError("an interval over models needs at least three of them")
        from scipy.stats import t

        half = float(t.ppf((1 + level) / 2, self.models - 1)) * self.stderr
        return self.mean - half, self.mean + half

    def to_frame(self, names: Sequence[str] | None = None) -> pd.DataFrame:
        """The matrix, with the models' names if given."""
        import pandas as pd

        labels = list(names) if names is not None else list(range(self.models))
        return pd.DataFrame(self.matrix, index=labels, columns=labels)

    def __repr__(self) -> str:
        return f"Consistency({self.name} {self.estimate}, {self.models} models, {self.samples} samples)"


def jackknife_over_models(matrix: NDArray[np.float64]) -> tuple[float, float | None]:
    """The mean over unordered pairs of a symmetric matrix, and its jackknife error; `None` for two models.

    >>> jackknife_over_models(np.array([[0, 1, 2], [1, 0, 3], [2, 3, 0.0]]))
    (2.0, 1.1547005383792515)
    """
    count = len(matrix)
    off = matrix - np.diag(np.diag(matrix))
    total = off.sum() / 2
    mean = float(total / (count * (count - 1) / 2))
    if count < 3:
        return mean, None
    without = (total - off.sum(1)) / ((count - 1) * (count - 2) / 2)
    return mean, math.sqrt((count - 1) / count * float(((without - without.mean()) ** 2).sum()))


def stacked_logits(logits: Array | Sequence[Array]) -> Tensor:
    """The logits of M ≥ 2 models at the same n samples as one tensor (M, n, C), checked.

    >>> stacked_logits([torch.zeros(3, 2), torch.zeros(4, 2)])
    Traceback (most recent call last):
    landscope.core.errors.OperandError: expected logits of all models at the same samples, got shapes (3, 2), (4, 2)
    """
    each = list(logits) if isinstance(logits, Sequence) else list(as_tensor(logits, "logits"))
    if len(each) < 2:
        raise OperandError(f"consistency compares models: expected at least two, got {len(each)}")
    checked = [checked_logits(one) for one in each]
    shapes = list(dict.fromkeys(tuple(one.shape) for one in checked))
    if len(shapes) > 1:
        found = ", ".join(map(str, shapes))
        raise OperandError(f"expected logits of all models at the same samples, got shapes {found}")
    return torch.stack(checked)


def compare_samples(name: str, items: Tensor, value: Callable[[Tensor, Tensor], Tensor]) -> Consistency:
    """Compare all pairs sample by sample, in pieces: `value(one (k, …), others (m, k, …))` gives (m, k) numbers.

    O(M² n) evaluations of `value`; memory beyond the items themselves is bounded.
    """
    count, n = items.shape[:2]
    sums, of_sample = torch.zeros(count, count, dtype=torch.float64), torch.zeros(n, dtype=torch.float64)
    step = max(1, CHUNK // max(1, items[:, 0].numel()))
    for start in range(0, n, step):
        piece = items[:, start : start + step]
        for a in range(count):
            values = value(piece[a], piece[a:]).double()
            sums[a, a:] += values.sum(1)
            of_sample[start : start + step] += values[1:].sum(0)
    matrix = ((sums + sums.triu(1).T) / n).numpy()
    mean, stderr = jackknife_over_models(matrix)
    of_sample /= count * (count - 1) / 2
    data_stderr = float(of_sample.std()) / math.sqrt(n) if n > 1 else None
    return Consistency(name, matrix, mean, stderr, data_stderr, n)


# Prediction disagreement: how often two models of a pool predict different classes.
#
#     d(a, b) = mean_i 1[argmax z_i^a ≠ argmax z_i^b],    averaged over unordered pairs
#
# (churn; the disagreement of Jiang et al. 2022). Ordered pairs would count every comparison twice and, treated as
# independent samples, make any test look sharper than it is.


def disagreement(logits: Array | Sequence[Array]) -> Consistency:
    """Disagreement of all pairs of models, from logits (M, n, C). O(M²·n).

    >>> import torch
    >>> disagreement(torch.tensor([[[1.0, 0], [1, 0]], [[1, 0], [0, 1]], [[0, 1], [0, 1]]])).matrix
    array([[0. , 0.5, 1. ],
           [0.5, 0. , 0.5],
           [1. , 0.5, 0. ]])
    """
    return compare_samples("disagreement", stacked_logits(logits).argmax(-1), lambda one, others: one != others)


# Jensen–Shannon divergence between the predicted distributions of models (Lin 1991).
#
#     JS(p, q) = ½ KL(p ‖ m) + ½ KL(q ‖ m),  m = (p + q)/2;    per sample, then the mean
#
# in nats, between 0 and ln 2; normalised, it is divided by ln 2 and lies in [0, 1]. It is not its square root, the distance.


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


# Cosine between the logits of two models at the same sample, averaged over samples.
#
#     cos(a, b) = mean_i ⟨z_i^a, z_i^b⟩ / (‖z_i^a‖ ‖z_i^b‖)
#
# Adding a number to all logits of a sample changes no prediction; centred (the default), each sample's logits have their
# mean over classes taken out first, so that it changes no cosine either. Where a sample's logits are all zero (centred:
# all equal) there is no direction, and the cosine counts as 0.


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
        raise DataError(
            "a cosine needs finite logits; these hold −inf for classes that are masked out. Drop those classes"
        )
    if centred:
        z = z - z.mean(-1, keepdim=True)
    return compare_samples("logit_cosine", normalize(z, dim=-1, eps=TINY), lambda one, others: (one * others).sum(-1))


# Linear centred kernel alignment between the features of models (Kornblith et al. 2019).
#
#     CKA(X, Y) = H(X, Y) / √(H(X, X) H(Y, Y)),    H(X, Y) = ‖Xᵀ Y‖_F²  with centred features X (n, d), Y (n, d′)
#
# It is 1 for features that differ by a rotation and a scale, and may compare layers of different widths. With fewer samples
# than features it is biased upwards: two random layers look alike. Debiased, H is the unbiased estimate of Song et al. 2012,
#
#     H(X, Y) = ‖Xᵀ Y‖_F² − n/(n − 2) Σ_i ‖x_i‖² ‖y_i‖² + ‖X‖_F² ‖Y‖_F² / ((n − 1)(n − 2))
#
# whose mean does not depend on n; it can be slightly negative. The error over the data is the infinitesimal jackknife: H is a
# sum over samples of t_i = x_iᵀ (Xᵀ Y) y_i (less the sample's own part), and a sample's weight moves CKA by
# CKA · (2 t_i^XY / H_XY − t_i^XX / H_XX − t_i^YY / H_YY). A bootstrap would not do: repeated samples are alike by
# construction, and look like alignment.


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
                f"the features of model {number} vary over these {n} samples no more than by chance: alignment is not defined"
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
        raise OperandError(f"consistency compares models: expected features of at least two, got {len(tensors)}")
    sizes = sorted({len(x) if x.dim() > 1 else 0 for x in tensors})
    if len(sizes) > 1 or sizes[0] < least:
        shapes = ", ".join(str(tuple(x.shape)) for x in tensors)
        raise OperandError(f"expected features (n, d) of the same n ≥ {least} samples, got shapes {shapes}")
    matrices = [x.double().flatten(1) for x in tensors]
    for number, x in enumerate(matrices):
        if not bool(torch.isfinite(x).all()):
            raise DataError(f"the features of model {number} hold NaN or infinity")
    return [x - x.mean(0) for x in matrices]
