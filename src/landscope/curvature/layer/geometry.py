"""How a linear layer uses its weight: a_is = W φ_is + b at every position s of sample i (one position for plain features).

With H_i^{st} = ∂²ℓ_i/∂a_is ∂a_it the weight's Hessian is (1/n) Σ_i Σ_st H_i^{st} ⊗ φ_is φ_itᵀ, so that relative flatness is

    κ = (1/n) Σ_i Σ_st ⟨φ_is, φ_it⟩ ⟨W Wᵀ, H_i^{st}⟩,   with one position   κ = (1/n) Σ_i ‖φ_i‖² ⟨W Wᵀ, H_i⟩.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from landscope.core.errors import NotApplicableError
from landscope.curvature.layer.sites import layer_sites, replaced_output
from landscope.probe.batches import Batch
from landscope.probe.probe import Probe
from landscope.probe.shared import FORWARD_LOAD
from landscope.probe.totals import FORWARD

__all__ = ["ConvGeometry", "LinearGeometry", "feature_scale"]


@dataclass(frozen=True)
class LinearGeometry:
    """Inputs and outputs of a linear layer in the terms of the formula; `scale` divides the features, if given.

    >>> import torch
    >>> geometry = LinearGeometry(nn.Linear(3, 2))
    >>> geometry.patches(torch.ones(5, 4, 3)).shape      # 5 samples, 1 group, 3 features, 4 positions
    torch.Size([5, 1, 3, 4])
    """

    layer: nn.Linear
    scale: Tensor | None = None

    @property
    def groups(self) -> int:
        """All outputs see the same features."""
        return 1

    def matrix(self) -> Tensor:
        """W (d, m) in float64, times the scale of its features."""
        weight = self.layer.weight.detach().double()
        return weight if self.scale is None else weight * self.scale

    def column_scale(self) -> Tensor | None:
        """What divides a direction in weight space, broadcast to (d, m)."""
        return self.scale

    def channels(self, x: Tensor) -> Tensor:
        """The features with the dimension that is scaled last: (…, m)."""
        return x

    def patches(self, x: Tensor) -> Tensor:
        """What the weight multiplies: (n, 1, m, positions)."""
        x = x if self.scale is None else x / self.scale.to(x.dtype)
        return x.reshape(x.shape[0], 1, -1, x.shape[-1]).transpose(2, 3)

    def filtered(self, x: Tensor, filters: Tensor) -> Tensor:
        """Σ_j s_ij φ_isj with one filter s_i (n, m) for each sample: (n, 1, positions)."""
        return (filters[:, None, None] @ self.patches(x)).squeeze(2)

    def outward(self, neurons: Tensor, places: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Tangents v ⊗ c of the layer's output: v (…, n, d) over neurons times c (…, n, 1, positions)."""
        tangent = places.transpose(-1, -2) * neurons[..., None, :]
        return tangent.reshape(*tangent.shape[:-3], *shape)


# How a convolution uses its weight: like a linear layer on the patch u_is at every place s, the weight shared by all.
#
#     κ = (1/n) Σ_i Σ_st ⟨u_is, u_it⟩ ⟨W Wᵀ, ∂²ℓ_i/∂a_is ∂a_it⟩
#
# with W the weight as a matrix (out channels, in channels per group × kernel). With groups, channel c sees the patch of its own
# group, and the definition Σ_cc' ⟨w_c, w_c'⟩ tr H_cc' is taken at its word: pairs of channels of different groups count, each
# with
# its own patch. Patches are taken by the convolution itself, with unit filters, so stride, padding and dilation are its own.


Conv = nn.Conv1d | nn.Conv2d | nn.Conv3d
CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@dataclass(frozen=True)
class ConvGeometry:
    """Inputs and outputs of a convolution in the terms of the formula; `scale` divides the input channels, if given.

    >>> geometry = ConvGeometry(nn.Conv2d(3, 8, 2, stride=2))
    >>> geometry.patches(torch.ones(5, 3, 4, 4)).shape      # 5 samples, 1 group, 3·2·2 entries, 2·2 places
    torch.Size([5, 1, 12, 4])
    """

    layer: Conv
    scale: Tensor | None = None

    @property
    def groups(self) -> int:
        """Blocks of output channels that see different input channels."""
        return self.layer.groups

    @property
    def _kernel(self) -> tuple[int, ...]:
        return (self.layer.in_channels // self.groups, *self.layer.kernel_size)

    def matrix(self) -> Tensor:
        """W (d, m) in float64, times the scale of its channels."""
        weight = self.layer.weight.detach().double().flatten(1)
        scale = self.column_scale()
        return weight if scale is None else weight * scale

    def column_scale(self) -> Tensor | None:
        """What divides a direction in weight space, (d, m)."""
        if self.scale is None:
            return None
        by_group = self.scale.view(self.groups, 1, -1, 1)
        places = math.prod(self.layer.kernel_size)
        return by_group.expand(-1, self.layer.out_channels // self.groups, -1, places).reshape(
            self.layer.out_channels, -1
        )

    def channels(self, x: Tensor) -> Tensor:
        """The features with the dimension that is scaled last: (…, channels)."""
        return x.movedim(1, -1)

    def patches(self, x: Tensor) -> Tensor:
        """What the weight multiplies: (n, groups, m, places)."""
        entries = math.prod(self._kernel)
        unit = torch.eye(entries, dtype=x.dtype, device=x.device).view(entries, *self._kernel)
        out = self._convolve(self._scaled(x), unit.repeat(self.groups, *[1] * len(self._kernel)), self.groups)
        return out.reshape(x.shape[0], self.groups, entries, -1)

    def filtered(self, x: Tensor, filters: Tensor) -> Tensor:
        """Σ_j s_ij u_isj with one filter s_i (n, m) for each sample: (n, groups, places)."""
        n, groups = x.shape[0], self.groups
        weight = filters.view(n, 1, *self._kernel).expand(-1, groups, *self._kernel).reshape(n * groups, *self._kernel)
        x = self._scaled(x)
        return self._convolve(x.reshape(1, -1, *x.shape[2:]), weight, n * groups).reshape(n, groups, -1)

    def outward(self, neurons: Tensor, places: Tensor, shape: tuple[int, ...]) -> Tensor:
        """Tangents v ⊗ c of the layer's output: v (…, n, d) over channels times c (…, n, groups, places)."""
        by_group = neurons.unflatten(-1, (self.groups, -1))[..., None] * places[..., None, :]
        return by_group.reshape(*by_group.shape[:-4], *shape)

    def _scaled(self, x: Tensor) -> Tensor:
        return x if self.scale is None else x / self.scale.to(x.dtype).view(-1, *[1] * (x.dim() - 2))

    def _convolve(self, x: Tensor, weight: Tensor, groups: int) -> Tensor:
        layer = self.layer
        padding: str | tuple[int, ...] = layer.padding
        if layer.padding_mode != "zeros":
            x, padding = F.pad(x, layer._reversed_padding_repeated_twice, mode=layer.padding_mode), (0,) * (x.dim() - 2)
        convolve = CONVOLVE[len(layer.kernel_size)]
        return convolve(x, weight, None, layer.stride, padding, layer.dilation, groups)


# The standard deviation of a layer's input features over the data, for measures on normalised features.
#
# σ_j² = mean φ_j² − (mean φ_j)² over all samples and positions, in one forward pass. Nothing is normalised in the model itself:
# folding σ into neighbouring layers changes the function wherever a shortcut stands between them.


def feature_scale(probe: Probe, name: str, geometry: LinearGeometry | ConvGeometry) -> tuple[Tensor, int]:
    """σ of every input feature (channel of a convolution) in float64, 1 where it is 0; and how many of them are.

    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 2))
    >>> probe = Probe(net, (torch.tensor([[1.0, 5.0], [3.0, 5.0]]), torch.tensor([0, 1])))
    >>> feature_scale(probe, "0", LinearGeometry(probe.module("0")))
    (tensor([1., 1.], dtype=torch.float64), 1)
    """
    if layer_sites(probe)[name].calls == 0:
        raise NotApplicableError(
            f"the weight of {name!r} is used without calling the layer: its features cannot be seen"
        )
    parts: list[Tensor] = []

    def note(x: Tensor, out: Tensor) -> Tensor:
        features = geometry.channels(x.detach()).double().flatten(0, -2)
        count = torch.full_like(features[:1], len(features))
        parts.append(torch.cat((features.sum(0, keepdim=True), features.square().sum(0, keepdim=True), count)))
        return out

    def piece(batch: Batch) -> tuple[Tensor, ...]:
        parts.clear()
        probe.outputs(probe.params, batch)
        return (torch.stack(parts).sum(0),)

    with replaced_output(geometry.layer, note):
        ((total, squares, count),) = probe.total(piece, load=FORWARD_LOAD, passes=FORWARD, grad=False)
    mean, second = total / count, squares / count
    variance = second - mean.square()
    varies = variance > 64 * torch.finfo(torch.float64).eps * second
    return torch.where(varies, variance, torch.ones_like(variance)).sqrt(), int((~varies).sum())
