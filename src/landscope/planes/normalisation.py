"""The length of a direction, filter by filter (Li et al. 2018).

    d_f ← d_f ‖θ_f‖ / ‖d_f‖        f: a filter (`"filter"`), or a whole tensor (`"layer"`)

A filter is what feeds one output: a row of a linear weight, an output channel of a convolution, one entry of a bias or
of a normalisation layer. A filter that is zero gets a zero direction. So a step of 1 is as long as each filter itself.

What it is for: the same draw gives the same losses after filters before a BatchNorm, or whole layers of a ReLU network,
have been rescaled without changing the function. Rescaling single neurons of a ReLU network changes proportions *within*
the filters of the next layer, which no scaling by filters undoes: the losses along the direction then differ. Where
one-dimensional parameters take part, Li et al.'s code takes θ itself as the direction; here the signs are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvTransposeNd

from landscope.core.probe import Probe
from landscope.core.registry import Registry

__all__ = ["NORMALISATIONS", "UNITS", "filter_norms", "normalised"]

Norms = Callable[[Tensor, nn.Module | None], Tensor]
"""(tensor, layer that holds it) → norms that broadcast against the tensor."""

NORMALISATIONS: Registry[Norms] = Registry("normalisation of directions")
UNITS = {"filter": "in filter norms", "layer": "in layer norms", "none": "as drawn"}
"""What a step of 1 along a random direction is."""


@NORMALISATIONS.register("filter")
def filter_norms(tensor: Tensor, layer: nn.Module | None = None) -> Tensor:
    """The norm of the filter that each entry belongs to.

    >>> filter_norms(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor([[5.],
            [1.]])
    """
    if tensor.dim() < 2:
        return tensor.abs()
    if isinstance(layer, _ConvTransposeNd) and tensor.shape == layer.weight.shape:
        grouped = tensor.reshape(layer.groups, -1, *tensor.shape[1:])  # (groups, in/groups, out/groups, kernel …)
        axes = [1, *range(3, grouped.dim())]
        norms = torch.linalg.vector_norm(grouped, dim=axes, keepdim=True)
        return norms.expand(grouped.shape[:3] + norms.shape[3:]).reshape(*tensor.shape[:2], *[1] * (tensor.dim() - 2))
    return torch.linalg.vector_norm(tensor, dim=list(range(1, tensor.dim())), keepdim=True)


@NORMALISATIONS.register("layer")
def _layer_norm(tensor: Tensor, layer: nn.Module | None = None) -> Tensor:  # noqa: ARG001 (the shape says it all)
    return torch.linalg.vector_norm(tensor)


@NORMALISATIONS.register("none")
def _as_they_are(tensor: Tensor, layer: nn.Module | None = None) -> Tensor:  # noqa: ARG001
    return torch.ones((), dtype=tensor.dtype, device=tensor.device)


def normalised(probe: Probe, direction: Mapping[str, Tensor], how: str) -> dict[str, Tensor]:
    """The direction with the norms that the parameters of the probe have.

    >>> probe = Probe(nn.Linear(2, 2, bias=False), (torch.randn(4, 2), torch.tensor([0, 1, 0, 1])))
    >>> d = normalised(probe, {"weight": torch.ones(2, 2)}, "filter")
    >>> bool(torch.allclose(filter_norms(d["weight"]), filter_norms(probe.params["weight"])))
    True
    """
    norms, layers = NORMALISATIONS[how], probe.modules
    out = {}
    for name, tensor in direction.items():
        layer = layers.get(name.rpartition(".")[0])
        own = norms(tensor, layer)
        scale = torch.where(own > 0, norms(probe.params[name], layer) / own, 0.0)
        out[name] = tensor * scale
    return out
