"""What targets of classes mean: along which dimension the classes lie, which labels are allowed, which are ignored.

Labels are class indices; −100 marks a position to ignore, as in torch. Targets of the outputs' shape are probabilities of the
classes.
"""

from __future__ import annotations

import torch
from torch import Tensor

from landscope.core.errors import LabelRangeError, LossError
from landscope.core.text import some

IGNORED = -100
"""The label of a position that counts for nothing."""
ROUNDING = 1e-3
"""How far the probabilities of one prediction may be from adding up to one: half precision is off by less."""


def require_labels(targets: object) -> Tensor:
    """The targets as a tensor, refused where they are anything else."""
    if isinstance(targets, Tensor):
        return targets
    what = f"a tuple of {len(targets)}" if isinstance(targets, tuple) else type(targets).__name__
    raise LossError(
        f"cross_entropy needs one tensor of targets, got {what}. Pass a loss of your own for several targets: "
        f"loss=lambda outputs, targets: …"
    )


def class_dimensions(outputs: Tensor, targets: Tensor) -> tuple[int, ...]:
    """Every dimension of the outputs that may hold the classes: 1 as in torch, the last one as in language models.

    >>> class_dimensions(torch.zeros(2, 5, 7), torch.zeros(2, 7)), class_dimensions(torch.zeros(2, 7, 7), torch.zeros(2, 7))
    ((1,), (1, 2))
    """
    if outputs.dim() < 2:
        return ()
    if outputs.shape == targets.shape and targets.is_floating_point():
        return (1,)
    last = outputs.dim() - 1
    found = [1] if outputs.shape[:1] + outputs.shape[2:] == targets.shape else []
    return tuple(found + [last] * (last > 1 and outputs.shape[:-1] == targets.shape))


def class_dimension(outputs: Tensor, targets: Tensor, last: bool = False) -> int:
    """Which dimension of the outputs holds the classes; where two may, the last one if `last`, and 1 as in torch otherwise.

    >>> class_dimension(torch.zeros(2, 5, 7), torch.zeros(2, 7)), class_dimension(torch.zeros(2, 7, 5), torch.zeros(2, 7))
    (1, 2)
    """
    found = class_dimensions(outputs, targets)
    if found:
        return found[-1 if last else 0]
    several = outputs.shape == targets.shape and not targets.is_floating_point()
    remedy = " For several yes/no labels per sample use loss='binary_cross_entropy'." if several else ""
    if targets.shape == (*outputs.shape[:1], 1):
        remedy = " Labels have no dimension of classes: targets.squeeze(1)."
    raise LossError(
        f"cross_entropy needs outputs (n, C) with labels (n,), or (n, C, …) with (n, …); got outputs "
        f"{tuple(outputs.shape)} and targets {tuple(targets.shape)}.{remedy}"
    )


def label_classes(outputs: Tensor, targets: object, last: bool = False) -> int | None:
    """C, the number of classes that labels may name; `None` where the targets are probabilities."""
    targets = require_labels(targets)
    classes = outputs.shape[class_dimension(outputs, targets, last)]
    if not targets.is_floating_point():
        return int(classes)
    if targets.shape == outputs.shape:
        return None
    raise LabelRangeError(
        f"class labels must be integers, got {targets.dtype} of shape {tuple(targets.shape)}. Convert them with "
        f"targets.long(), or use loss='mse' for regression."
    )


def check_label_range(classes: int, targets: object, ignored: int | None = IGNORED) -> None:
    """Refuse class labels outside 0 … C−1 that are not ignored."""
    labels = require_labels(targets)
    present = labels if ignored is None else labels[labels != ignored]
    if not present.numel():
        return
    low, high = int(present.min()), int(present.max())
    if low < 0 or high >= classes:
        remedy = (
            "With one output per sample use loss='binary_cross_entropy'."
            if classes == 1
            else "Map the labels to 0 … C−1, mark positions to ignore with −100, or give the model more outputs."
            if ignored is not None
            else "Map the labels to 0 … C−1, or give the model more outputs."
        )
        outside = [str(int(label)) for label in present.unique() if not 0 <= label < classes]
        raise LabelRangeError(
            f"labels run from {low} to {high}, but the model has {classes} outputs (classes 0 … {classes - 1}); outside are "
            f"{some(outside)}. {remedy}"
        )


def check_probabilities(targets: Tensor) -> None:
    """Refuse weights on the classes (dimension 1) that do not add up to one: labels of several kinds, most often."""
    sums = targets.double().sum(1)
    worst = sums[(sums - 1).abs().argmax()] if sums.dim() == 1 else sums.flatten()[(sums - 1).abs().flatten().argmax()]
    if abs(float(worst) - 1) > ROUNDING:
        raise LossError(
            f"cross_entropy takes class labels, or probabilities that add up to one; those of one prediction add up to "
            f"{float(worst):.4g}. For numbers to predict use loss='mse'; for several yes/no labels per sample use "
            f"loss='binary_cross_entropy'; for weights on the classes pass torch.nn.CrossEntropyLoss() itself."
        )


def kept_labels(targets: object) -> Tensor | None:
    """How many labels of each sample are not ignored (n,), in float64; `None` where the targets are not class labels.

    >>> kept_labels(torch.tensor([[1, -100], [0, 2]]))
    tensor([1., 2.], dtype=torch.float64)
    """
    if not isinstance(targets, Tensor) or targets.is_floating_point() or targets.is_complex() or targets.dim() == 0:
        return None
    return (targets.long() != IGNORED).reshape(len(targets), -1).sum(1, dtype=torch.float64)
