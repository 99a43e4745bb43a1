"""What a user gives as a loss: a name, a criterion of torch, or a function, as a `Loss` that means the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from landscope.core.errors import LossError
from landscope.probe.loss.losses import (
    LOSSES,
    Loss,
    aligned,
    cross_entropy,
    mean_over_kept,
    mean_per_sample,
    predictions,
)
from landscope.probe.loss.own import MODEL
from landscope.probe.loss.targets import IGNORED, class_dimension, kept_labels, require_labels

LossLike = str | Loss | nn.Module | Callable[..., Tensor] | None
"""A name, a `Loss`, a criterion of torch or a function; `None` for the model's own where it has one."""


def resolve_loss(loss: LossLike) -> Loss:
    """The `Loss` behind a name, a `Loss`, a `torch.nn` criterion or a function of (outputs, targets or batch).

    `None` is cross_entropy as far as this can tell: a probe looks for a loss of the model's own first.

    >>> resolve_loss(torch.nn.MSELoss()).name, resolve_loss("cross_entropy").likelihood, resolve_loss(F.mse_loss).name
    ('mse', 'categorical', 'mse')
    """
    if loss is None:
        return LOSSES["cross_entropy"]
    if isinstance(loss, str):
        return MODEL if loss == "model" else LOSSES[loss]
    if isinstance(loss, Loss):
        return loss
    loss = _criterion_of(loss)
    known = _of_criterion(loss)
    if known is not None:
        return known
    if isinstance(loss, type):
        raise LossError(f"loss is the class {loss.__name__}; pass an instance of it: loss={loss.__name__}()")
    if not callable(loss):
        raise LossError(f"loss must be a name ({', '.join(LOSSES)}), a Loss or a function, got {type(loss).__name__}")
    of_torch = isinstance(loss, nn.Module) and type(loss).__module__.startswith("torch.nn.")
    resolved = Loss(loss, takes=_second_argument(loss), structured=not of_torch)
    reduction = getattr(loss, "reduction", None)
    declared = (
        {"none": "per_sample", "mean": "mean", "sum": "sum"}.get(reduction) if isinstance(reduction, str) else None
    )
    return replace(resolved, reduction=declared) if declared else resolved  # type: ignore[arg-type]


_CRITERIA: dict[object, type[nn.Module]] = {
    F.cross_entropy: nn.CrossEntropyLoss,
    F.mse_loss: nn.MSELoss,
    F.nll_loss: nn.NLLLoss,
    F.binary_cross_entropy_with_logits: nn.BCEWithLogitsLoss,
}


def of_log_probabilities(loss: Loss, outputs: object) -> Loss:
    """`NLLLoss` as the cross-entropy that it is where the outputs are log-probabilities, which log-softmax leaves as they are.

    By itself it is linear in them, so that the GGN would be 0 and the Fisher matrix unknown.

    >>> of_log_probabilities(resolve_loss(nn.NLLLoss()), torch.zeros(2, 3).log_softmax(1)).name
    'cross_entropy'
    """
    criterion = loss.function
    if (
        type(criterion) is not nn.NLLLoss
        or _is_changed(criterion)
        or not isinstance(outputs, Tensor)
        or outputs.dim() < 2
    ):
        return loss
    if not bool((outputs.logsumexp(1).abs() < 1e-4).all()):
        return loss
    weight, ignored = criterion.weight, criterion.ignore_index
    return resolve_loss(nn.CrossEntropyLoss(weight, ignore_index=ignored, reduction=criterion.reduction))


def _is_changed(criterion: nn.Module) -> bool:
    """Whether a criterion of torch is not what its class says: another forward, or hooks."""
    return "forward" in vars(criterion) or bool(criterion._forward_hooks or criterion._forward_pre_hooks)


def _criterion_of(loss: Any) -> Any:
    """The criterion that a function of torch is, `functools.partial` with keywords included; anything else as it is.

    >>> _criterion_of(partial(F.cross_entropy, label_smoothing=0.1))
    CrossEntropyLoss()
    """
    settings: dict[str, object] = {}
    function = loss
    if isinstance(loss, partial) and not loss.args:
        function, settings = loss.func, loss.keywords
    kind = _CRITERIA.get(function) if inspect.isfunction(function) else None
    if kind is None:
        return loss
    try:
        return kind(**settings)
    except TypeError:  # a keyword that only the function has
        return loss


def _of_criterion(loss: object) -> Loss | None:
    """The loss per sample of a `torch.nn` criterion that is known; `None` for others, and for one that was changed."""
    if isinstance(loss, nn.Module) and _is_changed(loss):
        return None
    if type(loss) is nn.MSELoss:
        known = LOSSES["mse"]
    elif type(loss) is nn.BCEWithLogitsLoss and loss.weight is None and loss.pos_weight is None:
        known = LOSSES["binary_cross_entropy"]
    elif type(loss) is nn.BCEWithLogitsLoss and loss.weight is None and loss.pos_weight is not None:
        function = partial(_weighted_binary_cross_entropy, pos_weight=loss.pos_weight.detach())
        known = replace(
            LOSSES["binary_cross_entropy"], function=function, likelihood=None, name="binary_cross_entropy(weighted)"
        )
    elif type(loss) is nn.CrossEntropyLoss:
        known = _of_cross_entropy(loss)
    elif isinstance(loss, _ENTRY_BY_ENTRY) and type(loss) in _ENTRY_BY_ENTRY:
        known = Loss(partial(_entry_by_entry, criterion=loss), "per_sample", name=type(loss).__name__)
    else:
        return None
    known = replace(known, known="criterion")
    return _added_up(known) if loss.reduction == "sum" else known


_ENTRY_BY_ENTRY = (nn.HuberLoss, nn.SmoothL1Loss, nn.L1Loss)
"""Criteria that compare every output with its target, and take the mean."""


def _entry_by_entry(
    outputs: Tensor, targets: object, *, criterion: nn.HuberLoss | nn.SmoothL1Loss | nn.L1Loss
) -> Tensor:
    y = aligned(outputs, targets, type(criterion).__name__)
    if isinstance(criterion, nn.HuberLoss):
        return mean_per_sample(F.huber_loss(outputs, y, reduction="none", delta=criterion.delta))
    if isinstance(criterion, nn.SmoothL1Loss):
        return mean_per_sample(F.smooth_l1_loss(outputs, y, reduction="none", beta=criterion.beta))
    return mean_per_sample(F.l1_loss(outputs, y, reduction="none"))


def _weighted_binary_cross_entropy(outputs: Tensor, targets: object, *, pos_weight: Tensor) -> Tensor:
    y = aligned(outputs, targets, "binary_cross_entropy")
    weight = pos_weight.to(outputs)
    return mean_per_sample(F.binary_cross_entropy_with_logits(outputs, y, pos_weight=weight, reduction="none"))


def _of_cross_entropy(loss: nn.CrossEntropyLoss) -> Loss:
    """Cross-entropy with smoothed labels and class weights, as torch defines them."""
    known = replace(LOSSES["cross_entropy"], ignored=int(loss.ignore_index))
    smoothing, weight = float(loss.label_smoothing), loss.weight
    if weight is not None:
        name = "cross_entropy(weighted)" if not smoothing else f"cross_entropy(weighted, smoothing={smoothing})"
        function = partial(_weighted_cross_entropy, weight=weight.detach(), smoothing=smoothing)
        return replace(
            known, function=function, mass=partial(_label_weights, weight=weight.detach()), likelihood=None, name=name
        )
    if not smoothing:
        return known

    def smoothed(outputs: Tensor, targets: object, last: bool = False) -> Tensor:
        return (1 - smoothing) * cross_entropy(outputs, targets, last) + smoothing * _uniform_cross_entropy(
            outputs, targets, last
        )

    return replace(known, function=smoothed, name=f"cross_entropy(smoothing={smoothing})")


def _uniform_cross_entropy(outputs: Tensor, targets: object, last: bool) -> Tensor:
    labels = require_labels(targets)
    dim = class_dimension(outputs, labels, last)
    costs = -outputs.log_softmax(dim).mean(dim)
    return mean_per_sample(costs) if labels.is_floating_point() else mean_over_kept(costs, labels)


def _weighted_cross_entropy(
    outputs: Tensor, targets: object, last: bool = False, *, weight: Tensor, smoothing: float
) -> Tensor:
    """Σ_t [(1 − s) w_y (−log p_y) + (s/C) Σ_c w_c (−log p_c)] / Σ_t w_y over the positions t of a sample that count.

    Where targets are probabilities, torch divides by the number of positions instead.
    """
    targets = require_labels(targets)
    dim = class_dimension(outputs, targets, last)
    costs = -outputs.log_softmax(dim) * weight.to(outputs).view(-1, *[1] * (outputs.dim() - dim - 1))
    uniform = smoothing * costs.mean(dim)
    if targets.is_floating_point():
        return mean_per_sample((1 - smoothing) * (costs * targets.to(costs.dtype)).sum(dim) + uniform)
    labels = targets.long()
    at_label = costs.gather(dim, labels.clamp(min=0).unsqueeze(dim)).squeeze(dim)
    values = torch.where(labels != IGNORED, (1 - smoothing) * at_label + uniform, 0.0)
    held = _label_weights(labels, weight=weight)
    assert held is not None, "labels are integers here"
    return values.reshape(len(labels), -1).sum(1) / torch.where(held > 0, held, 1.0).to(values)


def _label_weights(targets: object, *, weight: Tensor) -> Tensor | None:
    """The weights of each sample's labels, added up (n,); `None` where the targets are not labels."""
    if kept_labels(targets) is None:
        return None
    assert isinstance(targets, Tensor)
    labels = targets.long()
    each = torch.where(labels == IGNORED, 0.0, weight.to(labels.device, torch.float64)[labels.clamp(min=0)])
    return each.reshape(len(labels), -1).sum(1)


def _added_up(loss: Loss) -> Loss:
    """The loss with the predictions of a sample added up, as criteria with `reduction="sum"` do."""

    def weigh(outputs: Tensor, targets: object) -> Tensor:
        held = None if loss.mass is None else loss.mass(targets)
        return outputs.new_full((len(outputs),), predictions(loss, outputs, targets)) if held is None else held

    def function(outputs: Tensor, targets: object, **last: bool) -> Tensor:
        values = loss.function(outputs, targets, **last)
        return values * weigh(outputs, targets).to(values)

    return replace(loss, function=function, name=f"{loss.name}(sum)", weigh=weigh)


def _second_argument(loss: Callable[..., Tensor]) -> Literal["targets", "batch"]:
    """A second parameter called `batch` asks for the whole batch, any other name for the targets."""
    try:
        parameters = list(inspect.signature(loss).parameters.values())
    except (TypeError, ValueError):
        return "targets"
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return "batch" if len(positional) > 1 and positional[1].name == "batch" else "targets"
