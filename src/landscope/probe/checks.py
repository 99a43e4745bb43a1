"""What a probe refuses: each check says what was found and what to do about it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.ao.quantization import FakeQuantizeBase
from torch.nn.modules.batchnorm import _BatchNorm, _NormBase
from torch.nn.modules.conv import _ConvNd
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
from landscope.core.text import shape, some
from landscope.probe.batches import Batch, tensors_in
from landscope.probe.frozen import dropouts_left_on
from landscope.probe.loss.losses import Loss
from landscope.probe.loss.widening import NARROW
from landscope.probe.reading import FixedData
from landscope.probe.sharding.parts import local

DRAWS = 32
"""How often a forward pass that draws random numbers is repeated to see whether they matter."""


def check_options(
    model: object,
    mode: str,
    temperature: float,
    dtype: torch.dtype | None,
    per: str | None = None,
    precision: str = "auto",
) -> None:
    """Arguments that could not mean anything."""
    if precision not in ("auto", "highest"):
        raise ModelError(f"precision must be 'auto' or 'highest', got {precision!r}")
    if per not in (None, "token", "sequence"):
        raise LossError(f"per must be 'token' or 'sequence', got {per!r}")
    if not isinstance(model, nn.Module):
        hint = "Load weights: model.load_state_dict(…)" if isinstance(model, dict | str) else "The model comes first"
        raise ModelError(f"model must be a torch.nn.Module, got {type(model).__name__}. {hint}")
    if mode not in ("eval", "batch_statistics"):
        raise ModelError(f"mode must be 'eval' or 'batch_statistics', got {mode!r}")
    if not (math.isfinite(temperature) and temperature > 0):
        raise LossError(f"temperature must be a positive number, got {temperature}")
    if dtype not in (None, torch.float32, torch.float64, NARROW):
        raise ModelError(
            f"dtype must be torch.float32, torch.float64 or, for weights that are to stay so, torch.bfloat16, got {dtype}"
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


def check_loss_of_sequences(loss: Loss) -> None:
    """A mean over sequences of a loss that is known for all tokens of a batch together only."""
    if loss.reduction == "label_mean":
        raise LossError(
            f"per='sequence' needs a loss for every sequence, and {loss.name!r} is one number per batch: a mean over all its "
            f"tokens. Return one loss per sequence, or measure per='token'."
        )


def check_targets(loss: Loss, targets: object) -> None:
    """Batches without targets, where the loss needs them."""
    if targets is None and loss.takes == "targets":
        raise MissingTargetsError(
            f"the batches hold inputs but no targets, and the loss {loss.name!r} needs them. Yield (inputs, targets) tuples, "
            f"or dicts with one of the keys 'labels', 'label', 'targets', 'target', 'y' (a language model's are its inputs: "
            f"'labels': input_ids, with -100 where there is padding); or pass a loss that takes the whole batch: "
            f"landscope.Loss(function, takes='batch')."
        )


def check_call(model: nn.Module, forward: Callable[[], object], given: str, cut: bool) -> object:
    """What the model returns for the inputs of a batch, or for a part of them; refused where it cannot be called with them."""
    try:
        torch.manual_seed(0)
        return forward()
    except Exception as error:
        if isinstance(error, LandscopeError) or is_out_of_memory(error):
            raise
        parts = (
            " A part of a batch was given; use mode='batch_statistics' where batches cannot be cut (a graph, a fixed batch size)."
            * cut
        )
        if layer := refusing_layer(model, forward):
            raise ModelError(f"{type(model).__name__} could not be called with {given}: {layer}.{parts}") from error
        raise ModelError(
            f"{type(model).__name__} could not be called with {given}: {error}.{parts} The targets do not go into the model: "
            f"where it needs them (a decoder's inputs), put what it takes into the batch under the names of its arguments, or "
            f"wrap it."
        ) from error


def refusing_layer(model: nn.Module, forward: Callable[[], object]) -> str:
    """Which layer does not take what it is given, what it expects and what it got; nothing where none of a known type is.

    >>> net = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    >>> refusing_layer(net, lambda: net(torch.ones(2, 1, 28, 28)))
    "layer '1' (Linear) expects 64 features in the last dimension, got 2×784"
    """
    names = {module: name for name, module in model.named_modules()}
    entered: list[tuple[nn.Module, tuple[Any, ...]]] = []
    hooks = [
        handle
        for module in names
        for handle in (
            module.register_forward_pre_hook(lambda layer, args: entered.append((layer, args))),
            module.register_forward_hook(lambda *_: entered.pop() and None),
        )
    ]
    try:
        forward()
        return ""
    except Exception:
        layer, args = entered[-1] if entered else (model, ())
    finally:
        for handle in hooks:
            handle.remove()
    given = next((arg for arg in args if isinstance(arg, Tensor)), None)
    expects = "" if given is None else _unmet(layer, given)
    if not expects or given is None:
        return ""
    got = f"{given.min().item()} to {given.max().item()}" if isinstance(layer, nn.Embedding) else shape(given.shape)
    where = f"layer {names[layer]!r} ({type(layer).__name__})" if names[layer] else "it"
    return f"{where} expects {expects}, got {got}"


def _unmet(layer: nn.Module, x: Tensor) -> str:
    """What a layer expects of its input, in words; nothing where it has that."""
    channels = x.shape[1] if x.dim() > 1 else None
    if isinstance(layer, _ConvNd):
        room = len(layer.kernel_size)
        there = x.shape[-room - 1] if x.dim() in (room + 1, room + 2) else None
        return f"{layer.in_channels} channels and {room} dimensions behind them" * (there != layer.in_channels)
    if isinstance(layer, (_NormBase, nn.GroupNorm)):
        number = layer.num_features if isinstance(layer, _NormBase) else layer.num_channels
        return f"{number} channels" * (channels != number)
    if isinstance(layer, (nn.LayerNorm, nn.RMSNorm)):
        last = tuple(layer.normalized_shape)
        return f"the last dimensions {shape(last)}" * (tuple(x.shape[-len(last) :]) != last)
    if isinstance(layer, nn.Embedding):
        known = not x.is_floating_point() and x.numel() and x.min() >= 0 and x.max() < layer.num_embeddings
        return "" if known else f"whole numbers from 0 to {layer.num_embeddings - 1}"
    width = next((getattr(layer, name) for kind, name in _WIDTHS.items() if isinstance(layer, kind)), None)
    return "" if width in (None, *x.shape[-1:]) else f"{width} features in the last dimension"


_WIDTHS: dict[type[nn.Module], str] = {
    nn.Linear: "in_features",
    nn.RNNBase: "input_size",
    nn.MultiheadAttention: "embed_dim",
}
"""Layers that look at the last dimension, and what they call its size."""


def tensor_output(outputs: object) -> Tensor:
    """The tensor of predictions in what a model returned: itself, its `logits`, or the first of a tuple after its loss."""
    if isinstance(outputs, Tensor):
        return outputs
    logits = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if isinstance(logits, Tensor):
        return logits
    if isinstance(outputs, (tuple, list)) and outputs and isinstance(outputs[0], Tensor):
        second = outputs[1] if len(outputs) > 1 and not outputs[0].dim() else None
        return second if isinstance(second, Tensor) else outputs[0]
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


def check_deterministic(model: nn.Module, forward: Callable[[], object], first: object) -> None:
    """Noise in the forward pass: dropout left on, or random layers; or a state that it keeps. `first` is what it returned."""
    change, drew = _change_between_draws(forward, first)
    if change:
        left_on = dropouts_left_on(model)
        where = f"dropout is left on in {', '.join(left_on)}" if left_on else "its forward pass draws random numbers"
        if not drew:
            where = "it keeps something from pass to pass (a hidden state), or draws from a generator of its own"
        raise StochasticModelError(
            f"the model gave different outputs for the same batch (relative change {change:.2g}): {where}. A sharpness is "
            f"defined for a fixed function. Use nn.Dropout, or F.dropout(x, p, training=self.training), which eval mode "
            f"switches off; remove other noise, and what is kept."
        )


def check_loss_is_deterministic(loss: Loss, evaluate: Callable[[], object]) -> None:
    """Noise in the loss: dropout in a criterion, or random numbers."""
    torch.manual_seed(0)
    change, _ = _change_between_draws(evaluate, evaluate())
    if change:
        criterion = loss.function
        left_on = dropouts_left_on(criterion) if isinstance(criterion, nn.Module) else []
        where = f"dropout is on in its {', '.join(left_on)}" if left_on else "it draws random numbers, or keeps a state"
        raise LossError(
            f"the loss {loss.name!r} gave different values for the same outputs (relative change {change:.2g}): {where}. A "
            f"sharpness is defined for a fixed loss. Put the criterion into eval mode (criterion.eval()), or pass a loss "
            f"without noise."
        )


def _change_between_draws(function: Callable[[], object], returned: object) -> tuple[float, bool]:
    """How much of what a function returned changes with torch's random state (0: nothing to speak of), and whether it drew."""
    first = output_tensors(returned)
    for seed in range(1, 1 + DRAWS):  # a small dropout rate shows on few draws only
        torch.manual_seed(seed)
        before = torch.get_rng_state()
        again = output_tensors(function())
        drew = not torch.equal(before, torch.get_rng_state())
        change = max((relative_change(a, b) for a, b in zip(first, again, strict=True)), default=0.0)
        tolerance = 0.0 if drew else 1e-3  # some GPU kernels add up in varying order
        if change > tolerance or not drew:
            break
    return (change if change > tolerance else 0.0), drew


def check_samples_are_independent(forward: Callable[[Batch], object], batch: Batch, outputs: object) -> None:
    """Outputs of a batch that depend on which samples share it: their mean would depend on the batch size.

    Both halves are looked at: what looks back only (a sequence along the first dimension) does not change the first one.
    """
    together = output_tensors(outputs)
    start = 0
    for half in batch.pieces((batch.size + 1) // 2):
        for a, b in zip(output_tensors(forward(half)), together, strict=True):
            if b.dim() and b.shape[0] == batch.size and a.shape[0] == half.size and a.shape[1:] == b.shape[1:]:
                change = relative_change(a, b[start : start + half.size])
                if change > 1e-2:
                    raise ModelError(
                        f"the output for a sample depends on the other samples of its batch (relative change {change:.2g} "
                        f"between a batch of {batch.size} and one of {half.size}): BatchNorm without running statistics, or "
                        f"something like it. Use mode='batch_statistics', which keeps your batches whole; where the first "
                        f"dimension is time and not samples, transpose the data."
                    )
        start += half.size


def relative_change(a: Tensor, b: Tensor) -> float:
    """The largest change of an entry, relative to the largest entry."""
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
                f"it onto one device (from_pretrained(…, device_map=None))."
            )
    for name, parameter in model.named_parameters():
        if parameter.layout != torch.strided:
            raise ModelError(
                f"{name} is a {str(parameter.layout).removeprefix('torch.')} tensor, which has no second derivatives in torch. "
                f"Hold it as a dense one ({name}.to_dense()) in the model that you measure."
            )
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
            f"the weights of {some(layers)} are quantised: integers that have no gradient and do not let one through. "
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
        which = "the model" if "" in scripted else f"the layer that holds {some(held)}"
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
    for name, tensor in ((name, local(tensor)) for name, tensor in suspects.items()):
        bad = int((~torch.isfinite(tensor.detach())).sum()) if tensor.is_floating_point() else 0
        if bad:
            raise NonFiniteWeightsError(
                f"{name} holds {bad} NaN or infinite values out of {tensor.numel()}. A diverged model has no minimum to "
                f"measure: load an earlier checkpoint."
            )
