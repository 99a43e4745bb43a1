"""What a probe finds out about its loss from a few samples, and what it refuses.

Which part of the model's outputs the loss takes, along which dimension the classes lie, whether labels are in range, how the
loss is reduced, whether it is the likelihood that it was declared, and whether a model that computes a loss of its own agrees.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from landscope.core.errors import LabelRangeError, LandscopeError, LossError
from landscope.core.memory import is_out_of_memory
from landscope.probe import checks
from landscope.probe.batches import Batch, diverse_sample, map_tensors
from landscope.probe.checks import check_loss_is_deterministic
from landscope.probe.loss.criteria import of_log_probabilities
from landscope.probe.loss.likelihoods import check_likelihood
from landscope.probe.loss.losses import LOSSES, Loss, predictions
from landscope.probe.loss.own import mean_over_labels, own_loss, uneven_rows
from landscope.probe.loss.reductions import with_reduction
from landscope.probe.loss.targets import (
    IGNORED,
    check_label_range,
    check_probabilities,
    class_dimensions,
    kept_labels,
    label_classes,
    require_labels,
)

if TYPE_CHECKING:
    from landscope.probe.probe import Probe

AGREE = 1e-3
"""Relative difference between our loss and the model's own that is not yet a different loss."""


def settled(probe: Probe, samples: int) -> Loss:
    """The loss as the probe will use it, after a look at this many samples at once; what cannot be measured is refused."""
    sample, outputs = _checked_sample(probe, samples)
    loss = _settled_on(probe, probe.loss, sample, outputs)
    at = probe.with_loss(loss)
    checks.check_finite_loss(at.loss_of(_again(at, outputs, sample), sample), "of the first batch")
    return loss


def _again(probe: Probe, returned: object, batch: Batch) -> object:
    """What the loss compares, from what the model returned for a batch.

    A loss of the user's may read what hooks kept of the latest pass, and is given one of its own.
    """
    return probe.compared(returned) if probe.loss.known else probe.outputs(probe.params, batch)


def _checked_sample(probe: Probe, samples: int) -> tuple[Batch, object]:
    """The first samples, ready, and what the model returns for them, after it was found fit to be called with them."""
    first = next(probe.batches())
    checks.check_targets(probe.loss, probe.targets(first))
    few = first.first(samples)
    sample = Batch(map_tensors(torch.clone, probe.ready(few.raw)), few.size, few.divisible)
    model = probe.module("")

    def called(batch: Batch) -> object:
        given, cut = probe.layout.described(batch.raw), batch.size < first.size
        return checks.check_call(model, lambda: probe.call(probe.params, batch), given, cut)

    outputs = called(sample)
    checks.check_deterministic(model, lambda: probe.call(probe.params, sample), outputs)
    if sample.divisible and sample.size > 1:
        checks.check_samples_are_independent(called, sample, outputs)
    return sample, outputs


def counted_labels(probe: Probe) -> Tensor:
    """Samples of this process, what their labels count for in the loss (the sum and the sum of squares), and tokens (4,)."""
    counted = torch.zeros(4, dtype=torch.float64)
    for batch in probe.batches():
        targets = probe.targets(batch)
        held = (probe.loss.mass or kept_labels)(targets) if probe.loss.pools else None
        counted[0] += batch.size
        if held is not None:
            counted[1:3] += torch.stack([held.sum(), held.square().sum()]).cpu()
        if probe.loss.ignores and isinstance(targets, Tensor) and targets.dim() == 2 and not probe.reading.spans:
            kept = kept_labels(targets)
            counted[3] += 0.0 if kept is None else float(kept.sum())
    return counted


def _settled_on(probe: Probe, loss: Loss, sample: Batch, raw: object) -> Loss:
    loss = of_log_probabilities(_taking(probe, loss, raw, sample), raw)
    if not loss.known:
        at = probe.with_loss(loss)
        outputs = at.outputs(at.params, sample)
        check_loss_is_deterministic(loss, lambda: _value(at, outputs, sample))
    if loss.of_classes:
        loss = _with_classes(probe, loss, raw, sample)
    elif loss.known and loss.weigh and predictions(loss, probe.reading.predictions(raw), probe.targets(sample)) == 1:
        loss = replace(LOSSES[loss.name.removesuffix("(sum)")], known="criterion")  # a sum of one is a mean
    loss = with_reduction(
        loss, _evaluation(probe, sample, raw), probe.with_loss(loss).targets, sample, _further(probe, loss, sample.size)
    )
    at = probe.with_loss(loss)
    if loss.known in ("name", "criterion"):
        _check_own_loss(at, sample, raw)
    elif not loss.known and loss.likelihood is not None:
        z = at.reading.predictions(at.outputs(at.params, sample))
        inputs = map_tensors(lambda t: t.double() if t.is_floating_point() else t, sample.raw)
        exact = Batch(inputs, sample.size, sample.divisible)
        check_likelihood(loss, lambda outputs: at.loss_of(outputs, exact), z, at.targets(exact))
    return loss


def _evaluation(probe: Probe, sample: Batch, raw: object) -> Callable[[Loss, Batch], Tensor]:
    """A loss on a batch, given what the model returned for one of them."""

    def evaluate(loss: Loss, batch: Batch) -> Tensor:
        at = probe.with_loss(loss)
        outputs = _again(at, raw, batch) if batch is sample else at.outputs(at.params, batch)
        return _value(at, outputs, batch)

    return evaluate


def _kind(value: object) -> str:
    if isinstance(value, Tensor):
        return f"{tuple(value.shape)} in {str(value.dtype).removeprefix('torch.')} on {value.device}"
    return f"of type {type(value).__name__}"


def _check_broadcast(loss: Loss, outputs: object, targets: object) -> None:
    """Refuse a criterion of torch that would compare every sample with every other one: (n, 1) against (n,)."""
    criterion = loss.function
    if not (isinstance(criterion, nn.Module) and type(criterion).__module__.startswith("torch.nn.")):
        return
    if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor) and targets.is_floating_point()):
        return
    if outputs.shape != targets.shape and outputs.numel() == targets.numel() and outputs.dim() != targets.dim():
        raise LossError(
            f"{type(criterion).__name__} would compare outputs {tuple(outputs.shape)} with targets {tuple(targets.shape)} across "
            f"samples. Give both one shape: targets.reshape(outputs.shape), or squeeze the model's output."
        )


def _value(probe: Probe, outputs: object, batch: Batch) -> Tensor:
    """What the loss function returns for some outputs."""
    second = probe.second(batch)
    _check_broadcast(probe.loss, outputs, second)
    try:
        return probe.loss.function(outputs, second)
    except Exception as error:
        if isinstance(error, LandscopeError) or is_out_of_memory(error):
            raise
        raise LossError(
            f"the loss {probe.loss.name!r} could not be evaluated on outputs {_kind(outputs)} and targets {_kind(second)}: "
            f"{error}. It is called as loss(outputs, targets) with what the model returns in eval mode; labels are "
            f"integers (targets.long()), and tensors inside the loss must follow its outputs: weight.to(outputs)."
            f"{probe.layout.remark(batch.raw)}"
        ) from error


def _taking(probe: Probe, loss: Loss, raw: object, sample: Batch) -> Loss:
    """The loss with all that the model returned, or with its tensor of outputs where it takes only that."""
    if not loss.structured or isinstance(raw, Tensor):
        return loss
    evaluate = _evaluation(probe, sample, raw)
    try:
        evaluate(loss, sample)
        return loss
    except Exception as error:
        alone = replace(loss, structured=False)
        try:
            evaluate(alone, sample)
        except Exception:
            raise error from None
        return alone


def _with_classes(probe: Probe, loss: Loss, raw: object, sample: Batch) -> Loss:
    """Labels in range, probabilities that are some, and the dimension of the classes the same for all batches."""
    at = probe.with_loss(loss)
    z, targets = probe.reading.predictions(raw), at.targets(sample)
    classes = label_classes(z, targets, loss.classes_last)
    if classes is None:
        if loss.known == "name":
            for batch in probe.batches():
                check_probabilities(require_labels(at.targets(batch)))
        return loss
    assert isinstance(targets, Tensor), "checked by label_classes"
    found = class_dimensions(z, targets)
    if (
        len(found) > 1
        and not loss.classes_last
        and (loss.known == "name" or (loss.known and not isinstance(raw, Tensor)))
    ):
        raise LossError(
            f"outputs {tuple(z.shape)} fit labels {tuple(targets.shape)} in two ways: with the classes along dimension 1, as "
            f"torch has it, or along the last, as language models do. Pass torch.nn.CrossEntropyLoss() for dimension 1; "
            f"otherwise let the model return logits.transpose(1, 2) and pass that criterion."
        )
    if found[0] > 1 and not loss.classes_last:
        loss = loss.with_classes_last()
        classes = z.shape[-1]
    kept = 0
    for batch in probe.batches():
        labels = require_labels(at.targets(batch))
        check_label_range(classes, labels)
        kept += int((labels != IGNORED).sum())
    if not kept:
        raise LabelRangeError("every label is -100, which marks a position to ignore: nothing is left to measure")
    return loss


def _further(probe: Probe, loss: Loss, count: int) -> Iterator[Batch]:
    """Samples beyond the first ones: with ignored labels and without, from all over the data, then everything."""
    at = probe.with_loss(loss)
    uneven = uneven_rows(at, count) if loss.takes == "targets" else None
    mixed = diverse_sample(probe.batches(), at.targets, count)
    pieces = (piece for batch in probe.batches() for piece in batch.pieces(count))
    for batch in chain([found for found in (uneven, mixed) if found is not None], pieces):
        yield batch.prepared(probe.ready)


def _check_own_loss(probe: Probe, sample: Batch, raw: object) -> None:
    """Refuse where a model that computes a loss from the labels computes another one than the one that was named."""
    found = own_loss(probe, sample)
    if found is None or not bool(found.isfinite()):
        return
    ours, own = float(mean_over_labels(probe, sample, raw)), float(found)
    if abs(ours - own) <= AGREE * max(abs(ours), abs(own), 1e-6):
        return
    raise LossError(
        f"the model computes a loss of its own from these labels: {own:.6g} on {sample.size} samples, where {probe.loss.name} "
        f"of its outputs gives {ours:.6g}. The numbers would be about another loss than the model's. Leave the loss out, or "
        f"pass loss='model', to measure that one (language models shift the labels themselves); for another one pass a "
        f"function: loss=lambda outputs, targets: …, one number per sample."
    )


def leave_out_ignored(batch: Batch, targets: object) -> Batch | None:
    """The batch without samples all of whose labels are ignored; `None` where nothing is left."""
    kept = kept_labels(targets)
    if kept is None or bool((kept > 0).all()):
        return batch
    if not batch.divisible:
        assert isinstance(targets, Tensor), "labels are a tensor"
        if targets.dim() > 1:
            return batch  # their mean over labels has weight 0
        raise LabelRangeError(
            f"{int((kept == 0).sum())} labels are -100, which marks a sample to ignore, and these batches cannot be cut. "
            f"Leave those samples out of the data."
        )
    if not bool((kept > 0).any()):
        return None
    rows = kept.nonzero()[:, 0]
    return Batch(map_tensors(lambda t: t[rows.to(t.device)], batch.raw), len(rows), True)
