"""Relative flatness of a layer as a term of the loss: differentiable in every parameter.

    κ = Σ_{s,s'} ⟨w_s, w_s'⟩ tr H_{s,s'} = Σ_{k,l} ⟨f_k ⊗ u_l, ∂²L/∂a² (f_k ⊗ u_l)⟩

with F Fᵀ = W Wᵀ (neuronwise) or ‖W‖² I (layerwise), and u_l the l-th entry of what the weight multiplies, at all positions of
all samples (Petzka et al. 2021, Adilova et al. 2023). L is whatever loss is given: its weights and its mean are its own.

    exact       min(d, m) · m directions, always right; where rows do not mix behind the layer the Gram matrices G_i of the
                positions of each row are enough: min(d, m) · positions directions, κ = Σ_i ‖φ_i‖² ⟨W Wᵀ, ∂²L/∂a_i²⟩ with one;
    sampled     E ⟨δ, ∂²L/∂a² δ⟩, unbiased for each draw of signs: δ_i = ‖φ_i‖ F r_i with signs of its own for each row, where
                rows do not mix and have one position; else δ = the layer with the weight F A Bᵀ/√q, A and B of q columns.
                (A whole matrix of signs takes m² of them; 16 columns leave the spread of the estimate about the same.)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from landscope.training.objectives.behind import Behind
from landscope.training.objectives.recording import Call

__all__ = ["directions", "exact_flatness", "factor_of", "has_separate_rows", "sampled_flatness", "sign_shapes"]

COLUMNS = 16
"""q, of the signs A and B."""


def factor_of(weight: Tensor, layerwise: bool) -> Tensor:
    """F (d, r): the weight as a matrix, or its norm times the identity.

    >>> factor_of(torch.ones(2, 3, 1, 3), layerwise=False).shape, float(factor_of(torch.ones(2, 2), layerwise=True)[0, 0])
    (torch.Size([2, 9]), 2.0)
    """
    matrix = weight.flatten(1).to(torch.promote_types(weight.dtype, torch.float32))
    if not layerwise:
        return matrix
    return torch.linalg.matrix_norm(matrix) * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)


def has_separate_rows(call: Call, mixed: bool) -> bool:
    """Whether the Gram matrices of single rows are enough."""
    return not mixed and call.geometry.groups == 1 and call.positions <= call.weight[0].numel()


def directions(call: Call, factor: Tensor, mixed: bool) -> int:
    """How many directions the exact value takes."""
    return min(factor.shape) * (call.positions if has_separate_rows(call, mixed) else call.weight[0].numel())


def exact_flatness(at: Behind, call: Call, factor: Tensor, mixed: bool) -> Tensor:
    """κ, from every direction; `mixed` says that rows act on each other behind the layer."""
    d, r = factor.shape
    neurons = factor.T if r < d else torch.eye(d, dtype=factor.dtype, device=factor.device)
    weighted = neurons if r < d else factor @ factor.T
    patches = call.geometry.patches(call.inputs.to(at.dtype))
    if has_separate_rows(call, mixed):
        units = torch.eye(call.positions, dtype=patches.dtype, device=patches.device)
        here = units[:, None, None].expand(-1, call.samples, 1, -1)
        there = (patches.mT @ patches).movedim(2, 0)
    else:
        here = there = patches.movedim(2, 0)
    tangents, against = (
        call.geometry.outward(side[:, None, None], places, tuple(at.outputs.shape)).flatten(0, 1)
        for side, places in ((neurons, here), (weighted, there))
    )
    return _form(at, tangents, against, twice=r < d)


def sign_shapes(call: Call, factor: Tensor, mixed: bool) -> list[tuple[int, ...]]:
    """Shapes of the signs of one draw: r_i for all rows (n, r), or A (r, q) and B (m, q)."""
    if call.positions == 1 and has_separate_rows(call, mixed):
        return [(call.samples, factor.shape[1])]
    return [(factor.shape[1], COLUMNS), (call.weight[0].numel(), COLUMNS)]


def sampled_flatness(at: Behind, call: Call, factor: Tensor, signs: Sequence[Tensor]) -> Tensor:
    """The mean over k draws of an unbiased estimate of κ; signs as `sign_shapes` has them, each (k, *shape)."""
    inputs = call.inputs.to(at.dtype)
    if len(signs) == 1:
        tangents = (signs[0] @ factor.T).reshape(-1, *at.outputs.shape)
        squares = inputs.square().flatten(1).sum(1)
        return _form(at, tangents, tangents * squares.view(-1, *[1] * (tangents.dim() - 2))) / len(signs[0])
    left, right = signs
    weights = factor @ (left @ right.mT) / left.shape[2] ** 0.5
    tangents = torch.stack([call.apply(weight, inputs) for weight in weights])
    return _form(at, tangents, tangents) / len(left)


def _form(at: Behind, tangents: Tensor, against: Tensor, twice: bool = True) -> Tensor:
    """Σ ⟨against, H tangents⟩; `twice` says that both sides carry the weight.

    Where H is held constant the product carries no gradient: that of the left side then stands for the right side's too.
    """
    form = (against * at.products(tangents)).sum()
    return form if at.differentiable or not twice else 2 * form - form.detach()
