"""The Fisher information matrix of the model (Amari 1998), exact over labels.

F = (1/n) Σ_i E_{y ~ p(·|x_i)} [∇ log p(y|x_i) ∇ log p(y|x_i)ᵀ] = (1/n) Σ_i J_iᵀ B_i J_i with, at the outputs z,

    cross-entropy          B = diag(p) − p pᵀ,   p = softmax(z)
    binary cross-entropy   B = diag(σ(z) (1 − σ(z)))
    mean squared error     B = 2 I                (a normal distribution of variance ½, whose −log density (z − y)² is)

A sample with several predictions (positions, outputs) averages over them, as its loss does.
"""

from __future__ import annotations

from torch import Tensor

from landscope.core.batches import Batch
from landscope.core.errors import NotApplicableError
from landscope.core.evaluation import Precision
from landscope.core.losses import class_dimension
from landscope.core.parameters import Selection
from landscope.core.probe import Probe
from landscope.curvature.compilation import Compile
from landscope.curvature.gauss_newton import GaussNewtonOperator

__all__ = ["Fisher"]


class Fisher(GaussNewtonOperator):
    """The model's Fisher matrix, through products that cost about two gradients.

    >>> import torch
    >>> W = torch.nn.Linear(1, 2, bias=False)
    >>> torch.nn.init.zeros_(W.weight).shape
    torch.Size([2, 1])
    >>> Fisher(Probe(W, (torch.ones(3, 1), torch.tensor([0, 1, 1])))).dense()
    tensor([[ 0.2500, -0.2500],
            [-0.2500,  0.2500]])
    """

    def __init__(
        self, probe: Probe, *, params: Selection = None, compile: Compile = "auto", precision: Precision = "highest"
    ) -> None:
        if probe.loss.likelihood is None:
            raise NotApplicableError(
                f"the Fisher matrix needs a loss that is a negative log-likelihood (cross_entropy, binary_cross_entropy, mse); "
                f"{probe.loss.name!r} does not say which: landscope.Loss(function, likelihood='categorical'). The GGN exists "
                f"for any loss."
            )
        super().__init__(probe, params=params, compile=compile, precision=precision)

    def _curve(self, z: Tensor, tangent: Tensor, batch: Batch) -> Tensor:
        if self.probe.loss.likelihood == "categorical":
            return _categorical(z, tangent, self.probe.targets(batch))
        predictions = z.numel() // z.shape[0]
        if self.probe.loss.likelihood == "bernoulli":
            p = z.sigmoid()
            return p * (1 - p) * tangent / predictions
        return 2 * tangent / predictions


def _categorical(z: Tensor, tangent: Tensor, targets: object) -> Tensor:
    """(diag(p) − p pᵀ) u along the classes, averaged over the positions of a sample that are not ignored."""
    assert isinstance(targets, Tensor)
    dim = class_dimension(z, targets)
    p = z.softmax(dim)
    curved = p * (tangent - (p * tangent).sum(dim, keepdim=True))
    if z.dim() == 2:
        return curved
    if targets.is_floating_point():
        return curved * z.shape[dim] * z.shape[0] / z.numel()
    kept = (targets != -100).to(z.dtype)
    weight = kept / kept.flatten(1).sum(1).clamp(min=1).view(-1, *[1] * (kept.dim() - 1))
    return curved * weight.unsqueeze(dim)
