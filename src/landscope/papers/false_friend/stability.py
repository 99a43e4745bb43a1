"""How the Hessian varies from batch to batch, and what that says of the rates at which SGD stays at a minimum.

Section 4 of the paper sets λ₁ against two bounds of Wu et al. (2018): gradient descent with rate α stays only where λ₁ ≤ 2/α, and
SGD only where

    λ₁ ≤ (1 + √(1 − α² λ₁(Var H))) / α,       Var H = E_b H_b² − H²,

H_b being the Hessian of a batch. Where α² λ₁(Var H) > 1 no λ₁ is small enough. A product with Var H costs three with H.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from landscope.core.errors import NotApplicableError
from landscope.core.estimate import Estimate, Status
from landscope.core.parameters import ParameterSpace
from landscope.curvature import Hessian
from landscope.curvature.differentiation import Method, Params
from landscope.measures.base import Measure, register
from landscope.measures.facts import Family
from landscope.probe.batches import Batch
from landscope.probe.probe import Probe
from landscope.spectra import eigsh

__all__ = ["BatchHessianVariance"]

WHOLE = 0.1
"""The share of the samples that may lie in smaller batches."""


class _MeanSquare(Hessian):
    """(1/n) Σ_b n_b H_b² over batches of some size."""

    def __init__(self, probe: Probe, size: int) -> None:
        super().__init__(probe)
        self.size, self.smaller = size, 0
        """How many samples were in smaller batches."""

    def _piece(self, method: Method, params: Params, rows: Tensor, batch: Batch, space: ParameterSpace) -> Tensor:
        self.smaller, total = 0, torch.zeros_like(rows)
        for part in batch.pieces(self.size):
            self.smaller += part.size if part.size < self.size else 0
            once = super()._piece(method, params, rows, part, space) / part.size
            total = total + super()._piece(method, params, once, part, space)
        return total


class _Variance:
    """Var H as a matrix: what it is multiplied with."""

    def __init__(self, probe: Probe, size: int) -> None:
        self.square, self.mean = _MeanSquare(probe, size), Hessian(probe)
        self.shape, self.dtype, self.device = self.mean.shape, self.mean.dtype, self.mean.device
        self.rounding = self.mean.rounding

    def __matmul__(self, other: Tensor) -> Tensor:
        return self.square @ other - self.mean @ (self.mean @ other)


@register("false-friend/batch_hessian_variance")
@dataclass(frozen=True, kw_only=True)
class BatchHessianVariance(Measure):
    """λ₁(Var H) over batches of the data in its order; the two bounds are among its details.

    Args:
        learning_rate: α.
        batch_size: of training; where BatchNorm is measured on the statistics of each batch, that of measuring.

    >>> x, y = torch.tensor([[1.0], [3.0]]).repeat(8, 1), torch.zeros(16, 1)
    >>> probe = Probe(torch.nn.Linear(1, 1, bias=False).double(), (x, y), "mse")
    >>> found = BatchHessianVariance(learning_rate=0.01, batch_size=1)(probe)      # H_b = 2x² is 2 or 18
    >>> round(found.value, 6), found.details["gradient_descent"], round(found.details["sgd"], 2)
    (64.0, 200.0, 199.68)
    """

    title, family, unit, better = "λ₁ of the variance of the Hessian", Family.CURVATURE, "", None
    cost = "three Hessian products for each step of Lanczos"

    learning_rate: float = 0.1
    batch_size: int = 128
    tol: float = 0.05
    max_matvecs: int = 60

    def __post_init__(self) -> None:
        if not self.learning_rate > 0:
            raise ValueError(f"learning_rate must be positive, got {self.learning_rate}")

    def _measure(self, probe: Probe) -> Estimate:
        matrix, alpha = _Variance(probe, self.batch_size), self.learning_rate
        found = eigsh(matrix, 1, tol=self.tol, max_matvecs=self.max_matvecs, seed=self.seed)
        smaller = matrix.square.smaller / probe.n_samples
        if smaller > WHOLE and probe.n_samples > self.batch_size:
            raise NotApplicableError(
                f"memory leaves {smaller:.0%} of the samples in smaller batches than {self.batch_size}"
            )
        value = float(found.values[0])
        under = 1 - alpha**2 * value
        bound = (1 + math.sqrt(under)) / alpha if under >= 0 else None
        details = {"gradient_descent": 2 / alpha, "sgd": bound, "batches": -(-probe.n_samples // self.batch_size)}
        return Estimate(value, float(found.residuals[0]), status=Status.CONVERGED, details=details)
