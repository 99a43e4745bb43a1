"""How a loss of one number per batch is reduced: mean or sum over samples, or mean over labels. Parts of a batch show which."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from landscope.core.errors import LossError, LossReductionError, NonFiniteLossError
from landscope.probe.batches import Batch
from landscope.probe.loss.losses import Loss, Reduction, mean_over_kept
from landscope.probe.loss.targets import kept_labels

SINGLE_SAMPLES = 8
"""Samples that are evaluated one by one to find out what a loss does with a batch."""
TOLERANCE = 1e-3


@dataclass(frozen=True)
class _Evaluation:
    """A loss on batches, with what its mean over labels divides by."""

    loss: Loss
    of: Callable[[Loss, Batch], Tensor]
    targets: Callable[[Batch], object]
    tolerance: float

    def __call__(self, batch: Batch) -> float:
        return float(self.of(self.loss, batch))

    def labels(self, batch: Batch) -> float:
        """How many labels count; as many as samples where there are none."""
        kept = kept_labels(self.targets(batch)) if self.loss.takes == "targets" else None
        return float(batch.size) if kept is None else float(kept.sum())


def with_reduction(
    loss: Loss,
    evaluate: Callable[[Loss, Batch], Tensor],
    targets: Callable[[Batch], object],
    batch: Batch,
    others: Iterable[Batch],
    tolerance: float = TOLERANCE,
) -> Loss:
    """The loss with its reduction found or confirmed, to a relative `tolerance`.

    A loss of one number per batch is looked at on the first of the `others` too, and on more while it is 0, where a mean and
    a sum are the same.
    """
    whole = evaluate(loss, batch)
    if not isinstance(whole, Tensor):
        raise LossError(f"the loss {loss.name!r} returned a {type(whole).__name__}; expected a tensor")
    if loss.reduction in ("per_sample", "unknown") and whole.shape == (batch.size,) and whole.dim() == 1:
        return loss if loss.reduction == "per_sample" else replace(loss, reduction="per_sample")
    if loss.reduction == "per_sample" and whole.dim() > 1 and whole.shape[0] == batch.size:
        return _over_positions(loss, whole, targets(batch))
    if whole.numel() != 1 or loss.reduction == "per_sample":
        raise LossReductionError(
            f"the loss {loss.name!r} returned shape {tuple(whole.shape)} for a batch of {batch.size} samples; expected "
            f"({batch.size},), one loss per sample, or a single number"
        )
    if not batch.divisible or batch.size < 2:
        if loss.reduction == "unknown":
            raise LossReductionError(
                f"the loss {loss.name!r} returns one number per batch, and these batches cannot be cut to find out whether it "
                f"is a mean or a sum over samples. Say which: landscope.Loss(function, reduction='mean')."
            )
        return loss
    value = _Evaluation(loss, evaluate, targets, tolerance)
    candidates: tuple[Reduction, ...] = ("mean", "sum", "label_mean") if loss.takes == "targets" else ("mean", "sum")
    fits = _fitting(value, batch, candidates)
    for other in others:
        if value(other) != 0:
            fits = _fitting(value, other, fits)
        if set(fits) in ({"mean", "label_mean"}, {"mean"}, {"sum"}, {"label_mean"}):
            break
    if "sum" in fits and len(fits) > 1:
        raise LossReductionError(
            f"the loss {loss.name!r} returns one number per batch, and that is 0 throughout the data: whether it is a mean or "
            f"a sum over samples cannot be decided. Say which: landscope.Loss(function, reduction='mean')."
        )
    return replace(loss, reduction=fits[0])


def _over_positions(loss: Loss, values: Tensor, labels: object) -> Loss:
    """A loss of (n, …) values as one per sample: their mean; over labels that count where the values are of labels."""
    function = loss.function
    if loss.takes == "targets" and kept_labels(labels) is not None and values.shape == getattr(labels, "shape", None):
        return replace(loss, function=lambda z, t: mean_over_kept(function(z, t), t.long()), mass=kept_labels)
    return replace(loss, function=lambda z, t: function(z, t).flatten(1).mean(1))


def _fitting(value: _Evaluation, batch: Batch, candidates: tuple[Reduction, ...]) -> tuple[Reduction, ...]:
    """Those of the candidates that the loss may be. A mean or a sum is one however the batch is cut.

    It is cut into thirds, and into single samples for the first few: thirds alone may agree by chance where they hold about
    as many samples of each class.
    """
    loss, whole = value.loss, value(batch)
    if not math.isfinite(whole):
        raise NonFiniteLossError(f"the loss {loss.name!r} is not finite: {whole}")
    few = next(batch.pieces(SINGLE_SAMPLES))
    expected, fits = _in_parts(value, batch, max(1, batch.size // 3), whole)
    fits &= _in_parts(value, few, 1, value(few))[1]
    allowed = {"unknown": ("mean", "sum", "label_mean"), "mean": ("mean", "label_mean")}.get(
        loss.reduction, (loss.reduction,)
    )
    found = tuple(name for name in candidates if name in fits and name in allowed)
    if found:
        return found
    what = (
        "is neither a mean nor a sum over samples"
        if loss.reduction == "unknown"
        else f"was declared a {loss.reduction} over samples and is not"
    )
    raise LossReductionError(
        f"the loss {loss.name!r} {what}: a batch of {batch.size} gives {whole:.6g}, its parts give {expected['mean']:.6g} as a "
        f"mean and {expected['sum']:.6g} as a sum. A class-weighted mean or a contrast within the batch depends on the batch "
        f"size. Return one loss per sample: landscope.Loss(function, reduction='per_sample'); class weights and "
        f"labels to ignore are known of torch.nn.CrossEntropyLoss(weight=…, ignore_index=…)."
    )


def _in_parts(
    value: _Evaluation, batch: Batch, size: int, whole: float
) -> tuple[dict[Reduction, float], set[Reduction]]:
    """The loss of a batch from parts of it, by what it may be, and which of these it is.

    A mean over labels has no value for a part without one that counts.
    """
    parts = list(batch.pieces(size))
    labels = torch.tensor([value.labels(part) for part in parts], dtype=torch.float64)
    sizes = torch.tensor([float(part.size) for part in parts], dtype=torch.float64)
    values = torch.tensor([value(part) for part in parts], dtype=torch.float64)
    expected: dict[Reduction, float] = {
        "mean": float((sizes * values).sum()) / batch.size,
        "sum": float(values.sum()),
        "label_mean": float((labels * values)[labels > 0].sum() / labels.sum()),
    }
    largest = max(abs(whole), float(values[values.isfinite()].abs().amax()) if bool(values.isfinite().any()) else 0.0)
    tolerance = value.tolerance * max(largest, 1e-12)
    return expected, {name for name, found in expected.items() if abs(found - whole) <= tolerance}
