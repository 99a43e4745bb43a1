"""How a layer uses its weight, in the terms of relative flatness.

A linear layer computes a_is = W φ_is + b at every position s of sample i (one position for plain features). With
H_i^{st} = ∂²ℓ_i/∂a_is ∂a_it the weight's Hessian is (1/n) Σ_i Σ_st H_i^{st} ⊗ φ_is φ_itᵀ, so that relative flatness is

    κ = (1/n) Σ_i Σ_st ⟨φ_is, φ_it⟩ ⟨W Wᵀ, H_i^{st}⟩,   with one position   κ = (1/n) Σ_i ‖φ_i‖² ⟨W Wᵀ, H_i⟩.

A convolution does the same with the patch u_is at every place s, the weight shared by all. Its weight is the matrix
(out channels, in channels per group × kernel). With groups, channel c sees the patch of its own group, and the definition
Σ_cc' ⟨w_c, w_c'⟩ tr H_cc' is taken literally: pairs of channels of different groups count, each with its own patch.

The `Conv1D` of Hugging Face's GPT-2 is a linear layer that holds its weight as (m, d).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class _Conv1D(type):
    """Finds the layers by their name: transformers is not imported for them."""

    def __instancecheck__(cls, instance: object) -> bool:
        return any(
            kind.__name__ == "Conv1D" and kind.__module__.startswith("transformers.") for kind in type(instance).__mro__
        )


class TransposedLinear(nn.Module, metaclass=_Conv1D):
    """A linear layer whose weight is (inputs, outputs): every `transformers.pytorch_utils.Conv1D` is an instance."""

    weight: Tensor
    bias: Tensor | None


Linear = nn.Linear | TransposedLinear
Conv = nn.Conv1d | nn.Conv2d | nn.Conv3d
Layer = Linear | Conv
CONVOLVE = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}


@dataclass(frozen=True)
class LinearGeometry:
    """Inputs and outputs of a linear layer in the terms of the formula; `scale` divides the features, if given.

    >>> geometry = LinearGeometry(nn.Linear(3, 2))
    >>> geometry.patches(torch.ones(5, 4, 3)).shape      # 5 samples, 1 group, 3 features, 4 positions
    torch.Size([5, 1, 3, 4])
    """

    layer: Linear
    scale: Tensor | None = None

    @property
    def groups(self) -> int:
        """All outputs see the same features."""
        return 1

    def matrix(self) -> Tensor:
        """W (d, m) in float64, times the scale of its features."""
        weight = as_matrix(self.layer, self.layer.weight.detach().double())
        return weight if self.scale is None else weight * self.scale

    def column_scale(self) -> Tensor | None:
        """What divides a direction in weight space, broadcast to (d, m)."""
        return self.scale

    def channels(self, x: Tensor) -> Tensor:
        """The features with the dimension that is scaled last: (…, m)."""
        return x

    def apply(self, weight: Tensor, x: Tensor) -> Tensor:
        """The layer with another weight (d, m) and without its bias."""
        return F.linear(x, weight)

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
        weight = as_matrix(self.layer, self.layer.weight.detach().double())
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

    def apply(self, weight: Tensor, x: Tensor) -> Tensor:
        """The layer with another weight (d, m) and without its bias."""
        return self._convolve(x, weight.view(-1, *self._kernel), self.groups)

    def patches(self, x: Tensor) -> Tensor:
        """What the weight multiplies: (n, groups, m, places).

        The convolution itself takes them, with unit filters, so stride, padding and dilation are its own.
        """
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


Geometry = LinearGeometry | ConvGeometry


def geometry_of(layer: Layer, scale: Tensor | None = None) -> Geometry:
    """The geometry of a linear or convolutional layer."""
    return LinearGeometry(layer, scale) if isinstance(layer, Linear) else ConvGeometry(layer, scale)


def as_matrix(layer: Layer, weight: Tensor) -> Tensor:
    """A weight of a layer, or anything of its shape, as a matrix (d, m): outputs by entries of what it multiplies.

    >>> as_matrix(nn.Conv1d(2, 3, 5), torch.zeros(3, 2, 5)).shape
    torch.Size([3, 10])
    """
    return weight.T if isinstance(layer, TransposedLinear) else weight.flatten(1)


def entries(layer: Layer) -> int:
    """m, how many numbers of its input one output of a layer multiplies with its weight."""
    return as_matrix(layer, layer.weight).shape[1]


def is_faithful(layer: Layer, inputs: Tensor, outputs: Tensor, atol: float = 1e-5, rtol: float = 1e-4) -> bool:
    """Whether a layer's output is its weight times its input plus its bias, which a hook or a subclass may change.

    Tolerances as for `nearly_equal`. Half precision is compared in float32.

    >>> layer, x = nn.Linear(2, 3), torch.ones(5, 2)
    >>> is_faithful(layer, x, layer(x)), is_faithful(layer, x, 2 * layer(x))
    (True, False)
    """
    dtype = torch.promote_types(outputs.dtype, torch.float32)
    weight, x, out = (t.detach().to(dtype) for t in (layer.weight, inputs, outputs))
    try:
        plain = geometry_of(layer).apply(as_matrix(layer, weight), x)
    except RuntimeError:  # an input that only a subclass accepts
        return False
    if layer.bias is not None:
        plain = plain + layer.bias.detach().to(dtype).view(-1, *[1] * (weight.dim() - 2))
    return plain.shape == out.shape and nearly_equal(out, plain, atol, rtol)


def nearly_equal(a: Tensor, b: Tensor, atol: float, rtol: float | None = None) -> bool:
    """Up to `rtol` of each number and `atol` of the largest one; two empty tensors are equal."""
    return not a.numel() or torch.allclose(a, b, atol if rtol is None else rtol, atol * float(a.abs().max()))
