"""A private copy of a model, fixed at its present values, in the mode that is to be measured.

The user's model is read once, here, and never touched again: what is evaluated is the copy.
"""

from __future__ import annotations

import copy
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parameter import is_lazy
from torch.nn.utils.weight_norm import WeightNorm

from landscope.core.errors import ModelError, NonFiniteWeightsError
from landscope.core.padding import keep_padding_constant
from landscope.core.strided_pointwise import avoid_overruns

__all__ = ["Mode", "frozen_copy", "is_recurrent", "unwrap"]

Mode = Literal["eval", "batch_statistics"]


def unwrap(model: nn.Module) -> nn.Module:
    """The model inside `torch.compile`, `DataParallel` and `DistributedDataParallel` wrappers."""
    while True:
        if isinstance(model, (nn.DataParallel, nn.parallel.DistributedDataParallel)):
            model = model.module
        elif isinstance(getattr(model, "_orig_mod", None), nn.Module):
            model = model._orig_mod  # type: ignore[assignment]
        else:
            return model


def frozen_copy(model: nn.Module, mode: Mode, dtype: torch.dtype | None, device: torch.device | None) -> nn.Module:
    """The copy; half-precision weights become float32 unless `dtype` says otherwise.

    In `batch_statistics` mode BatchNorm uses the statistics of each batch and keeps none; everything else, dropout
    included, is in eval mode.
    """
    lazy = [name for name, p in model.named_parameters() if is_lazy(p)]
    if lazy:
        raise ModelError(f"{lazy[0]} is not initialised yet (a lazy layer). Run one batch through the model first.")
    _refuse_non_finite(model)
    kinds = {p.dtype for p in model.parameters() if p.is_floating_point()}
    if any(p.is_complex() for p in model.parameters()):
        raise ModelError("complex parameters are not supported: curvature is defined here for real ones")
    target = dtype or (torch.float64 if torch.float64 in kinds else torch.float32)

    def fixed(tensor: Tensor) -> Tensor:
        value = tensor.detach()
        home = device or value.device
        return value.to(device=home, dtype=target if value.is_floating_point() else value.dtype, copy=True)

    with torch.inference_mode(False), torch.no_grad():
        memo: dict[int, object] = {}
        for module in model.modules():
            for parameter in module._parameters.values():
                if parameter is not None and id(parameter) not in memo:
                    memo[id(parameter)] = nn.Parameter(fixed(parameter), requires_grad=False)
            for buffer in module._buffers.values():
                if buffer is not None and id(buffer) not in memo:
                    memo[id(buffer)] = fixed(buffer)
            for value in vars(module).values():  # what a hook recomputes (old weight_norm) has a graph behind it
                if isinstance(value, Tensor) and not value.is_leaf:
                    memo[id(value)] = fixed(value)
        try:
            twin = copy.deepcopy(model, memo)
        except Exception as error:
            raise ModelError(
                f"the model could not be copied ({type(error).__name__}: {error}). Landscope measures a private copy so that "
                f"yours stays untouched; remove what cannot be copied (locks, open files, generators) from the module."
            ) from error
    twin.eval()
    _differentiate_weight_norm(twin)
    keep_padding_constant(twin)
    if (device or next((p.device for p in twin.parameters()), torch.device("cpu"))).type == "cpu":
        avoid_overruns(twin)
    if mode == "batch_statistics":
        for module in twin.modules():
            if isinstance(module, _BatchNorm):
                module.track_running_stats = False
                module.running_mean = module.running_var = module.num_batches_tracked = None
    return twin


def _composite_weight_norm(v: Tensor, g: Tensor, dim: int | None) -> Tensor:
    """G v / ‖v‖, the norm over all dimensions but `dim`, in operations that differentiate correctly."""
    axes = list(range(v.dim())) if dim is None or dim == -1 else [d for d in range(v.dim()) if d != dim % v.dim()]
    return v * (g / torch.linalg.vector_norm(v, dim=axes, keepdim=True))


def _differentiate_weight_norm(model: nn.Module) -> None:
    """Replace torch's fused weight norm, whose second derivative is wrong on the CPU (an asymmetric Hessian, torch 2.13)."""
    for module in model.modules():
        if isinstance(module, nn.utils.parametrizations._WeightNorm):
            dim = module.dim
            module.forward = lambda g, v, dim=dim: _composite_weight_norm(v, g, dim)  # type: ignore[method-assign,misc]
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, WeightNorm):
                hook.compute_weight = lambda module, hook=hook: _composite_weight_norm(  # type: ignore[method-assign,misc]
                    getattr(module, hook.name + "_v"), getattr(module, hook.name + "_g"), hook.dim
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


def is_recurrent(model: nn.Module) -> bool:
    """Whether the model has recurrent layers, whose cuDNN kernels cannot be differentiated in eval mode."""
    return any(isinstance(module, nn.RNNBase) for module in model.modules())


def dropouts_left_on(model: nn.Module) -> list[str]:
    """Names of dropout layers that stay in training mode although the model was put into eval mode."""
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.modules.dropout._DropoutNd) and module.training
    ]
