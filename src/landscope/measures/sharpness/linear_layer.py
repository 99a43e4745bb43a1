"""How a linear layer uses its weight: a_is = W φ_is + b at every position s of sample i (one position for plain features).

With H_i^{st} = ∂²ℓ_i/∂a_is ∂a_it the weight's Hessian is (1/n) Σ_i Σ_st H_i^{st} ⊗ φ_is φ_itᵀ, so that relative flatness is

    κ = (1/n) Σ_i Σ_st ⟨φ_is, φ_it⟩ ⟨W Wᵀ, H_i^{st}⟩,   with one position   κ = (1/n) Σ_i ‖φ_i‖² ⟨W Wᵀ, H_i⟩.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

__all__ = ["LinearGeometry"]


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
