"""What every calibration measure starts from: checked logits and labels, in float64, in an order of their own.

Logits (n, C) and labels (n,) may be tensors or NumPy arrays of any real precision, on any device; they are computed with
in float64 on the CPU. What would make a number meaningless is refused: no samples, NaN or infinity, labels that name no
class. The samples are sorted by label, correctness and confidence, so that no result, a seeded bootstrap included,
depends on the order or the batches in which they came.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscope.core.errors import DataError, EmptyDataError, LabelRangeError, OperandError

__all__ = ["Array", "Scores", "as_tensor", "checked_logits"]

Array = Tensor | NDArray[np.generic]
"""A tensor or a NumPy array."""


@dataclass(frozen=True)
class Scores:
    """Log-probabilities (n, C) and labels (n,) of n samples, sorted.

    >>> scores = Scores.of(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([1, 0]))
    >>> scores.correct, scores.confidence
    (tensor([1., 0.], dtype=torch.float64), tensor([0.8808, 0.5000], dtype=torch.float64))
    """

    log_p: Tensor
    labels: Tensor

    @classmethod
    def of(cls, logits: Array, labels: Array) -> Scores:
        """Checked and sorted; ties between classes are predictions of the first of them."""
        log_p = checked_logits(logits).log_softmax(1)
        y = _checked_labels(labels, *log_p.shape)
        top, guess = log_p.max(1).values, log_p.argmax(1)
        order = torch.from_numpy(np.lexsort((top.numpy(), (guess == y).numpy(), y.numpy())))
        return cls(log_p[order], y[order])

    @property
    def p(self) -> Tensor:
        """Probabilities (n, C)."""
        return self.log_p.exp()

    @property
    def confidence(self) -> Tensor:
        """The largest probability of each sample (n,)."""
        return self.log_p.max(1).values.exp()

    @property
    def correct(self) -> Tensor:
        """1 where the most probable class is the label, otherwise 0 (n,)."""
        return (self.log_p.argmax(1) == self.labels).double()

    @property
    def one_hot(self) -> Tensor:
        """The labels as rows of zeros and a one (n, C)."""
        return torch.nn.functional.one_hot(self.labels, self.log_p.shape[1]).double()


def checked_logits(logits: Array) -> Tensor:
    """Logits (n, C), C ≥ 2, finite, as float64 on the CPU.

    >>> checked_logits(torch.zeros(3, 1))
    Traceback (most recent call last):
    landscope.core.errors.OperandError: logits (n, C) of at least two classes were expected; (3, 1) came. ...
    """
    z = as_tensor(logits, "logits")
    if z.dim() != 2 or (z.shape[1] < 2 and len(z)):
        raise OperandError(
            f"logits (n, C) of at least two classes were expected; {tuple(z.shape)} came. One logit z per sample of a yes/no "
            f"model becomes two with torch.stack([torch.zeros_like(z), z], 1)."
        )
    if not len(z):
        raise EmptyDataError("there are no samples: logits of shape (0, C) came, and a mean over nothing has no value")
    if not z.is_floating_point():
        raise OperandError(f"logits must be real numbers, got {z.dtype}; class labels are the second argument")
    z = z.double()
    bad = ~torch.isfinite(z).all(1)
    if bool(bad.any()):
        raise DataError(
            f"{int(bad.sum())} of {len(z)} samples have NaN or infinite logits (the first is number {int(bad.nonzero()[0])}). "
            f"Their probabilities are not defined: look for a diverged model or overflow in half precision."
        )
    return z


def _checked_labels(labels: Array, n: int, classes: int) -> Tensor:
    y = as_tensor(labels, "labels")
    if y.shape == (n, classes) and y.dim() == 2:
        raise OperandError(
            f"one class label per sample (n,) was expected; {tuple(y.shape)} came. For label distributions use the human_… "
            f"functions of landscope.measures.calibration."
        )
    if y.shape != (n,):
        raise OperandError(f"labels of shape ({n},) were expected, one per row of logits; {tuple(y.shape)} came")
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise LabelRangeError(f"class labels must be integers, got {y.dtype}; convert them with labels.long()")
    y = y.long()
    low, high = int(y.min()), int(y.max())
    if low < 0 or high >= classes:
        raise LabelRangeError(
            f"labels run from {low} to {high}, but there are {classes} logits per sample (classes 0 … {classes - 1})"
        )
    return y


def as_tensor(values: Array, what: str) -> Tensor:
    """A tensor on the CPU that shares nothing with autograd."""
    if isinstance(values, np.ndarray) and values.dtype.kind in "fiub":
        return torch.from_numpy(values.astype(values.dtype.newbyteorder("="), order="C", copy=True))
    if isinstance(values, Tensor):
        return values.detach().cpu()
    kind = f"an array of {values.dtype}" if isinstance(values, np.ndarray) else f"a {type(values).__name__}"
    raise OperandError(f"{what} must be a tensor or a NumPy array of numbers, got {kind}")
