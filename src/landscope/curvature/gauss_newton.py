"""Matrices of the form (1/n) Σ_i J_iᵀ B_i J_i, with J_i = ∂z_i/∂θ and B_i a symmetric matrix at the outputs z_i.

The generalised Gauss–Newton, the Fisher and the empirical Fisher matrix differ in B_i only. None needs per-sample gradients:
v ↦ J v ↦ B J v ↦ Jᵀ B J v is one forward-mode and one reverse-mode derivative.
"""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from landscope.core.batches import Batch
from landscope.core.errors import NotApplicableError
from landscope.core.parameters import ParameterSpace
from landscope.curvature.differentiation import Method, Params, gauss_newton_methods
from landscope.curvature.operator import CurvatureOperator

__all__ = ["GaussNewtonOperator"]


class GaussNewtonOperator(CurvatureOperator):
    """Base of the matrices Jᵀ B J."""

    @abstractmethod
    def _curve(self, z: Tensor, tangent: Tensor, batch: Batch) -> Tensor:
        """B times a tangent at the outputs z of a batch, not divided by the number of samples."""

    def _ways(self, block: bool) -> tuple[Method, ...]:
        return gauss_newton_methods(block, self.device)

    def _piece(self, method: Method, params: Params, rows: Tensor, batch: Batch, space: ParameterSpace) -> Tensor:
        def outputs(at: Params) -> Tensor:
            z = self.probe.outputs(at, batch)
            if not isinstance(z, Tensor):
                raise NotApplicableError(
                    f"{type(self).__name__} needs a model that returns one tensor, got {type(z).__name__}. Wrap the model so "
                    f"that it does, or use Hessian."
                )
            return z

        return method.product(outputs, lambda z, u: self._curve(z, u, batch), params, space, rows)
