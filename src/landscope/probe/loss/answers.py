"""Which answers of a model are right: the most likely class is the label, or the sign of a yes/no output."""

from __future__ import annotations

import torch
from torch import Tensor

from landscope.core.errors import LossError, NotApplicableError
from landscope.probe.checks import tensor_output
from landscope.probe.loss.losses import Loss
from landscope.probe.loss.targets import IGNORED, class_dimension

__all__ = ["right_answers", "right_labels"]


def right_labels(outputs: Tensor, labels: Tensor, classes: int | None) -> Tensor:
    """Whether each label is answered correctly: by the largest output along the dimension `classes`, or by sign for `None`.

    >>> right_labels(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]), 1)
    tensor([ True, False])
    """
    return (outputs > 0) == (labels > 0.5) if classes is None else outputs.argmax(classes) == labels


def right_answers(loss: Loss, outputs: object, targets: object, samples: int) -> Tensor:
    """1 for each sample whose label is answered correctly, otherwise 0 (n,), in float64; of several labels, the share.

    Outputs that are NaN or infinite are never right, ignored labels do not count. Losses of regression have no answers.

    >>> from landscope.probe.loss.criteria import resolve_loss
    >>> right_answers(resolve_loss("cross_entropy"), torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]), 2)
    tensor([1., 0.], dtype=torch.float64)
    """
    z, y = tensor_output(outputs), targets
    if loss.likelihood == "gaussian" or not isinstance(y, Tensor):
        raise NotApplicableError(f"with the loss {loss.name!r} there are no classes to be right about")
    if loss.likelihood == "bernoulli" and y.numel() == z.numel():
        right, counted = (
            right_labels(z, y.reshape(z.shape), None) & torch.isfinite(z),
            torch.ones_like(z, dtype=torch.bool),
        )
    else:
        if y.is_floating_point():
            raise NotApplicableError(f"accuracy needs class labels, got targets of {y.dtype}")
        try:
            dim = class_dimension(z, y, loss.classes_last)
        except LossError as error:
            raise NotApplicableError(f"accuracy needs a label for every prediction: {error}") from error
        counted = y != IGNORED
        right = right_labels(z, y, dim) & counted & torch.isfinite(z).all(dim)
    right, counted = (t.double().reshape(samples, -1).sum(1) for t in (right, counted))
    return right / counted.clamp(min=1)
