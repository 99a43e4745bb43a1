"""What a probe refuses: each check says what was found and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass

import torch
from torch import Tensor, nn
from torch.ao.quantization import FakeQuantizeBase
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.utils import _pytree as pytree

from landscope.core.errors import (
    ChangingDataError,
    DataError,
    LandscopeError,
    LossError,
    MissingTargetsError,
    ModelError,
    NonFiniteLossError,
    NonFiniteWeightsError,
    StochasticModelError,
)
from landscope.core.memory import is_out_of_memory
from landscope.core.parameters import Selection, select_parameters
from landscope.probe.batches import Batch, tensors_in
from landscope.probe.frozen import dropouts_left_on
from landscope.probe.loss.losses import Loss
from landscope.probe.reading import FixedData

__all__ = [
    "check_batches_are_fixed",
    "check_call",
    "check_deterministic",
    "check_finite_loss",
    "check_loss_is_deterministic",
    "check_options",
    "check_samples_are_independent",
    "check_targets",
    "output_tensors",
    "quantised_layers",
    "refuse_simulated_quantisation",
    "refuse_unmeasurable",
    "tensor_output",
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


def check_call(model: nn.Module, forward: Callable[[], object], given: str, cut: bool) -> None:
    """A model that cannot be called with the inputs of a batch, or with a part of them."""
    try:
        forward()
    except LandscopeError:
        raise
    except (TypeError, ValueError, RuntimeError, LookupError, AttributeError, NotImplementedError) as error:
        if is_out_of_memory(error):
            raise
        parts = " A part of a batch was given; use mode='batch_statistics' where batches cannot be cut (a graph)." * cut
        raise ModelError(
            f"{type(model).__name__} could not be called with {given}: {error}.{parts} The targets do not go into the model: "
            f"where it needs them (a decoder's inputs), put what it takes into the batch under the names of its arguments, or "
            f"wrap it."
        ) from error


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
    change = _change_between_draws(forward)
    if change:
        left_on = dropouts_left_on(model)
        where = f"dropout is left on in {', '.join(left_on)}" if left_on else "its forward pass draws random numbers"
        raise StochasticModelError(
            f"the model gave different outputs for the same batch (relative change {change:.2g}): {where}. A sharpness is "
            f"defined for a fixed function. Use nn.Dropout, or F.dropout(x, p, training=self.training), which eval mode "
            f"switches off; remove other noise."
        )


def check_loss_is_deterministic(loss: Loss, evaluate: Callable[[], object]) -> None:
    """Noise in the loss: dropout in a criterion, or random numbers."""
    change = _change_between_draws(evaluate)
    if change:
        criterion = loss.function
        left_on = dropouts_left_on(criterion) if isinstance(criterion, nn.Module) else []
        where = f"dropout is on in its {', '.join(left_on)}" if left_on else "it draws random numbers, or keeps a state"
        raise LossError(
            f"the loss {loss.name!r} gave different values for the same outputs (relative change {change:.2g}): {where}. A "
            f"sharpness is defined for a fixed loss. Put the criterion into eval mode (criterion.eval()), or pass a loss "
            f"without noise."
        )


def _change_between_draws(function: Callable[[], object]) -> float:
    """The relative change of the tensors that a function returns between two random states; 0 where there is none to speak of."""
    torch.manual_seed(0)
    first = output_tensors(function())
    for seed in range(1, 1 + DRAWS):  # a small dropout rate shows on few draws only
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        again = output_tensors(function())
        drew = not torch.equal(before, torch.get_rng_state())
        change = max((_relative_change(a, b) for a, b in zip(first, again, strict=True)), default=0.0)
        tolerance = 0.0 if drew else 1e-3  # some GPU kernels add up in varying order
        if change > tolerance or not drew:
            break
    return change if change > tolerance else 0.0


def check_samples_are_independent(forward: Callable[[Batch], object], batch: Batch) -> None:
    """Outputs that depend on which samples share a batch: their mean would depend on the batch size.

    Both halves are looked at: what looks back only (a sequence along the first dimension) does not change the first one.
    """
    together = output_tensors(forward(batch))
    start = 0
    for half in batch.pieces((batch.size + 1) // 2):
        for a, b in zip(output_tensors(forward(half)), together, strict=True):
            if b.dim() and b.shape[0] == batch.size and a.shape[0] == half.size and a.shape[1:] == b.shape[1:]:
                change = _relative_change(a, b[start : start + half.size])
                if change > 1e-2:
                    raise ModelError(
                        f"the output for a sample depends on the other samples of its batch (relative change {change:.2g} "
                        f"between a batch of {batch.size} and one of {half.size}): BatchNorm without running statistics, or "
                        f"something like it. Use mode='batch_statistics', which keeps your batches whole; where the first "
                        f"dimension is time and not samples, transpose the data."
                    )
        start += half.size


def _relative_change(a: Tensor, b: Tensor) -> float:
    if a.shape != b.shape or not a.numel():
        return float(a.shape != b.shape)
    a, b = a.detach().double(), b.detach().double()
    scale = float(a.abs().max())
    return float((a - b).abs().max()) / scale if scale > 0 else float((a - b).abs().max())


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


# Models that cannot be measured, whatever the data: each is refused before anything is copied.


_QUANTISED = ("torch.ao.nn.quantized", "torch.ao.nn.intrinsic.quantized", "torch.ao.nn.sparse.quantized")
"""Where torch's layers with integer weights live."""


def refuse_unmeasurable(model: nn.Module, params: Selection) -> None:
    """Raise `ModelError` for weights that are not there, not real numbers, not finite, or out of autograd's reach."""
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if is_lazy(tensor):
            raise ModelError(f"{name} is not initialised yet (a lazy layer). Run one batch through the model first.")
        if tensor.is_meta:
            raise ModelError(
                f"{name} is on the meta device: it has a shape and no values. Load the weights first "
                f"(model.to_empty(device='cpu'), then load_state_dict); for a model that is offloaded in parts, load all of "
                f"it onto one device (device_map=None)."
            )
    for name, parameter in model.named_parameters():
        if parameter.is_complex():
            raise ModelError(
                f"{name} is complex: curvature is defined here for real parameters. Hold it as a real tensor with a last "
                f"dimension of 2, and use torch.view_as_complex in the forward pass."
            )
    if any(isinstance(m, FakeQuantizeBase) and bool(m.fake_quant_enabled.any()) for m in model.modules()):
        refuse_simulated_quantisation()
    _refuse_quantised(model, params)
    _refuse_scripted(model, params)
    _refuse_non_finite(model)


def refuse_simulated_quantisation() -> None:
    """Raise `ModelError` for a model in quantisation-aware training."""
    raise ModelError(
        "the model is prepared for quantisation-aware training: it rounds in its forward pass, and its straight-through "
        "gradients are wrong on purpose. Such a loss has no curvature to measure: measure the float model, or switch the "
        "rounding off (model.apply(torch.ao.quantization.disable_fake_quant))."
    )


def _refuse_quantised(model: nn.Module, params: Selection) -> None:
    layers = quantised_layers(model)
    if layers and params is None:
        rest = sum(p.numel() for p in model.parameters() if p.requires_grad)
        left = (
            f"Only the {rest:,} parameters of other layers would be measured, with these as constants"
            if rest
            else "No parameters are left to measure"
        )
        raise ModelError(
            f"the weights of {_listed(layers)} are quantised: integers that have no gradient and do not let one through. "
            f"{left}. Measure the model before its quantisation, or name what you want measured: params=[…]."
        )


def quantised_layers(model: nn.Module) -> list[str]:
    """Names of the layers whose weights or outputs are integers."""
    return [name or type(module).__name__ for name, module in model.named_modules() if _is_quantised(module)]


def _is_quantised(module: nn.Module) -> bool:
    if type(module).__module__.startswith(_QUANTISED):
        return not type(module).__name__.endswith("PackedParams")  # named by the layer that holds it
    own = (*module._parameters.values(), *module._buffers.values(), *vars(module).values())
    return any(isinstance(value, Tensor) and value.is_quantized for value in own)


def _refuse_scripted(model: nn.Module, params: Selection) -> None:
    scripted = [name for name, module in model.named_modules() if isinstance(module, torch.jit.ScriptModule)]
    if not scripted:
        return
    chosen = select_parameters(model, params)
    held = [name for name in chosen if any(not layer or name.startswith(layer + ".") for layer in scripted)]
    if "" in scripted or held:
        which = "the model" if "" in scripted else f"the layer that holds {_listed(held)}"
        raise ModelError(
            f"{which} is compiled by torch.jit: other values cannot be put in for its parameters, which derivatives of second "
            f"order need. Measure the eager model that was scripted or traced (load the weights into it: "
            f"model.load_state_dict(scripted.state_dict()))."
        )


def _refuse_non_finite(model: nn.Module) -> None:
    suspects = dict(model.named_parameters())
    for name, module in model.named_modules():
        if isinstance(module, _BatchNorm):
            suspects |= {f"{name}.{key}": b for key, b in module.named_buffers(recurse=False)}  # type: ignore[misc]
    for name, tensor in suspects.items():
        bad = int((~torch.isfinite(tensor.detach())).sum()) if tensor.is_floating_point() else 0
        if bad:
            raise NonFiniteWeightsError(
                f"{name} holds {bad} NaN or infinite values out of {tensor.numel()}. A diverged model has no minimum to "
                f"measure: load an earlier checkpoint."
            )


def _listed(names: list[str]) -> str:
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
