"""The generalised Gauss–Newton matrix (Schraudolph 2002): (1/n) Σ_i J_iᵀ (∂²ℓ_i/∂z_i²) J_i."""

from __future__ import annotations

from torch import Tensor
from torch.func import grad, vjp

from landscope.core.batches import Batch
from landscope.curvature.gauss_newton import GaussNewtonOperator

__all__ = ["GGN"]


class GGN(GaussNewtonOperator):
    """The Hessian without the network's own curvature; positive semi-definite for convex losses.

    A product costs about two gradients.

    >>> import torch
    >>> from landscope.core.probe import Probe
    >>> w = torch.nn.Linear(2, 1, bias=False)
    >>> GGN(Probe(w, (torch.eye(2), torch.zeros(2, 1)), "mse")).dense()
    tensor([[1., 0.],
            [0., 1.]])
    """

    def _curve(self, z: Tensor, tangent: Tensor, batch: Batch) -> Tensor:
        def loss(at: Tensor) -> Tensor:
            return self.probe.loss_of(at, batch)

        _, pull = vjp(grad(loss), z)  # type: ignore[misc]  # a third value comes with has_aux only
        curved: Tensor = pull(tangent)[0]  # symmetric, and reverse mode is what every loss has
        return curved
