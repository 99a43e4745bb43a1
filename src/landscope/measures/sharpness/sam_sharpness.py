"""SAM sharpness (Foret et al. 2021; papers 1 and 2): the largest rise of the loss within a Euclidean distance ρ.

    max_{‖ε‖₂ ≤ ρ} L(θ + ε) − L(θ)

One step is SAM's own: the loss at ρ ∇L/‖∇L‖, exact to first order (the value over ρ tends to ‖∇L‖). More steps are
Auto-PGD with normalised gradients, whose first step is SAM's: they can only find more. At a stationary point the
gradient says nothing; the first step is random there, and further ones find ½ρ²λ₁ as power iteration would.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch

from landscope.core.estimate import Estimate
from landscope.core.ledger import FORWARD
from landscope.core.probe import Probe
from landscope.measures.base import register
from landscope.measures.sharpness.ascent import Ball
from landscope.measures.sharpness.perturbation import check_positive, included
from landscope.measures.sharpness.perturbed import PerturbationMeasure
from landscope.measures.sharpness.worst_case import Search, affordable, ascent_estimate, check_effort, worst_case

__all__ = ["SAMSharpness"]


@register("sam_sharpness")
@dataclass(frozen=True, kw_only=True)
class SAMSharpness(PerturbationMeasure):
    """The best of `restarts` ascents of `steps` steps, on all data or as a mean over batches of `batch_size` samples.

    With one step from θ the value is SAM's own, which the step defines: status `exact` (except where the gradient is zero, and
    the step random). With more, it is what the search found: a `lower bound` of the maximum. With several restarts the random
    starts see permutations of neurons.

    >>> probe = Probe(torch.nn.Linear(1, 1, bias=False), (torch.ones(4, 1), torch.zeros(4, 1)), "mse", dtype=torch.float64)
    >>> w = float(probe.vector().abs())                                # L = w²
    >>> abs(SAMSharpness(rho=0.1)(probe).value - (0.2 * w + 0.01)) < 1e-12
    True
    """

    invariant_to: ClassVar[frozenset[str]] = frozenset({"logit_shift", "permutation"})

    rho: float = 0.05
    steps: int = 1
    restarts: int = 1
    batch_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(rho=self.rho)
        check_effort(self.steps, self.restarts, self.batch_size)
        if self.restarts > 1:
            self._is_invariant_to(frozenset({"logit_shift"}))

    def passes(self, probe: Probe) -> float:
        """One gradient per step and restart, and a few forward passes."""
        return self.restarts * (self.steps + FORWARD) + (0 if self.batch_size else 2 * FORWARD)

    def within(self, passes: float, probe: Probe) -> SAMSharpness:
        """Fewer restarts, then fewer steps."""
        steps, restarts = affordable(passes, self.steps, self.restarts)
        return replace(self, steps=steps, restarts=restarts)

    def _measure(self, probe: Probe) -> Estimate:
        moved = included(probe, self.include)
        search = Search(self.steps, self.restarts, "apgd", seed=self.seed)
        found = worst_case(moved, torch.ones_like(moved.vector()), Ball(self.rho, 2), search, self.batch_size)
        one_step = self.steps == self.restarts == 1 and not found.stationary
        return ascent_estimate(found, found.mean, self.rho, search, moved.n_params, defined=one_step)
