"""A private copy of a model, fixed at its present values, in the mode that is to be measured.

The user's model is read once, here, and never touched again: what is evaluated is the copy.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from landscope.core.errors import ModelError
from landscope.core.memory import available_bytes
from landscope.core.torch_fixes.embedding_bags import differentiate_embedding_bags
from landscope.core.torch_fixes.padding import keep_padding_constant
from landscope.core.torch_fixes.strided_pointwise import avoid_overruns
from landscope.core.torch_fixes.weight_norm import differentiate_weight_norm
from landscope.probe.copying import copied_with
from landscope.probe.loss.widening import NARROW
from landscope.probe.sharding.parts import Sharding, gather_in_units, local, plain_modules

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


def frozen_copy(
    model: nn.Module,
    mode: Mode,
    dtype: torch.dtype | None,
    device: torch.device | None,
    loss: Callable[..., Tensor] | None = None,
    sharding: Sharding | None = None,
    narrow: bool = False,
) -> tuple[nn.Module, Any]:
    """The copy, and a loss that refers to it; half-precision weights become float32, unless they are to stay `narrow`.

    A loss that is a module is on the copy's device and in its precision. Of parameters that are sharded the copy has this
    process's part, and gathers them (`landscope.probe.sharding`).

    In `batch_statistics` mode BatchNorm uses the statistics of each batch and keeps none; everything else, dropout
    included, is in eval mode.
    """
    target = working_dtype(model, dtype)
    with torch.inference_mode(False), torch.no_grad():
        try:
            memo = _fixed_tensors(model, target, device, sharding, narrow)
            plain_modules(model, memo, copy.deepcopy)
            twin, bound = copied_with(model, loss, memo)
        except Exception as error:
            raise ModelError(
                f"the model could not be copied ({type(error).__name__}: {error}). Landscope measures a private copy so that "
                f"yours stays untouched; remove what cannot be copied (locks, open files, generators) from the module."
            ) from error
    for module in twin.modules():
        if isinstance(module, torch.jit.ScriptModule):  # copied as it is, whatever the memo says
            module.to(device=device, dtype=target)
    twin.eval()
    differentiate_weight_norm(twin)
    keep_padding_constant(twin)
    _plain_embeddings(twin)
    differentiate_embedding_bags(twin)
    _plain_configuration(twin)
    if sharding is not None:
        gather_in_units(model, twin, sharding)
    if (device or next((p.device for p in twin.parameters()), torch.device("cpu"))).type == "cpu":
        avoid_overruns(twin)
    if mode == "batch_statistics":
        for module in twin.modules():
            if isinstance(module, _BatchNorm):
                module.track_running_stats = False
                module.running_mean = module.running_var = module.num_batches_tracked = None
    if isinstance(bound, nn.Module) and bound is not loss:
        _move_strange(bound, target, device)
    return twin, bound


def unset_statistics(model: nn.Module) -> Iterator[str]:
    """A notice about BatchNorms whose running statistics are those of a new layer, as after averaging weights.

    >>> list(unset_statistics(nn.Sequential(nn.Linear(1, 1), nn.BatchNorm1d(1))))[0][:55]
    'the running statistics of BatchNorm (1) were never set:'
    """
    new = [
        name or type(module).__name__
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm)
        and module.running_mean is not None
        and module.running_var is not None
        and not bool(module.running_mean.any())
        and bool((module.running_var == 1).all())
    ]
    if new:
        named = ", ".join(new[:3]) + (f" and {len(new) - 3} more" if len(new) > 3 else "")
        yield (
            f"the running statistics of BatchNorm ({named}) were never set: they are a new layer's, mean 0 and variance 1, and "
            f"predictions are not those of training. Read the training data once in training mode, as "
            f"torch.optim.swa_utils.update_bn does, or measure mode='batch_statistics'"
        )


def _fixed_tensors(
    model: nn.Module, target: torch.dtype, device: torch.device | None, sharding: Sharding | None, narrow: bool
) -> dict[int, Any]:
    """Constants that stand for the model's tensors in its copy, by their ids."""
    wide = torch.complex128 if target == torch.float64 else torch.complex64

    def fixed(tensor: Tensor, stays: bool = False) -> Tensor:
        value = local(tensor.detach())
        kind = target if value.is_floating_point() and not stays else wide if value.is_complex() else value.dtype
        return value.to(device=device or value.device, dtype=kind, copy=True)

    memo: dict[int, Any] = {}
    if sharding is not None:
        for name, shared in model.named_parameters():
            memo[id(shared)] = nn.Parameter(fixed(sharding.own(name, shared.detach())), requires_grad=False)
    for module in model.modules():
        for parameter in module._parameters.values():
            if parameter is not None and id(parameter) not in memo:
                memo[id(parameter)] = nn.Parameter(fixed(parameter, narrow), requires_grad=False)
        for buffer in module._buffers.values():
            if buffer is not None and id(buffer) not in memo:
                memo[id(buffer)] = fixed(buffer)
        for value in vars(module).values():  # what a hook recomputes (old weight_norm) has a graph behind it
            if isinstance(value, Tensor) and (not value.is_leaf or value.is_inference()):
                memo[id(value)] = fixed(value)
    return memo


def _move_strange(criterion: nn.Module, dtype: torch.dtype, device: torch.device | None) -> None:
    """Have a criterion's own tensors (class weights) where the copy is, and in its precision."""
    held = (*criterion.parameters(), *criterion.buffers())
    if any((device or t.device) != t.device or (t.is_floating_point() and t.dtype != dtype) for t in held):
        criterion.to(device, dtype)


def working_dtype(model: nn.Module, asked: torch.dtype | None = None) -> torch.dtype:
    """The precision in which a model is measured: float64 where it has such weights, float32 otherwise, or what is asked for.

    Weights that stay in half precision are computed with in float32.
    """
    if asked is not None:
        return torch.float32 if asked == NARROW else asked
    kinds = {p.dtype for p in model.parameters()}
    return torch.float64 if torch.float64 in kinds else torch.float32


VECTORS = 7
"""Of the size of the parameters, in float32, for which there must be room: the copy, and six that λ₁ takes."""


def stays_narrow(model: nn.Module, asked: torch.dtype | None, device: torch.device) -> bool:
    """Whether weights in half precision stay so: where that is asked for, and where copies in float32 do not fit."""
    held = [p for p in model.parameters() if p.is_floating_point()]
    all_narrow = bool(held) and {p.dtype for p in held} == {NARROW}
    if asked == NARROW and not all_narrow:
        kinds = ", ".join(sorted({str(p.dtype).removeprefix("torch.") for p in held}))
        raise ModelError(
            f"dtype=torch.bfloat16 keeps weights that are in bfloat16, and yours are in {kinds}: rounded they would be another "
            f"point. Leave dtype out, or measure model.to(torch.bfloat16)."
        )
    if asked is not None or not all_narrow:
        return asked == NARROW
    return VECTORS * 4 * sum(p.numel() for p in held) > available_bytes(device)


def _plain_embeddings(model: nn.Module) -> None:
    """Embeddings with plain gradients, neither sparse nor rescaled, and with `max_norm` applied once and for all.

    Sparse ones have no second derivatives. `scale_grad_by_freq` divides gradients by how often a word occurs in the batch,
    which leaves the loss as it is. A forward pass would cut rows that are too long in place, so that each pass changed the
    weights.
    """
    for module in model.modules():
        if isinstance(module, (nn.Embedding, nn.EmbeddingBag)):
            module.sparse = module.scale_grad_by_freq = False
            if module.max_norm is not None:
                rows = torch.arange(module.num_embeddings, device=module.weight.device)
                with torch.no_grad():
                    torch.embedding_renorm_(module.weight, rows, module.max_norm, module.norm_type)
                module.max_norm = None


def _plain_configuration(model: nn.Module) -> None:
    """Hugging Face models without a cache for generation, which takes memory, and with experts that can be differentiated twice.

    Neither changes an output. Kernels that multiply groups of experts at once have no second derivative and know no float64.
    """
    for module in model.modules():
        config = getattr(module, "config", None)
        if getattr(config, "use_cache", False) is True:
            config.use_cache = False  # type: ignore[union-attr]
        if getattr(config, "_experts_implementation", None) not in (None, "eager"):
            config._experts_implementation = "eager"  # type: ignore[union-attr]


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
