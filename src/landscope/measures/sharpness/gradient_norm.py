"""The norm of the gradient of the mean loss, ‖∇L‖₂: zero at a minimum, so it says how far from one the network is.

Another sample of the data would change ∇L by the mean of the per-sample gradients' deviations; to first order only their
part along ∇L changes the norm: the standard error is that of the mean of ⟨g_i, ∇L⟩/‖∇L‖, one forward-mode derivative.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from landscope.core.batches import Batch
from landscope.core.errors import DifferentiationError, NotApplicableError
from landscope.core.estimate import Estimate, Plain
from landscope.core.probe import Probe
from landscope.measures.base import Measure, register
from landscope.measures.shared import gradient
from landscope.measures.sharpness.output_tangents import TANGENT_LOAD, TANGENT_PASSES, output_tangents
from landscope.measures.sharpness.per_sample import mean_and_error, sums

__all__ = ["GradientNorm", "slopes_along"]


def slopes_along(probe: Probe, batch: Batch, direction: Tensor) -> Tensor:
    """⟨g_i, v⟩ for every sample of a piece, in float64: the change of its loss along v (P,)."""
    z, u = output_tangents(probe, batch, probe.space.unflatten(direction), "the spread of the gradient")
    with torch.enable_grad():
        leaf = z.detach().requires_grad_()
        (slope,) = torch.autograd.grad(probe.loss_of(leaf, batch), leaf)
    return (slope * u).reshape(batch.size, -1).sum(1, dtype=torch.float64)


@register("gradient_norm")
@dataclass(frozen=True, kw_only=True)
class GradientNorm(Measure):
    """‖∇L‖₂ over all data; one gradient, and two forward passes for its error bar.

    >>> probe = Probe(torch.nn.Linear(1, 1, bias=False), (torch.ones(2, 1), torch.zeros(2, 1)), "mse")
    >>> bool(abs(GradientNorm()(probe).value - 2 * abs(probe.vector().item())) < 1e-6)
    True
    """

    invariant_to: ClassVar[frozenset[str]] = frozenset({"permutation", "logit_shift"})

    def _measure(self, probe: Probe) -> Estimate:
        slope = gradient(probe)
        norm = float(slope.double().norm())
        if norm == 0:
            return Estimate(norm)
        unit = slope / norm
        details: dict[str, Plain] = {"per_parameter": norm / probe.n_params**0.5}
        try:
            if probe.mode == "batch_statistics":
                raise NotApplicableError("samples share batch statistics: there is no spread over single samples")
            total, squares = probe.total(
                lambda batch: sums(slopes_along(probe, batch, unit)),
                load=TANGENT_LOAD,
                passes=TANGENT_PASSES,
                grad=False,
            )
        except (DifferentiationError, NotApplicableError) as error:
            return Estimate(norm, details={**details, "no_data_stderr": str(error)})
        return Estimate(norm, data_stderr=mean_and_error(total, squares, probe.n_samples)[1], details=details)

    def passes(self, probe: Probe) -> float:
        """One gradient and one forward-mode derivative."""
        return 1.0 + TANGENT_PASSES
