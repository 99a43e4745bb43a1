"""Keskar sharpness (Keskar et al. 2017; paper 3): the largest rise of the loss in a box, relative to 1 + L, in per cent.

    φ = 100 · ( max_{|δ_i| ≤ ε (|θ_i| + 1)} L(θ + δ) − L(θ) ) / (1 + L(θ))

The box is an ℓ∞ ball in units of |θ_i| + 1, on all data. The authors maximise by 10 iterations of L-BFGS-B; here it is
Auto-PGD with sign steps, whose first step goes to the corner of the box that the gradient points to. `steps`
gradients per restart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

from landscope.core.estimate import Estimate
from landscope.core.ledger import FORWARD
from landscope.core.probe import Probe
from landscope.measures.base import register
from landscope.measures.sharpness.ascent import Ball
from landscope.measures.sharpness.perturbation import check_positive, included
from landscope.measures.sharpness.perturbed import PerturbationMeasure, adaptive_scale
from landscope.measures.sharpness.worst_case import Search, affordable, ascent_estimate, check_effort, worst_case

__all__ = ["KeskarSharpness"]


@register("keskar_sharpness")
@dataclass(frozen=True, kw_only=True)
class KeskarSharpness(PerturbationMeasure):
    """100 · (largest loss found in the box − L) / (1 + L).

    A lower bound of φ, and its status says so: restarts find more, and how much is left is not known.

    >>> import torch
    >>> net = torch.nn.Linear(1, 1, bias=False)
    >>> _ = torch.nn.init.ones_(net.weight)
    >>> probe = Probe(net, (torch.ones(4, 1), torch.zeros(4, 1)), "mse", dtype=torch.float64)   # L = w², w = 1
    >>> round(KeskarSharpness(epsilon=0.1)(probe).value, 9)                           # 100 (1.2² − 1) / 2
    22.0
    """

    invariant_to: ClassVar[frozenset[str]] = frozenset({"permutation"})

    epsilon: float = 1e-3
    steps: int = 10
    restarts: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(epsilon=self.epsilon)
        check_effort(self.steps, self.restarts)
        if self.restarts > 1:
            self._is_invariant_to(frozenset())

    def passes(self, probe: Probe) -> float:
        """One gradient per step and restart, and three forward passes."""
        return self.restarts * (self.steps + FORWARD) + 2 * FORWARD

    def within(self, passes: float, probe: Probe) -> KeskarSharpness:
        """Fewer restarts, then fewer steps."""
        steps, restarts = affordable(passes, self.steps, self.restarts)
        return replace(self, steps=steps, restarts=restarts)

    def _measure(self, probe: Probe) -> Estimate:
        moved = included(probe, self.include)
        search = Search(self.steps, self.restarts, "apgd", seed=self.seed)
        found = worst_case(moved, adaptive_scale(moved, 1.0), Ball(self.epsilon, math.inf), search)
        (loss,) = found.losses
        factor = 100 / (1 + loss)
        estimate = ascent_estimate(found, found.mean, self.epsilon, search, moved.n_params)
        error = found.data_stderr
        return replace(
            estimate,
            value=factor * found.mean,
            data_stderr=None if error is None else factor * error,
            details={**estimate.details, "loss": loss},
        )
