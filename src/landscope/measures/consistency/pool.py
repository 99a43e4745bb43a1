"""A pool of models compared pair by pair: the matrix, its mean over pairs, and how far that mean can be trusted.

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

from landscope.core.errors import DataError, OperandError
from landscope.core.estimate import Estimate
from landscope.measures.calibration.scores import Array, as_tensor, checked_logits

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Consistency", "compare_samples", "jackknife_over_models", "stacked_logits"]

CHUNK = 1 << 20
"""Numbers of all models together that are compared at once."""


@dataclass(frozen=True, eq=False)
class Consistency:
    """What comparing all pairs of a pool of models gave.

    `stderr` says what another pool of as many models would change (`None` for two models: one pair tells nothing of that),
    `data_stderr` what another sample of the data would.
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
        reason = (
            "" if self.stderr is not None else "two models are one pair: what another pool would change is not known"
        )
        return Estimate(self.mean, self.stderr or 0.0, self.data_stderr, reason=reason, details=dict(details))

    def interval(self, level: float = 0.95) -> tuple[float, float]:
        """Where the mean over pairs of all models of this kind lies, by Student's t with M − 1 degrees of freedom.

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
    landscope.core.errors.OperandError: all models must be evaluated at the same samples; logits of (3, 2), (4, 2) came
    """
    each = list(logits) if isinstance(logits, Sequence) else list(as_tensor(logits, "logits"))
    if len(each) < 2:
        raise OperandError(f"consistency compares models: at least two were expected, {len(each)} came")
    checked = [checked_logits(one) for one in each]
    shapes = list(dict.fromkeys(tuple(one.shape) for one in checked))
    if len(shapes) > 1:
        came = ", ".join(map(str, shapes))
        raise OperandError(f"all models must be evaluated at the same samples; logits of {came} came")
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
