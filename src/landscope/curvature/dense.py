"""The slow truth: whole matrices in float64, by plain reverse mode, one entry at a time.

Written to be read and believed, and independent of the products: no forward mode, no vmap, no batches, no closed forms. The
tests compare every operator with it. P² numbers and at least P backward passes: for a few hundred parameters.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from landscope.core.errors import NotApplicableError
from landscope.probe.batches import Batch
from landscope.probe.probe import Probe


def hessian(probe: Probe) -> Tensor:
    """∂²L/∂θ² row by row: the gradient of every entry of the gradient."""
    with probe.measuring():
        leaves = _leaves(probe)
        total = torch.stack([probe.loss_sum(leaves, batch) for batch in _batches(probe)]).sum() / probe.n_samples
        (flat,) = _rows([total], leaves, create_graph=True)
        return torch.stack(_rows(list(flat), leaves)).detach()


def ggn(probe: Probe) -> Tensor:
    """(1/n) Σ_i J_iᵀ ∇²ℓ_i J_i with explicit Jacobians and loss Hessians."""
    matrix = torch.zeros(probe.n_params, probe.n_params, dtype=torch.float64)
    with probe.measuring():
        for batch in _batches(probe):
            jacobian, outputs = _jacobian(probe, batch)
            z = outputs.detach().requires_grad_()
            (slope,) = torch.autograd.grad(probe.loss_of(z, batch), z, create_graph=True)
            curvature = [
                torch.autograd.grad(s, z, retain_graph=True, materialize_grads=True, allow_unused=True)[0].flatten()
                for s in slope.flatten()
            ]
            matrix += jacobian.T @ torch.stack(curvature) @ jacobian
    return matrix / probe.n_samples


def fisher(probe: Probe) -> Tensor:
    """(1/n) Σ_i Σ_y p(y|x_i) ∇ℓ(y) ∇ℓ(y)ᵀ over every label, for losses with one categorical prediction per sample."""
    matrix = torch.zeros(probe.n_params, probe.n_params, dtype=torch.float64)
    with probe.measuring():
        for batch in _batches(probe):
            leaves = _leaves(probe)
            z = probe.outputs(leaves, batch)
            if probe.loss.likelihood != "categorical" or not isinstance(z, Tensor) or z.dim() != 2:
                raise NotApplicableError(
                    "the dense Fisher matrix enumerates labels: cross-entropy with outputs (n, C) only"
                )
            log_p = z.log_softmax(1)
            scores = torch.stack(_rows(list(log_p.flatten()), leaves)).detach()
            matrix += scores.T @ (log_p.detach().exp().reshape(-1, 1) * scores)
    return matrix / probe.n_samples


def empirical_fisher(probe: Probe) -> Tensor:
    """(1/n) Σ_i g_i g_iᵀ from the gradient of every sample, each evaluated alone."""
    matrix = torch.zeros(probe.n_params, probe.n_params, dtype=torch.float64)
    with probe.measuring():
        for batch in _batches(probe):
            for sample in batch.pieces(1):
                leaves = _leaves(probe)
                (g,) = _rows([probe.loss_sum(leaves, sample)], leaves)
                matrix += torch.outer(g, g)
    return matrix / probe.n_samples


def _batches(probe: Probe) -> list[Batch]:
    if probe.dtype != torch.float64:
        raise NotApplicableError(f"the slow truth is computed in float64; this probe is {probe.dtype}")
    return list(probe.batches())


def _leaves(probe: Probe) -> dict[str, Tensor]:
    return {name: value.clone().requires_grad_() for name, value in probe.params.items()}


def _jacobian(probe: Probe, batch: Batch) -> tuple[Tensor, Tensor]:
    leaves = _leaves(probe)
    outputs = probe.outputs(leaves, batch)
    if not isinstance(outputs, Tensor):
        raise NotApplicableError("a Jacobian needs a model that returns one tensor")
    return torch.stack(_rows(list(outputs.flatten()), leaves)).detach(), outputs


def _rows(scalars: list[Tensor], leaves: Mapping[str, Tensor], create_graph: bool = False) -> list[Tensor]:
    """The gradient of each scalar as one vector."""
    rows = []
    for scalar in scalars:
        if not scalar.requires_grad:
            rows.append(torch.zeros(sum(leaf.numel() for leaf in leaves.values()), dtype=torch.float64))
            continue
        grads = torch.autograd.grad(
            scalar,
            list(leaves.values()),
            create_graph=create_graph,
            retain_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        rows.append(torch.cat([g.flatten() for g in grads]))
    return rows
