"""Relative flatness through the outputs of a network that is piecewise linear behind the layer.

There the outputs z carry all curvature, ∂²L/∂a_i² = J_iᵀ Λ_i J_i with Λ_i = ∂²L/∂z_i² and J_i = ∂z_i/∂a_i, so that

    κ = Σ_i Σ_{c,c'} Λ_i^{cc'} Σ_{s,t} G_i^{st} ⟨J_ics, W Wᵀ J_ic't⟩,        G_i^{st} = ⟨u_is, u_it⟩

takes C pulled-back outputs, however wide the layer and however many its positions: 10 instead of 64 products for a layer of
64 units under ten classes. Exact, and so is its gradient.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from landscope.training.objectives.behind import behind, pulled_back
from landscope.training.objectives.graph import between, is_straight
from landscope.training.objectives.recording import Call

__all__ = ["flatness_through_outputs", "has_straight_outputs"]


def has_straight_outputs(loss: Tensor, call: Call, fewer_than: int) -> bool:
    """Whether the model's output is known and small, piecewise linear in the layer's, and all that the loss sees of that."""
    a, z = call.outputs, call.results
    return (
        z is not None
        and z.requires_grad
        and z.grad_fn is call.made_by  # else the loss has worked on it in place
        and z.dim() > 1
        and z.shape[0] == a.shape[0]
        and z[0].numel() < fewer_than
        and z.dtype == a.dtype == torch.promote_types(a.dtype, torch.float32)
        and bool(between(z, a))
        and not between(loss, a, without=z)
        and is_straight(z, a)
    )


def flatness_through_outputs(loss: Tensor, call: Call, factor: Tensor, differentiable: bool) -> Tensor:
    """κ, where `has_straight_outputs` and rows do not mix."""
    a, z = call.outputs, call.results
    assert z is not None
    n, classes, places, d = len(z), z[0].numel(), call.positions, len(factor)
    units = torch.eye(classes, dtype=z.dtype, device=z.device)
    seeds = units.view(classes, 1, *z.shape[1:]).expand(classes, *z.shape)
    curvature = behind(loss, z, differentiable).products(seeds).reshape(classes, n, classes).transpose(0, 1)
    pulled = pulled_back(z, a, seeds, differentiable)
    jacobian = (
        pulled.reshape(classes, n, places, d)
        if isinstance(call.layer, nn.Linear)
        else pulled.reshape(classes, n, d, places).mT
    ).transpose(0, 1)
    patches = call.geometry.patches(call.inputs)[:, 0]
    left = (jacobian @ (factor @ factor.T)).flatten(2)
    right = ((patches.mT @ patches)[:, None] @ jacobian).flatten(2)
    return (curvature * (left @ right.mT)).sum()
