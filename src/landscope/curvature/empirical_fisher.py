"""The empirical Fisher matrix: the second moment of the per-sample gradients, (1/n) Σ_i g_i g_iᵀ with g_i = ∇ℓ_i."""

from __future__ import annotations

from torch import Tensor
from torch.func import grad

from landscope.core.batches import Batch
from landscope.core.errors import NotApplicableError
from landscope.curvature.gauss_newton import GaussNewtonOperator

__all__ = ["EmpiricalFisher"]


class EmpiricalFisher(GaussNewtonOperator):
    """Second moment of the gradients, with the labels of the data; B_i = r_i r_iᵀ, r_i = ∂ℓ_i/∂z_i.

    A product costs about two gradients and holds no per-sample gradients.

    >>> import torch
    >>> from landscope.core.probe import Probe
    >>> w = torch.nn.Linear(1, 1, bias=False)
    >>> torch.nn.init.ones_(w.weight).item()
    1.0
    >>> EmpiricalFisher(Probe(w, (torch.tensor([[1.0], [2.0]]), torch.zeros(2, 1)), "mse")).dense()   # (2² + 8²) / 2
    tensor([[34.]])
    """

    def _curve(self, z: Tensor, tangent: Tensor, batch: Batch) -> Tensor:
        if z.dim() == 0 or (batch.divisible and z.shape[0] != batch.size):
            raise NotApplicableError(
                f"the empirical Fisher matrix needs outputs with one row per sample, got {tuple(z.shape)} for {batch.size} "
                f"samples"
            )
        residual = grad(lambda at: self.probe.loss_of(at, batch))(z)
        along = (residual * tangent).flatten(1).sum(1) if z.dim() > 1 else residual * tangent
        return residual * along.view(-1, *[1] * (z.dim() - 1))
