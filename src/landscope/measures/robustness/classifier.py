"""A frozen classifier to try inputs on: a private copy of a model, so that the given one stays untouched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from landscope.core.checks import tensor_output
from landscope.core.errors import DataError, EmptyDataError, LabelRangeError, OperandError
from landscope.core.evaluation import Precision, measuring
from landscope.core.frozen import frozen_copy, is_recurrent, unwrap
from landscope.core.memory import available_bytes
from landscope.core.probe import Probe

__all__ = ["Classifier", "checked_inputs", "parts"]


@dataclass(frozen=True, eq=False)
class Classifier:
    """A model in eval mode with fixed parameters, where and in which precision it computes."""

    model: nn.Module
    device: torch.device
    dtype: torch.dtype
    temperature: float = 1.0

    @classmethod
    def of(cls, model: nn.Module | Probe, device: torch.device | str | None = None) -> Classifier:
        """A copy of a model, or the frozen model that a probe holds already."""
        if isinstance(model, Probe):
            if model.mode != "eval":
                raise OperandError("robustness is about the model as it predicts: build the probe with mode='eval'")
            return cls(model.modules[""], model.device, model.dtype, model.temperature)
        inner = unwrap(model)
        present = next((p.device for p in inner.parameters()), torch.device("cpu"))
        home = present if device is None else torch.device(device)
        twin, _ = frozen_copy(inner, "eval", None, home)
        dtype = next((p.dtype for p in twin.parameters() if p.is_floating_point()), torch.float32)
        return cls(twin, home, dtype)

    def evaluating(self, precision: Precision = "highest") -> AbstractContextManager[None]:
        """The context to evaluate and differentiate in; global random state is preserved."""
        return measuring(self.device, precision, is_recurrent(self.model))

    def held(self, x: Tensor) -> Tensor:
        """All inputs where the model is, if they fit there with room to spare; otherwise where they are."""
        fits = x.numel() * x.element_size() < available_bytes(self.device) // 8
        return x.to(self.device) if fits else x

    def ready(self, x: Tensor) -> Tensor:
        """Inputs where the model is, and in its precision."""
        return x.detach().to(self.device, self.dtype)

    def logits(self, x: Tensor) -> Tensor:
        """Logits (n, C) of a batch."""
        z = tensor_output(self.model(x.clone())) / self.temperature  # a forward pass may write into its input
        if z.dim() != 2 or z.shape[0] != len(x) or z.shape[1] < 2:
            raise OperandError(
                f"logits ({len(x)}, C) of at least two classes were expected; the model gave {tuple(z.shape)}"
            )
        return z

    def judged(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of each sample of a batch, and whether it is classified rightly."""
        with torch.no_grad():
            z = self.logits(x)
            return F.cross_entropy(z, y, reduction="none"), z.argmax(1) == y

    def slopes(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What `judged` gives, and the gradient of each sample's loss with respect to its input."""
        point = x.detach().requires_grad_()
        z = self.logits(point)
        losses = F.cross_entropy(z, y, reduction="none")
        (slope,) = torch.autograd.grad(losses.sum(), point)
        return losses.detach(), z.detach().argmax(1) == y, slope


def checked_inputs(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs (n, …) and whole-numbered labels (n,), detached; refused where they cannot be meant.

    >>> checked_inputs(torch.rand(3, 2), torch.tensor([0, 1]))
    Traceback (most recent call last):
    landscope.core.errors.OperandError: one label per input was expected; inputs (3, 2) and labels (2,) came
    """
    if x.dim() < 2 or y.shape != x.shape[:1]:
        raise OperandError(
            f"one label per input was expected; inputs {tuple(x.shape)} and labels {tuple(y.shape)} came"
        )
    if not len(x):
        raise EmptyDataError("there are no samples")
    if y.is_floating_point() or y.dtype == torch.bool or bool((y < 0).any()):
        raise LabelRangeError(f"class labels must be integers from 0 on, got {y.dtype}, smallest {float(y.min()):g}")
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        raise DataError("the inputs hold NaN or infinity")
    return x.detach(), y.detach().long()


def parts(n: int, batch_size: int) -> Iterator[slice]:
    """Consecutive slices of at most `batch_size`.

    >>> list(parts(5, 3))
    [slice(0, 3, None), slice(3, 5, None)]
    """
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    for start in range(0, n, batch_size):
        yield slice(start, min(start + batch_size, n))
