"""Weight norm whose second derivative is right.

Torch's fused kernel has a wrong second derivative on the CPU (2.13): the Hessian is not symmetric. It is replaced by the same
function in single operations.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.weight_norm import WeightNorm


def _composite_weight_norm(v: Tensor, g: Tensor, dim: int | None) -> Tensor:
    """The weight g v / ‖v‖, the norm over all dimensions but `dim`, in operations that differentiate correctly."""
    axes = list(range(v.dim())) if dim is None or dim == -1 else [d for d in range(v.dim()) if d != dim % v.dim()]
    return v * (g / torch.linalg.vector_norm(v, dim=axes, keepdim=True))


def differentiate_weight_norm(model: nn.Module) -> None:
    """Let weight norm, as a parametrisation or as the older hook, differentiate correctly twice, in place.

    >>> layer = nn.utils.parametrizations.weight_norm(nn.Linear(2, 1, bias=False))
    >>> before = layer.weight.detach()
    >>> differentiate_weight_norm(layer)
    >>> bool(torch.allclose(before, layer.weight))
    True
    """
    for module in model.modules():
        if isinstance(module, nn.utils.parametrizations._WeightNorm):
            dim = module.dim
            module.forward = lambda g, v, dim=dim: _composite_weight_norm(v, g, dim)  # type: ignore[method-assign,misc]
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, WeightNorm):
                hook.compute_weight = lambda module, hook=hook: _composite_weight_norm(  # type: ignore[method-assign,misc]
                    getattr(module, hook.name + "_v"), getattr(module, hook.name + "_g"), hook.dim
                )
