"""What every calibration measure starts from: checked logits and labels, in float64, in an order of their own.

Logits (n, C) and labels (n,) may be tensors or NumPy arrays of any real precision, on any device; they are computed with
in float64 on the CPU. A logit of −∞ is a class that is masked out: its probability is 0. In place of logits, all functions
take `probabilities(p)`. What would make a number meaningless is refused: no samples, NaN or +∞, a sample without any possible
class, labels that name no class. The samples are sorted by label, correctness and confidence, so that no result, a seeded
bootstrap included, depends on the order or the batches in which they came.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscope.core.errors import DataError, EmptyDataError, LabelRangeError, OperandError

__all__ = ["Array", "Logits", "Probabilities", "Scores", "as_tensor", "checked_logits", "predicted", "probabilities"]

Array = Tensor | NDArray[np.generic]
"""A tensor or a NumPy array."""

SUM_TOLERANCE = 1e-3
"""By how much the probabilities of a sample may miss 1: values that were stored with a few decimals do."""


@dataclass(frozen=True, eq=False)
class Probabilities:
    """Checked probabilities (n, C) in float64, as `probabilities` makes them."""

    p: Tensor


Logits = Array | Probabilities
"""What calibration functions take: logits, or probabilities that are marked as such."""


def probabilities(p: Array) -> Probabilities:
    """Probabilities (n, C) in place of logits, for every function of calibration: rows that add up to 1, none negative.

    They are used as they are, so that a confidence on the edge of a bin stays there.

    >>> from landscope.measures.calibration import ece
    >>> ece(probabilities(torch.tensor([[0.75, 0.25], [0.75, 0.25]])), torch.tensor([0, 1])).value
    0.25
    >>> probabilities(torch.tensor([[2.0, 0.0]]))
    Traceback (most recent call last):
    landscope.core.errors.DataError: the probabilities of 1 of 1 samples do not add up to 1 (number 0: 2). ...
    """
    given = as_tensor(p, "probabilities")
    if given.dim() != 2 or (given.shape[1] < 2 and len(given)):
        raise OperandError(
            f"expected probabilities (n, C) of at least two classes, got shape {tuple(given.shape)}. One probability p per "
            f"sample of a yes/no model becomes two with torch.stack([1 - p, p], 1)."
        )
    if not len(given):
        raise EmptyDataError(
            "there are no samples: got probabilities of shape (0, C), and a mean over nothing has no value"
        )
    if not given.is_floating_point():
        raise OperandError(
            f"probabilities must be real numbers, got {given.dtype}; class labels are the second argument"
        )
    tolerance = max(SUM_TOLERANCE, 2 * torch.finfo(given.dtype).eps)
    exact = given.double()
    _refuse_rows(~torch.isfinite(exact).all(1), exact, "hold NaN or infinity")
    _refuse_rows((exact < 0).any(1), exact, "hold negative numbers")
    _refuse_rows((exact.sum(1) - 1).abs() > tolerance, exact, "do not add up to 1")
    return Probabilities(exact)


def _refuse_rows(bad: Tensor, p: Tensor, what: str) -> None:
    if bool(bad.any()):
        first = int(bad.nonzero()[0])
        raise DataError(
            f"the probabilities of {int(bad.sum())} of {len(p)} samples {what} (number {first}: {float(p[first].sum()):.6g}). "
            f"Pass logits as they are, without probabilities(…); divide probabilities by their sum over classes."
        )


@dataclass(frozen=True)
class Scores:
    """Probabilities (n, C), their logarithms and labels (n,) of n samples, sorted.

    >>> scores = Scores.of(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), torch.tensor([1, 0]))
    >>> scores.correct, scores.confidence
    (tensor([1., 0.], dtype=torch.float64), tensor([0.8808, 0.5000], dtype=torch.float64))
    """

    p: Tensor
    log_p: Tensor
    labels: Tensor

    @classmethod
    def of(cls, logits: Logits, labels: Array) -> Scores:
        """Checked and sorted; ties between classes are predictions of the first of them."""
        p, log_p = predicted(logits)
        y = _checked_labels(labels, *log_p.shape)
        top, guess = log_p.max(1).values, log_p.argmax(1)
        order = torch.from_numpy(np.lexsort((top.numpy(), (guess == y).numpy(), y.numpy())))
        return cls(p[order], log_p[order], y[order])

    @property
    def confidence(self) -> Tensor:
        """The largest probability of each sample (n,)."""
        return self.p.max(1).values

    @property
    def correct(self) -> Tensor:
        """1 where the most probable class is the label, otherwise 0 (n,)."""
        return (self.log_p.argmax(1) == self.labels).double()

    @property
    def one_hot(self) -> Tensor:
        """The labels as rows of zeros and a one (n, C)."""
        return torch.nn.functional.one_hot(self.labels, self.log_p.shape[1]).double()


def predicted(logits: Logits) -> tuple[Tensor, Tensor]:
    """Probabilities and their logarithms, both (n, C); −∞ where a probability is 0."""
    if isinstance(logits, Probabilities):
        return logits.p, logits.p.log()
    log_p = checked_logits(logits).log_softmax(1)
    return log_p.exp(), log_p


def checked_logits(logits: Logits) -> Tensor:
    """Logits (n, C), C ≥ 2, as float64 on the CPU: finite, or −∞ for classes that are masked out, but not for all of them.

    >>> checked_logits(torch.zeros(3, 1))
    Traceback (most recent call last):
    landscope.core.errors.OperandError: logits (n, C) of at least two classes were expected; (3, 1) came. ...
    """
    if isinstance(logits, Probabilities):
        return logits.p.log()
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
    bad = ~torch.isfinite(z.amax(1))  # −∞ for all classes; +∞ or NaN for any
    if bool(bad.any()):
        raise DataError(
            f"{int(bad.sum())} of {len(z)} samples have NaN or infinite logits, or −inf for every class (the first is number "
            f"{int(bad.nonzero()[0])}). Their probabilities are not defined: look for a diverged model or overflow in half "
            f"precision."
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
