"""The Fisher information matrix of the model (Amari 1998), exact over labels.

F = (1/n) Σ_i E_{y ~ p(·|x_i)} [∇ log p(y|x_i) ∇ log p(y|x_i)ᵀ] = (1/n) Σ_i J_iᵀ B_i J_i, with B_i that of the loss's likelihood
at the outputs. A sample with several predictions averages or adds up over them, as its loss does.
"""

from __future__ import annotations

from torch import Tensor

from landscope.core.batches import Batch
from landscope.core.errors import NotApplicableError
from landscope.core.evaluation import Precision
from landscope.core.likelihoods import output_curvature
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
        return output_curvature(self.probe.loss, z, tangent, self.probe.targets(batch))
