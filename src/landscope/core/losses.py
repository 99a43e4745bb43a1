"""Losses whose reduction is known: a loss per sample, or a mean or a sum over samples.

Every number of Landscope is a mean over samples, so it must know what a loss function returns. Named losses are per
sample; a `torch.nn` criterion is read by its `reduction`; any other function returns one number per sample, or one
number for the batch, in which case halves of a batch tell whether it is a mean or a sum over samples. A loss that is
neither (class-weighted means, batch-wise contrasts) is refused: its value would depend on the batch size.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from landscope.core.errors import LabelRangeError, LossError
from landscope.core.registry import Registry

__all__ = ["LOSSES", "Likelihood", "Loss", "resolve_loss"]

Likelihood = Literal["categorical", "bernoulli", "gaussian"]
Reduction = Literal["per_sample", "mean", "sum", "unknown"]

LOSSES = Registry["Loss"]("loss")


@dataclass(frozen=True)
class Loss:
    """A loss function with its reduction made explicit.

    `function(outputs, targets)`, or `function(outputs, batch)` with `takes="batch"`, returns one loss per sample
    (`reduction="per_sample"`), or their mean or sum over the batch. `likelihood` names the distribution whose negative
    log density the loss is (up to constants, averaged over the predictions of a sample): the Fisher matrix needs it.

    >>> Loss(lambda z, y: (z - y).abs().mean(), reduction="mean")
    Loss('<lambda>', reduction='mean')
    """

    function: Callable[..., Tensor]
    reduction: Reduction = "unknown"
    takes: Literal["targets", "batch"] = "targets"
    likelihood: Likelihood | None = None
    name: str = ""
    structured: bool = False
    """Whether the function wants what the model returned (a tuple, a dict), not only its tensor of outputs."""
    summed: bool = False
    """Whether the predictions of a sample are added up; the likelihoods average them, and hold for one prediction only."""

    def __post_init__(self) -> None:
        if self.reduction not in ("per_sample", "mean", "sum", "unknown"):
            raise LossError(f"reduction must be 'per_sample', 'mean' or 'sum', got {self.reduction!r}")
        if self.takes not in ("targets", "batch"):
            raise LossError(f"takes must be 'targets' or 'batch', got {self.takes!r}")
        if not self.name:
            object.__setattr__(self, "name", getattr(self.function, "__name__", type(self.function).__name__))

    def __repr__(self) -> str:
        return f"Loss({self.name!r}, reduction={self.reduction!r})"

    def sum(self, outputs: object, second: object, size: int) -> Tensor:
        """The sum of the loss over the `size` samples of a batch; `second` is what `takes` names."""
        value = self.function(outputs, second)
        if self.reduction == "per_sample":
            return value.sum()
        return value * size if self.reduction == "mean" else value


def _aligned(outputs: Tensor, targets: object, loss: str) -> Tensor:
    """Targets in the shape and type of the outputs; (n,) and (n, 1) are the same, anything else must match.

    Broadcasting (n, 1) against (n,) would compare every sample with every other one.
    """
    if not isinstance(targets, Tensor):
        raise LossError(f"{loss} needs a tensor of targets, got {type(targets).__name__}")
    if targets.shape != outputs.shape:
        if targets.numel() != outputs.numel() or targets.shape[:1] != outputs.shape[:1]:
            raise LossError(
                f"{loss} compares outputs and targets of one shape; got outputs {tuple(outputs.shape)} and targets "
                f"{tuple(targets.shape)}"
            )
        targets = targets.reshape(outputs.shape)
    return targets.to(outputs.dtype)


def class_dimension(outputs: Tensor, targets: Tensor) -> int:
    """Which dimension of the outputs holds the classes: 1 as in torch, or the last one as in language models.

    >>> import torch
    >>> class_dimension(torch.zeros(2, 5, 7), torch.zeros(2, 7)), class_dimension(torch.zeros(2, 7, 5), torch.zeros(2, 7))
    (1, 2)
    """
    if outputs.dim() >= 2 and outputs.shape[:1] + outputs.shape[2:] == targets.shape:
        return 1
    if outputs.dim() >= 2 and outputs.shape[:-1] == targets.shape:
        return outputs.dim() - 1
    if outputs.shape == targets.shape and targets.is_floating_point():
        return 1
    raise LossError(
        f"cross_entropy needs outputs (n, C) with labels (n,), or (n, C, …) with (n, …); got outputs "
        f"{tuple(outputs.shape)} and targets {tuple(targets.shape)}"
    )


def _require_labels(targets: object) -> Tensor:
    if not isinstance(targets, Tensor):
        raise LossError(f"cross_entropy needs a tensor of targets, got {type(targets).__name__}")
    return targets


def label_classes(outputs: Tensor, targets: object) -> int | None:
    """C, the number of classes that labels may name; `None` where the targets are probabilities."""
    targets = _require_labels(targets)
    classes = outputs.shape[class_dimension(outputs, targets)]
    if not targets.is_floating_point():
        return int(classes)
    if targets.shape == outputs.shape:
        return None
    raise LabelRangeError(
        f"class labels must be integers, got {targets.dtype} of shape {tuple(targets.shape)}. Convert them with "
        f"targets.long(), or use loss='mse' for regression."
    )


def check_label_range(classes: int, targets: object) -> None:
    """Refuse class labels outside 0 … C−1; −100 marks a position to ignore, as in torch."""
    labels = _require_labels(targets)
    present = labels[labels != -100] if labels.dim() > 1 else labels
    if not present.numel():
        return
    low, high = int(present.min()), int(present.max())
    if low < 0 or high >= classes:
        remedy = (
            "With one output per sample use loss='binary_cross_entropy'."
            if classes == 1
            else "Map the labels to 0 … C−1, or give the model more outputs."
        )
        raise LabelRangeError(
            f"labels run from {low} to {high}, but the model has {classes} outputs (classes 0 … {classes - 1}). {remedy}"
        )


def cross_entropy(outputs: Tensor, targets: object) -> Tensor:
    """−log softmax(z)_y per sample, averaged over the positions of a sample if it has several.

    Labels are class indices, or probabilities of the outputs' shape. Positions labelled −100 are ignored.

    >>> import torch
    >>> cross_entropy(torch.zeros(1, 2), torch.tensor([1]))
    tensor([0.6931])
    """
    targets = _require_labels(targets)
    dim = class_dimension(outputs, targets)
    log_p = outputs.log_softmax(dim)
    if targets.is_floating_point():
        return _mean_per_sample(-(log_p * targets.to(log_p.dtype)).sum(dim))
    labels = targets.long()
    return _mean_over_kept(-log_p.gather(dim, labels.clamp(min=0).unsqueeze(dim)).squeeze(dim), labels)


def _mean_per_sample(values: Tensor) -> Tensor:
    return values if values.dim() == 1 else values.flatten(1).mean(1)


def _mean_over_kept(values: Tensor, labels: Tensor) -> Tensor:
    """The mean over those positions of a sample that are not labelled −100."""
    if values.dim() == 1:
        return values
    kept = (labels != -100).to(values.dtype).flatten(1)
    return (values.flatten(1) * kept).sum(1) / kept.sum(1).clamp(min=1)


def mse(outputs: Tensor, targets: object) -> Tensor:
    """(z − y)², averaged over the outputs of a sample.

    >>> import torch
    >>> mse(torch.tensor([[1.0], [3.0]]), torch.tensor([1.0, 1.0]))
    tensor([0., 4.])
    """
    return _mean_per_sample((outputs - _aligned(outputs, targets, "mse")).square())


def binary_cross_entropy(outputs: Tensor, targets: object) -> Tensor:
    """Log-loss of independent yes/no outputs given as logits, averaged over the outputs of a sample.

    >>> import torch
    >>> binary_cross_entropy(torch.zeros(1, 1), torch.tensor([1]))
    tensor([0.6931])
    """
    y = _aligned(outputs, targets, "binary_cross_entropy")
    return _mean_per_sample(F.softplus(outputs) - outputs * y)


def exponential(outputs: Tensor, targets: object) -> Tensor:
    """exp(−y z) with y = ±1, averaged over the outputs of a sample (the loss of Granziol 2020's deep linear example).

    >>> import torch
    >>> exponential(torch.zeros(1, 1), torch.tensor([1.0]))
    tensor([1.])
    """
    return _mean_per_sample((-outputs * _aligned(outputs, targets, "exponential")).exp())


def dice(outputs: Tensor, targets: object) -> Tensor:
    """1 − 2 Σ p y / (Σ p + Σ y) per sample, for occupancies p in [0, 1] (the soft Dice loss of Milletari et al. 2016).

    Two empty shapes agree: their loss is 0.

    >>> import torch
    >>> dice(torch.tensor([[1.0, 0.0], [1.0, 1.0]]), torch.tensor([[1.0, 0.0], [1.0, 0.0]]))
    tensor([0.0000, 0.3333])
    """
    y = _aligned(outputs, targets, "dice").flatten(1)
    p = outputs.flatten(1)
    tiny = 1e-6
    return 1 - (2 * (p * y).sum(1) + tiny) / (p.sum(1) + y.sum(1) + tiny)


for _function, _likelihood in (
    (cross_entropy, "categorical"),
    (binary_cross_entropy, "bernoulli"),
    (mse, "gaussian"),
    (exponential, None),
    (dice, None),
):
    LOSSES.register(_function.__name__)(Loss(_function, "per_sample", likelihood=_likelihood))  # type: ignore[arg-type]


def resolve_loss(loss: str | Loss | nn.Module | Callable[..., Tensor]) -> Loss:
    """The `Loss` behind a name, a `Loss`, a `torch.nn` criterion or a function of (outputs, targets or batch).

    >>> import torch
    >>> resolve_loss(torch.nn.MSELoss()).name, resolve_loss("cross_entropy").likelihood
    ('mse', 'categorical')
    """
    if isinstance(loss, str):
        return LOSSES[loss]
    if isinstance(loss, Loss):
        return loss
    known = _of_criterion(loss)
    if known is not None:
        return _added_up(known) if getattr(loss, "reduction", None) == "sum" else known
    if not callable(loss):
        raise LossError(f"loss must be a name ({', '.join(LOSSES)}), a Loss or a function, got {type(loss).__name__}")
    resolved = Loss(loss, takes=_second_argument(loss), structured=not isinstance(loss, nn.Module))
    reduction = getattr(loss, "reduction", None)
    declared = (
        {"none": "per_sample", "mean": "mean", "sum": "sum"}.get(reduction) if isinstance(reduction, str) else None
    )
    return replace(resolved, reduction=declared) if declared else resolved  # type: ignore[arg-type]


def _of_criterion(loss: object) -> Loss | None:
    """The loss per sample of a `torch.nn` criterion that is known by name; `None` for others and for weighted ones."""
    if type(loss) is nn.MSELoss:
        return LOSSES["mse"]
    if type(loss) is nn.BCEWithLogitsLoss and loss.weight is None and loss.pos_weight is None:
        return LOSSES["binary_cross_entropy"]
    if type(loss) is nn.CrossEntropyLoss and loss.weight is None and loss.ignore_index == -100:
        if loss.label_smoothing == 0:
            return LOSSES["cross_entropy"]
        smoothing = loss.label_smoothing

        def smoothed(outputs: Tensor, targets: object) -> Tensor:
            return (1 - smoothing) * cross_entropy(outputs, targets) + smoothing * _uniform_cross_entropy(
                outputs, targets
            )

        return Loss(smoothed, "per_sample", likelihood="categorical", name=f"cross_entropy(smoothing={smoothing})")
    return None


def _uniform_cross_entropy(outputs: Tensor, targets: object) -> Tensor:
    labels = _require_labels(targets)
    dim = class_dimension(outputs, labels)
    return _mean_over_kept(-outputs.log_softmax(dim).mean(dim), labels)


def _added_up(loss: Loss) -> Loss:
    """The loss with the predictions of a sample added up, as criteria with `reduction="sum"` do."""

    def function(outputs: Tensor, targets: object) -> Tensor:
        count: Tensor | int = _predictions(loss, outputs, targets)
        if loss.likelihood == "categorical" and isinstance(targets, Tensor) and targets.dim() > 1:
            count = count if targets.is_floating_point() else (targets != -100).flatten(1).sum(1)
        return loss.function(outputs, targets) * count

    return replace(loss, function=function, name=f"{loss.name}(sum)", summed=True)


def several_predictions(loss: Loss, outputs: Tensor, targets: object) -> bool:
    """Whether a sample has more than one prediction, so that their mean and their sum differ.

    >>> import torch
    >>> several_predictions(LOSSES["mse"], torch.zeros(2, 5), torch.zeros(2, 5))
    True
    >>> several_predictions(LOSSES["cross_entropy"], torch.zeros(2, 5), torch.tensor([0, 4]))
    False
    """
    return _predictions(loss, outputs, targets) > 1


def _predictions(loss: Loss, outputs: Tensor, targets: object) -> int:
    classes = 1
    if loss.likelihood == "categorical":
        classes = outputs.shape[class_dimension(outputs, _require_labels(targets))]
    return outputs.numel() // (outputs.shape[0] * classes)


def _second_argument(loss: Callable[..., Tensor]) -> Literal["targets", "batch"]:
    """A second parameter called `batch` asks for the whole batch, any other name for the targets."""
    try:
        parameters = list(inspect.signature(loss).parameters.values())
    except (TypeError, ValueError):
        return "targets"
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return "batch" if len(positional) > 1 and positional[1].name == "batch" else "targets"
