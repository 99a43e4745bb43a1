"""A frozen classifier to try inputs on: a private copy of a model, so that the original stays untouched."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from landscope.core.errors import DataError, EmptyDataError, LabelRangeError, OperandError
from landscope.core.memory import available_bytes
from landscope.core.shared_state import Precision
from landscope.probe.checks import tensor_output
from landscope.probe.conditions import measuring
from landscope.probe.frozen import frozen_copy, is_recurrent, unwrap
from landscope.probe.probe import Probe

Objective = Callable[[Tensor, Tensor], Tensor]
"""(logits (n, C), labels (n,)) → what an attack raises, sample by sample (n,)."""


@dataclass(frozen=True, eq=False)
class Classifier:
    """A model in eval mode with fixed parameters; where, how precisely and in what batches it computes.

    `precision="tf32"` is faster on a GPU and hardly ever changes a prediction. `batch_size` bounds memory; no result depends on
    it.
    """

    model: nn.Module
    device: torch.device
    dtype: torch.dtype
    temperature: float = 1.0
    precision: Precision = "highest"
    batch_size: int | None = None
    prepare: Callable[[Tensor], Tensor] | None = None
    """From images as they are attacked, within [0, 1], to what the model takes; differentiable."""

    def __post_init__(self) -> None:
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")

    @classmethod
    def of(
        cls,
        model: nn.Module | Probe | Classifier,
        device: torch.device | str | None = None,
        precision: Precision = "highest",
        batch_size: int | None = None,
    ) -> Classifier:
        """A copy of a model, on its own device where none is named, or the frozen model that a probe holds already."""
        if isinstance(model, Classifier):
            return model
        if isinstance(model, Probe):
            if model.mode != "eval":
                raise OperandError("robustness is measured in eval mode: build the probe with mode='eval'")
            return cls(model.modules[""], model.device, model.dtype, model.temperature, precision, batch_size)
        inner = unwrap(model)
        present = next((p.device for p in inner.parameters()), torch.device("cpu"))
        home = present if device is None else torch.device(device)
        twin, _ = frozen_copy(inner, "eval", None, home)
        dtype = next((p.dtype for p in twin.parameters() if p.is_floating_point()), torch.float32)
        return cls(twin, home, dtype, precision=precision, batch_size=batch_size)

    def evaluating(self) -> AbstractContextManager[None]:
        """The context to evaluate and differentiate in; global random state is preserved."""
        return measuring(self.device, self.precision, is_recurrent(self.model))

    def parts(self, n: int, usual: int) -> Iterator[slice]:
        """Consecutive slices of n samples, of the batch size or else of the usual one.

        >>> list(Classifier.of(nn.Linear(2, 2)).parts(5, 3))
        [slice(0, 3, None), slice(3, 5, None)]
        """
        size = self.batch_size or usual
        for start in range(0, n, size):
            yield slice(start, min(start + size, n))

    def held(self, x: Tensor) -> Tensor:
        """All inputs where the model is, if they fit there with room to spare; otherwise where they are."""
        fits = x.numel() * x.element_size() < available_bytes(self.device) // 8
        return x.to(self.device) if fits else x

    def ready(self, x: Tensor) -> Tensor:
        """Inputs where the model is, and in its precision."""
        return x.detach().to(self.device, self.dtype)

    def logits(self, x: Tensor) -> Tensor:
        """Logits (n, C) of a batch."""
        taken = (
            x.clone() if self.prepare is None else self.prepare(x).clone()
        )  # a forward pass may write into its input
        z = tensor_output(self.model(taken)) / self.temperature
        if z.dim() != 2 or z.shape[0] != len(x) or z.shape[1] < 2:
            raise OperandError(
                f"expected logits ({len(x)}, C) of at least two classes, got {tuple(z.shape)} from the model"
            )
        return z

    def judged(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """By how much each sample of a batch is classified wrongly (`margin`), and whether it is classified correctly."""
        with torch.no_grad():
            z = self.logits(x)
            return margin(z, y), z.argmax(1) == y

    def slopes(self, x: Tensor, y: Tensor, objective: Objective) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The result of `judged`, the objective of each sample, and its gradient with respect to the sample's input."""
        point = x.detach().requires_grad_()
        z = self.logits(point)
        values = objective(z, y)
        (slope,) = torch.autograd.grad(values.sum(), point)
        z = z.detach()
        return margin(z, y), z.argmax(1) == y, values.detach(), slope


def margin(z: Tensor, y: Tensor) -> Tensor:
    """The largest logit of a wrong class less that of the true one: positive where the sample is classified wrongly.

    >>> margin(torch.tensor([[3.0, 1.0, 2.0]]), torch.tensor([0]))
    tensor([-1.])
    """
    true = z.gather(1, y[:, None])[:, 0]
    return z.scatter(1, y[:, None], -math.inf).amax(1) - true


def checked_inputs(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs (n, …) and integer labels (n,), detached; refused where they do not fit together.

    >>> checked_inputs(torch.rand(3, 2), torch.tensor([0, 1]))
    Traceback (most recent call last):
    landscope.core.errors.OperandError: expected one label per input, got inputs (3, 2) and labels (2,)
    """
    if x.dim() < 2 or y.shape != x.shape[:1]:
        raise OperandError(f"expected one label per input, got inputs {tuple(x.shape)} and labels {tuple(y.shape)}")
    if not len(x):
        raise EmptyDataError("there are no samples")
    if y.is_floating_point() or y.dtype == torch.bool or bool((y < 0).any()):
        raise LabelRangeError(f"class labels must be integers from 0 on, got {y.dtype}, smallest {float(y.min()):g}")
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        raise DataError("the inputs hold NaN or infinity")
    with torch.inference_mode(False):  # autograd saves no inference tensors
        x, y = (t.clone() if t.is_inference() else t.detach() for t in (x, y))
        return x, y.long()
