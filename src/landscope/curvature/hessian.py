"""The Hessian of the mean loss: H = ∇²L(θ) = (1/n) Σ_i ∇²ℓ_i(θ)."""

from __future__ import annotations

from torch import Tensor
from torch.nn.modules.conv import _ConvNd

from landscope.core.batches import Batch
from landscope.core.parameters import ParameterSpace
from landscope.curvature.differentiation import Method, Params, hessian_methods
from landscope.curvature.operator import CurvatureOperator
from landscope.curvature.verification import check_second_derivatives

__all__ = ["Hessian"]


class Hessian(CurvatureOperator):
    """The Hessian of the mean loss, through products.

    A product costs about three gradients, in a block about two (see `landscope.curvature.differentiation`).

    >>> import torch
    >>> from landscope.core.probe import Probe
    >>> w = torch.nn.Linear(2, 1, bias=False)
    >>> H = Hessian(Probe(w, (torch.eye(2), torch.zeros(2, 1)), "mse"))   # L = (w₁² + w₂²) / 2
    >>> H @ torch.tensor([1.0, 2.0])
    tensor([1., 2.])
    """

    def __matmul__(self, other: Tensor) -> Tensor:
        check_second_derivatives(self.probe)
        return super().__matmul__(other)

    def _ways(self, block: bool) -> tuple[Method, ...]:
        convolutional = any(isinstance(m, _ConvNd) for m in self.probe.modules.values())
        return hessian_methods(block, self.device, convolutional)

    def _piece(self, method: Method, params: Params, rows: Tensor, batch: Batch, space: ParameterSpace) -> Tensor:
        return method.product(lambda at: self.probe.loss_sum(at, batch), params, space, rows)
