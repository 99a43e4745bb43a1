"""What the perturbation measures have in common: the choice of parameters, the scaling, and what to refuse."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from landscope.core.errors import NotApplicableError
from landscope.core.probe import Probe
from landscope.measures.base import Measure
from landscope.measures.sharpness.perturbation import Include, Shifts

__all__ = ["RESCALINGS", "PerturbationMeasure", "adaptive_scale", "require_finite"]

RESCALINGS = frozenset({"layer_rescaling", "neuron_rescaling", "batchnorm_scaling"})
"""What perturbations in proportion to |θ| do not see."""


@dataclass(frozen=True, kw_only=True)
class PerturbationMeasure(Measure):
    """A measure that perturbs the parameters named by `include` (see `perturbation.included`)."""

    include: Include = "all"

    def __post_init__(self) -> None:
        if not isinstance(self.include, str):
            object.__setattr__(self, "include", tuple(self.include))
        elif self.include not in ("all", "weights"):
            object.__setattr__(self, "include", (self.include,))

    def _is_invariant_to(self, names: frozenset[str]) -> None:
        """State what these settings are invariant to, where that differs from the defaults."""
        object.__setattr__(self, "invariant_to", names)


def adaptive_scale(probe: Probe, eta: float) -> Tensor:
    """The scaling c = |θ| + η (P,): parameters that are exactly zero stay so where η = 0.

    >>> net = torch.nn.Linear(2, 1, bias=False)
    >>> with torch.no_grad(): _ = net.weight.copy_(torch.tensor([[0.0, -2.0]]))
    >>> adaptive_scale(Probe(net, (torch.ones(2, 2), torch.zeros(2, 1)), "mse"), 0.0)
    tensor([0., 2.])
    """
    return probe.vector().abs() + eta


def require_finite(shifts: Shifts, what: str) -> Shifts:
    """Refuse a loss that overflows at some perturbed point: it has neither a mean nor a maximum."""
    lost = int((~torch.isfinite(shifts.mean)).sum())
    if lost:
        raise NotApplicableError(
            f"the loss is infinite or undefined at {lost} of {len(shifts.mean)} perturbed points: {what} is too large here"
        )
    return shifts
