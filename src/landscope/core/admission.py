"""Models that cannot be measured, whatever the data: each is refused before anything is copied."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.ao.quantization import FakeQuantizeBase
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy

from landscope.core.errors import ModelError, NonFiniteWeightsError
from landscope.core.parameters import Selection, select_parameters

__all__ = ["quantised_layers", "refuse_simulated_quantisation", "refuse_unmeasurable"]

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
