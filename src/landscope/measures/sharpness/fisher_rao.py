"""The Fisher–Rao norm (Liang et al. 2019) of any architecture, by one forward-mode derivative.

    θᵀFθ = (1/n) Σ_i (J_iθ)ᵀ B_i (J_iθ),   J_iθ = d/dt f_{(1+t)θ}(x_i) at t = 0

With the model's own labels B_i is that of the Fisher matrix (diag(p) − ppᵀ for cross-entropy; see
`landscope.curvature.Fisher`), with the data's labels r_i r_iᵀ, r_i = ∂ℓ_i/∂z_i. What θ does to the outputs when it grows does
not depend on how it is parametrised: the norm is unchanged by any linear reparametrisation that keeps the function.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from landscope.core.batches import Batch
from landscope.core.errors import DifferentiationError, NotApplicableError
from landscope.core.estimate import Estimate
from landscope.core.probe import Probe
from landscope.curvature import EmpiricalFisher, Fisher
from landscope.measures.base import Measure, register
from landscope.measures.sharpness.output_tangents import TANGENT_LOAD, TANGENT_PASSES, output_tangents
from landscope.measures.sharpness.per_sample import mean_and_error, sums

__all__ = ["FisherRao", "root_of"]


def root_of(mean: float, error: float | None) -> tuple[float, float | None]:
    """√mean, and its standard error to first order; `None` at zero, where there is no first order.

    >>> root_of(4.0, 0.4)
    (2.0, 0.1)
    """
    root = math.sqrt(max(mean, 0.0))
    return root, None if error is None or root == 0 else error / (2 * root)


@register("fisher_rao")
@dataclass(frozen=True, kw_only=True)
class FisherRao(Measure):
    """θᵀFθ, exact; costs two forward passes.

    Args:
        labels: `"model"`: expectation over the model's own predictions; `"data"`: the labels of the data (empirical Fisher).
        root: √(θᵀFθ) instead.

    >>> probe = Probe(torch.nn.Linear(1, 2, bias=False), (torch.ones(3, 1), torch.tensor([0, 1, 1])))
    >>> estimate = FisherRao()(probe)
    >>> w = probe.vector(); p = w.softmax(0)
    >>> bool(abs(estimate.value - (p @ w**2 - (p @ w)**2)) < 1e-6)
    True
    """

    invariant_to: ClassVar[frozenset[str]] = frozenset(
        {"layer_rescaling", "neuron_rescaling", "batchnorm_scaling", "permutation", "logit_shift"}
    )
    labels: Literal["model", "data"] = "model"
    root: bool = False

    def __post_init__(self) -> None:
        if self.labels not in ("model", "data"):
            raise ValueError(f"labels must be 'model' or 'data', got {self.labels!r}")

    def _measure(self, probe: Probe) -> Estimate:
        matrix = Fisher(probe) if self.labels == "model" else EmpiricalFisher(probe)
        if self.labels == "data" and probe.mode == "batch_statistics":
            raise NotApplicableError("per-sample gradients are not defined where samples share batch statistics")

        def piece(batch: Batch) -> tuple[Tensor, ...]:
            z, u = output_tangents(probe, batch, probe.params, "the Fisher–Rao norm")
            curved = matrix._curve(z, u, batch)
            return sums((u * curved).reshape(batch.size, -1).sum(1, dtype=torch.float64))

        try:
            total, squares = probe.total(piece, load=TANGENT_LOAD, passes=TANGENT_PASSES, grad=False)
        except DifferentiationError:
            theta = probe.vector()
            mean, error = float(theta.double() @ (matrix @ theta).double()), None
            by = "product with the Fisher matrix"
        else:
            mean, error = mean_and_error(total, squares, probe.n_samples)
            by = "forward-mode derivative"
        value, data_stderr = root_of(mean, error) if self.root else (mean, error)
        return Estimate(value, data_stderr=data_stderr, details={"by": by, "labels": self.labels, "squared": mean})

    def passes(self, probe: Probe) -> float:
        """Two forward passes."""
        return TANGENT_PASSES
