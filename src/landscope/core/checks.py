"""What a probe refuses: each check says what was found and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields, is_dataclass, replace

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from landscope.core.batches import Batch, tensors_in
from landscope.core.errors import (
    ChangingDataError,
    DataError,
    LossError,
    LossReductionError,
    MissingTargetsError,
    ModelError,
    NonFiniteLossError,
    StochasticModelError,
)
from landscope.core.frozen import dropouts_left_on
from landscope.core.losses import Loss, Reduction
from landscope.core.reading import FixedData

__all__ = [
    "check_batches_are_fixed",
    "check_deterministic",
    "check_finite_loss",
    "check_options",
    "check_samples_are_independent",
    "check_targets",
    "output_tensors",
    "tensor_output",
    "with_reduction",
]


DRAWS = 32
"""How often a forward pass that draws random numbers is repeated to see whether they matter."""


def check_options(model: object, mode: str, temperature: float, dtype: torch.dtype | None) -> None:
    """Arguments that could not mean anything."""
    if not isinstance(model, nn.Module):
        raise ModelError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    if mode not in ("eval", "batch_statistics"):
        raise ModelError(f"mode must be 'eval' or 'batch_statistics', got {mode!r}")
    if not (math.isfinite(temperature) and temperature > 0):
        raise LossError(f"temperature must be a positive number, got {temperature}")
    if dtype not in (None, torch.float32, torch.float64):
        raise ModelError(
            f"dtype must be torch.float32 or torch.float64, got {dtype}: curvature drowns in rounding below that"
        )


def check_batches_are_fixed(data: FixedData, batch_size: int | None) -> None:
    """With batch statistics the batches define the function: they must come the same way each time."""
    if not data.same_order:
        raise ChangingDataError(
            "the data comes in different batches on two passes (shuffling). With mode='batch_statistics' the batches are part "
            "of the function. Set shuffle=False, or fix one draw: Probe(model, landscope.freeze(loader), mode=…)."
        )
    if batch_size is not None and data.own_batches:
        raise DataError("the data comes in batches already; batch_size is for tensors and Datasets")


def check_targets(loss: Loss, targets: object) -> None:
    """Batches without targets, where the loss needs them."""
    if targets is None and loss.takes == "targets":
        raise MissingTargetsError(
            f"the batches hold inputs but no targets, and the loss {loss.name!r} needs them. Yield (inputs, targets) tuples, "
            f"or dicts with one of the keys 'labels', 'label', 'targets', 'target', 'y'; or pass a loss that takes the whole "
            f"batch: landscope.Loss(function, takes='batch')."
        )


def tensor_output(outputs: object) -> Tensor:
    """The tensor of predictions in what a model returned: itself, its `logits`, or the first of a tuple."""
    if isinstance(outputs, Tensor):
        return outputs
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    if isinstance(outputs, (tuple, list)) and outputs and isinstance(outputs[0], Tensor):
        return outputs[0]
    raise ModelError(
        f"the model returned a {type(outputs).__name__}; expected a tensor, something with `logits`, or a tuple that begins "
        f"with a tensor. Wrap the model, or pass a loss function that takes what it returns."
    )


def output_tensors(outputs: object) -> list[Tensor]:
    """Every tensor of what a model returned, those of dataclasses and of objects with `logits` included."""
    found = tensors_in(outputs)
    for leaf in pytree.tree_leaves(outputs):
        if is_dataclass(leaf) and not isinstance(leaf, type):
            found += output_tensors([getattr(leaf, field.name) for field in fields(leaf)])
        elif not isinstance(leaf, Tensor) and isinstance(getattr(leaf, "logits", None), Tensor):
            found.append(leaf.logits)
    return found


def check_deterministic(model: nn.Module, forward: Callable[[], object]) -> None:
    """Noise in the forward pass: dropout left on, or random layers."""
    torch.manual_seed(0)
    first = output_tensors(forward())
    for seed in range(1, 1 + DRAWS):  # a small dropout rate shows on few draws only
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        again = output_tensors(forward())
        drew = not torch.equal(before, torch.get_rng_state())
        change = max((_relative_change(a, b) for a, b in zip(first, again, strict=True)), default=0.0)
        tolerance = 0.0 if drew else 1e-3  # some GPU kernels add up in varying order
        if change > tolerance or not drew:
            break
    if change > tolerance:
        left_on = dropouts_left_on(model)
        where = f"dropout is left on in {', '.join(left_on)}" if left_on else "its forward pass draws random numbers"
        raise StochasticModelError(
            f"the model gave different outputs for the same batch (relative change {change:.2g}): {where}. A sharpness is "
            f"defined for a fixed function. Use nn.Dropout, or F.dropout(x, p, training=self.training), which eval mode "
            f"switches off; remove other noise."
        )


def check_samples_are_independent(forward: Callable[[Batch], object], batch: Batch) -> None:
    """Outputs that depend on which samples share a batch: their mean would depend on the batch size."""
    half = next(batch.pieces(max(1, batch.size // 2)))
    alone, together = output_tensors(forward(half)), output_tensors(forward(batch))
    for a, b in zip(alone, together, strict=True):
        if b.dim() and b.shape[0] == batch.size and a.shape[0] == half.size and a.shape[1:] == b.shape[1:]:
            change = _relative_change(a, b[: half.size])
            if change > 1e-2:
                raise ModelError(
                    f"the output for a sample depends on the other samples of its batch (relative change {change:.2g} between "
                    f"a batch of {batch.size} and one of {half.size}): BatchNorm without running statistics, or something "
                    f"like it. Use mode='batch_statistics', which keeps your batches whole."
                )


def _relative_change(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape or not a.numel():
        return float(a.shape != b.shape)
    a, b = a.detach().double(), b.detach().double()
    scale = float(a.abs().max())
    return float((a - b).abs().max()) / scale if scale > 0 else float((a - b).abs().max())


SINGLE_SAMPLES = 8
"""Samples that are evaluated one by one to find out what a loss does with a batch."""


def with_reduction(
    loss: Loss, evaluate: Callable[[Loss, Batch], Tensor], batch: Batch, others: Iterable[Batch]
) -> Loss:
    """The loss with its reduction found or confirmed: parts of a batch tell a mean from a sum.

    A loss of one number per batch is looked at on the first of the `others` too, and on more while it is 0, where a mean and
    a sum are the same.
    """
    whole = evaluate(loss, batch)
    if not isinstance(whole, Tensor):
        raise LossError(f"the loss {loss.name!r} returned a {type(whole).__name__}; expected a tensor")
    if loss.reduction in ("per_sample", "unknown") and whole.shape == (batch.size,) and whole.dim() == 1:
        return loss if loss.reduction == "per_sample" else replace(loss, reduction="per_sample")
    if loss.reduction == "per_sample" and whole.dim() > 1 and whole.shape[0] == batch.size:
        function = loss.function
        return replace(loss, function=lambda z, t: function(z, t).flatten(1).mean(1))
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
    fits = _fitting(loss, evaluate, batch, ("mean", "sum"))
    for other in others:
        if float(evaluate(loss, other)) != 0:
            fits = _fitting(loss, evaluate, other, fits)
        if len(fits) == 1 or loss.reduction != "unknown":
            break
    if loss.reduction != "unknown":
        return loss
    if len(fits) > 1:
        raise LossReductionError(
            f"the loss {loss.name!r} returns one number per batch, and that is 0 throughout the data: whether it is a mean or "
            f"a sum over samples cannot be told. Say which: landscope.Loss(function, reduction='mean')."
        )
    return replace(loss, reduction=fits[0])


def _fitting(
    loss: Loss, evaluate: Callable[[Loss, Batch], Tensor], batch: Batch, candidates: tuple[Reduction, ...]
) -> tuple[Reduction, ...]:
    """Those of the candidates that the loss may be. A mean or a sum is one however the batch is cut.

    It is cut into thirds, and into single samples for the first few: thirds alone may agree by chance where they hold about
    as many samples of each class.
    """
    whole = float(evaluate(loss, batch))
    if not math.isfinite(whole):
        raise NonFiniteLossError(f"the loss {loss.name!r} is not finite: {whole}")
    few = next(batch.pieces(SINGLE_SAMPLES))
    as_mean, as_sum, fits = _in_parts(loss, evaluate, batch, max(1, batch.size // 3), whole)
    fits &= _in_parts(loss, evaluate, few, 1, float(evaluate(loss, few)))[2]
    found = tuple(name for name in candidates if name in fits)
    if found if loss.reduction == "unknown" else loss.reduction in found:
        return found
    what = (
        "is neither a mean nor a sum over samples"
        if loss.reduction == "unknown"
        else f"was declared a {loss.reduction} over samples and is not"
    )
    raise LossReductionError(
        f"the loss {loss.name!r} {what}: a batch of {batch.size} gives {whole:.6g}, its parts give {as_mean:.6g} as a mean and "
        f"{as_sum:.6g} as a sum. A class-weighted mean or a contrast within the batch depends on the batch size. Return one "
        f"loss per sample: landscope.Loss(function, reduction='per_sample')."
    )


def _in_parts(
    loss: Loss, evaluate: Callable[[Loss, Batch], Tensor], batch: Batch, size: int, whole: float
) -> tuple[float, float, set[str]]:
    """The loss of a batch from parts of it, were it a mean or a sum; and which of the two it is."""
    raw_parts = list(batch.pieces(size))
    parts = [float(evaluate(loss, part)) for part in raw_parts]
    as_mean = sum(part.size * value for part, value in zip(raw_parts, parts, strict=True)) / batch.size
    as_sum = sum(parts)
    if not all(map(math.isfinite, [whole, *parts])):  # a mean over what is not ignored, where everything is
        return as_mean, as_sum, set()
    tolerance = 1e-3 * max(abs(whole), *map(abs, parts), 1e-12)
    candidates = {"mean": as_mean, "sum": as_sum}
    return as_mean, as_sum, {name for name, value in candidates.items() if abs(value - whole) <= tolerance}


def check_finite_loss(mean: Tensor | float, where: str = "over the data") -> float:
    """A loss that is NaN or infinite."""
    value = float(mean)
    if not math.isfinite(value):
        raise NonFiniteLossError(
            f"the loss {where} is {value}. Look for infinities or NaN in the inputs, logarithms of zero in the loss, or "
            f"activations that overflow {'(try dtype=torch.float64)' if math.isinf(value) else ''}".rstrip()
            + "."
        )
    return value
