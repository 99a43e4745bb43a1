"""What a probe finds out about its loss from a few samples, and what it refuses.

Which part of the model's outputs the loss takes, along which dimension the classes lie, whether labels are in range, how the
loss is reduced, whether it is the likelihood that it was declared, and whether a model that computes a loss of its own agrees.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.func import functional_call

from landscope.core.errors import LabelRangeError, LandscopeError, LossError
from landscope.core.memory import is_out_of_memory
from landscope.probe import checks
from landscope.probe.batches import TARGET_KEYS, Batch, diverse_sample, map_tensors
from landscope.probe.checks import check_loss_is_deterministic, tensor_output
from landscope.probe.loss.likelihoods import check_likelihood
from landscope.probe.loss.losses import LOSSES, Loss, cross_entropy, predictions
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

__all__ = ["counted_labels", "leave_out_ignored", "settled"]

LABEL_KEYS = ("labels", "label")
"""Names that collators exchange for each other."""
AGREE = 1e-3
"""Relative difference between our loss and the model's own that is not yet a different loss."""


def settled(probe: Probe, samples: int) -> Loss:
    """The loss as the probe will use it, after a look at this many samples at once; what cannot be measured is refused."""
    sample = _checked_sample(probe, samples)
    loss = _settled_on(probe, probe.loss, sample, samples)
    at = probe.with_loss(loss)
    checks.check_finite_loss(at.loss_sum(at.params, sample), "of the first batch")
    return loss


def _checked_sample(probe: Probe, samples: int) -> Batch:
    """The first samples, ready, after the model was found fit to be called with them."""
    first = next(probe.batches())
    checks.check_targets(probe.loss, probe.targets(first))
    few = next(first.pieces(samples))
    sample = Batch(map_tensors(torch.clone, probe.ready(few.raw)), few.size, few.divisible)
    model, given, cut = probe.module(""), probe.layout.described(sample.raw), sample.size < first.size
    checks.check_call(model, lambda: probe.call(probe.params, sample), given, cut)
    checks.check_deterministic(model, lambda: probe.call(probe.params, sample))
    if sample.divisible and sample.size > 1:
        checks.check_samples_are_independent(lambda batch: probe.call(probe.params, batch), sample)
    return sample


def counted_labels(probe: Probe) -> Tensor:
    """Samples of this process, and what their labels count for in the loss: the sum and the sum of squares (3,)."""
    counted = torch.zeros(3, dtype=torch.float64)
    for batch in probe.batches():
        held = (probe.loss.mass or kept_labels)(probe.targets(batch)) if probe.loss.pools else None
        counted[0] += batch.size
        if held is not None:
            counted[1:] += torch.stack([held.sum(), held.square().sum()]).cpu()
    return counted


def _settled_on(probe: Probe, loss: Loss, sample: Batch, samples: int) -> Loss:
    raw = probe.call(probe.params, sample)
    loss = _taking(probe, loss, raw, sample)
    if not loss.known:
        at = probe.with_loss(loss)
        outputs = at.outputs(at.params, sample)
        check_loss_is_deterministic(loss, lambda: _value(at, outputs, sample))
    if loss.of_classes:
        loss = _with_classes(probe, loss, raw, sample)
    elif loss.known and loss.weigh and predictions(loss, tensor_output(raw), probe.targets(sample)) == 1:
        loss = replace(LOSSES[loss.name.removesuffix("(sum)")], known="criterion")  # a sum of one is a mean
    loss = with_reduction(
        loss, _evaluation(probe), probe.with_loss(loss).targets, sample, _further(probe, loss, samples)
    )
    at = probe.with_loss(loss)
    if loss.known:
        _check_own_loss(at, sample)
    elif loss.likelihood is not None:
        z = tensor_output(at.outputs(at.params, sample))
        raw = map_tensors(lambda t: t.double() if t.is_floating_point() else t, sample.raw)
        exact = Batch(raw, sample.size, sample.divisible)
        check_likelihood(loss, lambda outputs: at.loss_of(outputs, exact), z, at.targets(exact))
    return loss


def _evaluation(probe: Probe) -> Callable[[Loss, Batch], Tensor]:
    def evaluate(loss: Loss, batch: Batch) -> Tensor:
        at = probe.with_loss(loss)
        return _value(at, at.outputs(at.params, batch), batch)

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
    except LandscopeError:
        raise
    except (RuntimeError, TypeError, ValueError, LookupError, AttributeError) as error:
        if is_out_of_memory(error):
            raise
        raise LossError(
            f"the loss {probe.loss.name!r} could not be evaluated on outputs {_kind(outputs)} and targets {_kind(second)}: "
            f"{error}. It is called as loss(outputs, targets) with what the model returns in eval mode; labels are "
            f"integers (targets.long()), and tensors inside the loss must follow its outputs: weight.to(outputs)."
        ) from error


def _taking(probe: Probe, loss: Loss, raw: object, sample: Batch) -> Loss:
    """The loss with all that the model returned, or with its tensor of outputs where it takes only that."""
    if not loss.structured or isinstance(raw, Tensor):
        return loss
    evaluate = _evaluation(probe)
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
    z, targets = tensor_output(raw), at.targets(sample)
    classes = label_classes(z, targets)
    if classes is None:
        if loss.known == "name":
            for batch in probe.batches():
                check_probabilities(require_labels(at.targets(batch)))
        return loss
    assert isinstance(targets, Tensor), "checked by label_classes"
    found = class_dimensions(z, targets)
    if len(found) > 1 and (loss.known == "name" or (loss.known and not isinstance(raw, Tensor))):
        raise LossError(
            f"outputs {tuple(z.shape)} fit labels {tuple(targets.shape)} in two ways: with the classes along dimension 1, as "
            f"torch has it, or along the last, as language models do. Pass torch.nn.CrossEntropyLoss() for dimension 1; "
            f"otherwise let the model return logits.transpose(1, 2) and pass that criterion."
        )
    if found[0] > 1:
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
    uneven = _uneven(at, count) if loss.takes == "targets" else None
    mixed = diverse_sample(probe.batches(), at.targets, count)
    pieces = (piece for batch in probe.batches() for piece in batch.pieces(count))
    for batch in chain([found for found in (uneven, mixed) if found is not None], pieces):
        yield batch.prepared(probe.ready)


def _uneven(probe: Probe, count: int) -> Batch | None:
    """Samples of one batch of which some have ignored labels, those with the most first; `None` where none has."""
    for batch in probe.batches():
        targets = probe.targets(batch)
        kept = kept_labels(targets)
        if not batch.divisible or kept is None or not bool((kept != kept[0]).any()):
            continue
        order = kept.argsort(descending=True)
        rows = torch.cat([order[: count // 2], order[-(count // 2) :]]).unique()
        return Batch(map_tensors(lambda t, rows=rows: t[rows.to(t.device)], batch.raw), len(rows), True)  # type: ignore[misc]
    return None


def _check_own_loss(probe: Probe, sample: Batch) -> None:
    """Refuse where a model that computes a loss from the labels computes another one than ours."""
    own = _own_loss(probe, sample)
    if own is None:
        return
    targets = probe.targets(sample)
    losses = probe.losses(probe.params, sample).double()
    mass = None if probe.loss.mass is None or probe.loss.weigh is not None else probe.loss.mass(targets)
    ours = float(losses.mean() if mass is None else (losses * mass).sum() / mass.sum())
    if abs(ours - own) <= AGREE * max(abs(ours), abs(own), 1e-6):
        return
    shifted = (
        " It shifts the labels itself, as language models do; shift them in the data, under a name that it does not take: "
        "{'input_ids': ids, 'targets': torch.nn.functional.pad(labels[:, 1:], (0, 1), value=-100)}."
    ) * _is_shifted(probe, sample, own)
    raise LossError(
        f"the model computes a loss of its own from these labels: {own:.6g} on {sample.size} samples, where {probe.loss.name} "
        f"of its outputs gives {ours:.6g}. The numbers would be about another loss than the model's.{shifted} "
        f"Otherwise pass the loss that it was trained with: loss=lambda outputs, targets: …, one number per sample."
    )


def _is_shifted(probe: Probe, sample: Batch, own: float) -> bool:
    """Whether a loss is that of each position against the label of the next."""
    z, labels = tensor_output(probe.outputs(probe.params, sample)), probe.targets(sample)
    if not isinstance(labels, Tensor) or labels.dim() != 2 or labels.is_floating_point() or z.shape[:2] != labels.shape:
        return False
    found = cross_entropy(z[:, :-1].flatten(0, 1), labels[:, 1:].flatten()).sum() / kept_labels(labels[:, 1:]).sum()  # type: ignore[union-attr]
    return abs(float(found) - own) <= AGREE * abs(own)


def _own_loss(probe: Probe, sample: Batch) -> float | None:
    """What the model returns as its loss when it is given the labels; `None` where it takes none or returns none."""
    model = probe.modules[""]
    accepted = inspect.signature(model.forward).parameters
    anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in accepted.values())
    own = probe.layout.target_key
    names = TARGET_KEYS if own is None else LABEL_KEYS if own in LABEL_KEYS else (own,)
    key = next((name for name in names if name in accepted), names[0] if anything else None)
    args, kwargs = probe.layout.arguments(sample.raw)
    if key is None or key in kwargs or key in list(accepted)[: len(args)]:
        return None
    try:
        outputs = functional_call(model, dict(probe.params), args, {**kwargs, key: probe.targets(sample)})
    except Exception:
        return None  # the labels are for something else
    found = outputs.get("loss") if isinstance(outputs, Mapping) else getattr(outputs, "loss", None)
    if found is None and isinstance(outputs, tuple):
        scalars = [part for part in outputs if isinstance(part, Tensor) and part.dim() == 0]
        found = scalars[0] if len(scalars) == 1 else None
    if not isinstance(found, Tensor) or found.numel() != 1 or not bool(found.isfinite()):
        return None
    return float(found)


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
