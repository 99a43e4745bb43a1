"""Which answers of a model are right: the most likely class is the label, or the sign of a yes/no output.

Where samples have many labels of many classes (a language model's 50,000 for each token), outputs are too large to keep, and the
few numbers of each label that scores and calibration are made of take their place.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from landscope.core.errors import LossError, ModelError, NotApplicableError
from landscope.probe.checks import tensor_output
from landscope.probe.loss.losses import Loss
from landscope.probe.loss.targets import IGNORED, class_dimension

AT_ONCE = 2**24
"""Probabilities that are computed at once."""


def predictions_in(outputs: object) -> Tensor:
    """The tensor of predictions in what a model returned; not applicable where a loss alone knows which of it that is.

    >>> predictions_in((torch.zeros(2, 3), "more")).shape
    torch.Size([2, 3])
    """
    try:
        return tensor_output(outputs)
    except ModelError as error:
        raise NotApplicableError(
            f"predictions are needed: one tensor, or `logits` among the outputs; the model returns a {type(outputs).__name__}"
        ) from error


def right_labels(outputs: Tensor, labels: Tensor, classes: int | None) -> Tensor:
    """Whether each label is answered correctly: by the largest output along the dimension `classes`, or by sign for `None`.

    >>> right_labels(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]), 1)
    tensor([ True, False])
    """
    return (outputs > 0) == (labels > 0.5) if classes is None else outputs.argmax(classes) == labels


def right_answers(loss: Loss, outputs: object, targets: object, samples: int) -> Tensor:
    """1 for each sample whose label is answered correctly, otherwise 0 (n,), in float64; of several labels, the share.

    Where the loss is one mean over all labels, that is weighed as it is there: the mean over samples is the share of all labels.
    Outputs that are NaN or infinite are never right, ignored labels do not count. Losses of regression have no answers.

    >>> from landscope.probe.loss.criteria import resolve_loss
    >>> right_answers(resolve_loss("cross_entropy"), torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]), 2)
    tensor([1., 0.], dtype=torch.float64)
    """
    if loss.unexplained:
        raise NotApplicableError(f"logits that the loss is a likelihood of are needed; {loss.unexplained}")
    z, y = predictions_in(outputs), targets
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
    share = right / counted.clamp(min=1)
    return share if loss.share is None else share * loss.share(y).to(share)


@dataclass(frozen=True)
class LabelScores:
    """What predictions of k labels are worth, those of n samples one after the other; in float64, on the CPU."""

    counts: Tensor
    """How many labels each sample has that count (n,)."""
    labels: Tensor
    """The labels (k,)."""
    values: Tensor
    """The largest probability, whether it is the label's, the logarithm of the label's, and Σ p² (k, 4)."""


def label_scores(loss: Loss, outputs: object, targets: object) -> LabelScores | None:
    """The scores of samples with several labels of classes each, those that are not ignored; `None` for others.

    >>> from landscope.probe.loss.criteria import resolve_loss
    >>> scores = label_scores(resolve_loss("cross_entropy"), torch.zeros(1, 4, 2), torch.tensor([[3, -100]]))
    >>> scores.counts.tolist(), scores.labels.tolist(), scores.values[0, [0, 3]].tolist()
    ([1], [3], [0.25, 0.25])
    """
    if loss.likelihood != "categorical" or not isinstance(outputs, Tensor) or outputs.dim() < 3:
        return None
    if not isinstance(targets, Tensor) or targets.is_floating_point():
        return None
    rows = outputs.movedim(class_dimension(outputs, targets, loss.classes_last), -1)
    kept = targets != IGNORED
    z, y = rows[kept], targets[kept]
    parts = [_scored(a, b) for a, b in zip(*(t.split(max(1, AT_ONCE // z.shape[1])) for t in (z, y)), strict=True)]
    values = torch.cat(parts) if parts else z.new_zeros(0, 4)
    return LabelScores(kept.flatten(1).sum(1).cpu(), y.cpu(), values.double().cpu())


def _scored(z: Tensor, y: Tensor) -> Tensor:
    log_p = z.log_softmax(1)
    top, chosen = log_p.max(1), log_p.gather(1, y[:, None])[:, 0]
    return torch.stack([top.values.exp(), (top.indices == y).to(z.dtype), chosen, log_p.exp().square().sum(1)], 1)
