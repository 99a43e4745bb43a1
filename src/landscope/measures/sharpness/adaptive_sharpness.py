"""Worst-case adaptive m-sharpness (Kwon et al. 2021; Andriushchenko et al. 2023; paper 5).

    E_S max_{‖δ ⊘ c‖_p ≤ ρ} L_S(θ + δ) − L_S(θ),   c = |θ| + η,  p ∈ {2, ∞},  S a batch of m samples

Every parameter moves in proportion to its size, so that rescalings of ReLU networks change nothing (η = 0); one that is
exactly zero does not move then. For small ρ the value over ρ tends to the mean over batches of Σ|θ_i g_i| (p = ∞) or
‖θ ⊙ g‖₂ (p = 2). Paper 5: p = ∞, m = 64, `method="pga"`, `steps=5`, `step_size` the training learning rate, `batches=50`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from landscope.core.estimate import Estimate
from landscope.core.ledger import FORWARD
from landscope.core.probe import Probe
from landscope.measures.base import register
from landscope.measures.sharpness.ascent import Ball, Method
from landscope.measures.sharpness.perturbation import check_positive, included
from landscope.measures.sharpness.perturbed import RESCALINGS, PerturbationMeasure, adaptive_scale
from landscope.measures.sharpness.worst_case import Search, affordable, ascent_estimate, check_effort, worst_case

__all__ = ["AdaptiveSharpness"]


@register("adaptive_sharpness")
@dataclass(frozen=True, kw_only=True)
class AdaptiveSharpness(PerturbationMeasure):
    """The mean over batches of `batch_size` samples of the largest loss found within ‖δ ⊘ (|θ| + η)‖_p ≤ ρ.

    A lower bound of the mean of the maxima, and its status says so: restarts find more, and how much is left is not known.
    `data_stderr` is the spread over batches.

    Args:
        p: 2 or `"inf"` (`math.inf` is taken too).
        batch_size: m, or `None`: one maximum for all data.
        batches: how many batches (default: all that can be cut; see `landscope.measures.minibatches`).
        method: `"apgd"` (Auto-PGD) or `"pga"` (constant projected steps).
        step_size: with `"pga"`, plain gradient steps δ + step_size ∇L instead of normalised ones.
        restarts: ascents per batch, the first from θ, the others from random points; invariance to permutations needs 1.

    >>> import torch
    >>> probe = Probe(torch.nn.Linear(1, 1, bias=False), (torch.ones(4, 1), torch.zeros(4, 1)), "mse", dtype=torch.float64)
    >>> w = float(probe.vector())                                        # L = w²: the worst case is w(1 ± ρ)
    >>> abs(AdaptiveSharpness(rho=0.1)(probe).value - (1.1**2 - 1) * w**2) < 1e-12
    True
    """

    invariant_to: ClassVar[frozenset[str]] = RESCALINGS | {"permutation"}

    rho: float = 1e-3
    p: Literal[2, "inf"] | float = "inf"
    batch_size: int | None = 64
    steps: int = 20
    restarts: int = 1
    eta: float = 0.0
    method: Method = "apgd"
    step_size: float | None = None
    batches: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(rho=self.rho)
        if self.p not in (2, "inf", math.inf):
            raise ValueError(f"p must be 2 or 'inf', got {self.p!r}")
        object.__setattr__(self, "p", 2 if self.p == 2 else "inf")
        if not (math.isfinite(self.eta) and self.eta >= 0):
            raise ValueError(f"eta must not be negative, got {self.eta}")
        if self.method not in ("pga", "apgd"):
            raise ValueError(f"method must be 'pga' or 'apgd', got {self.method!r}")
        if self.step_size is not None:
            check_positive(step_size=self.step_size)
            if self.method != "pga":
                raise ValueError("step_size is for method='pga'; Auto-PGD chooses its own steps")
        check_effort(self.steps, self.restarts, self.batch_size, self.batches)
        rescalings: frozenset[str] = frozenset() if self.eta or self.step_size else RESCALINGS
        self._is_invariant_to(rescalings if self.restarts > 1 else rescalings | {"permutation"})

    def _share(self, probe: Probe) -> float:
        """The part of the data that one round over the batches uses."""
        if self.batch_size is None or self.batches is None:
            return 1.0
        return min(1.0, self.batches * self.batch_size / probe.n_samples)

    def passes(self, probe: Probe) -> float:
        """One gradient per step and restart over the samples of the batches used."""
        return self._share(probe) * self.restarts * (self.steps + FORWARD)

    def within(self, passes: float, probe: Probe) -> AdaptiveSharpness:
        """Fewer batches; on all data fewer restarts, then fewer steps."""
        if self.batch_size is not None:
            each = self.restarts * (self.steps + FORWARD) * self.batch_size / probe.n_samples
            most = max(1, int(passes / each))
            return replace(self, batches=most if self.batches is None else min(self.batches, most))
        steps, restarts = affordable(passes, self.steps, self.restarts)
        return replace(self, steps=steps, restarts=restarts)

    def _measure(self, probe: Probe) -> Estimate:
        moved = included(probe, self.include)
        search = Search(self.steps, self.restarts, self.method, self.step_size, self.seed)
        ball = Ball(self.rho, 2 if self.p == 2 else math.inf)
        scale = adaptive_scale(moved, self.eta)
        found = worst_case(moved, scale, ball, search, self.batch_size, self.batches)
        nothing_moves = not bool(scale.any())
        estimate = ascent_estimate(found, found.mean, self.rho, search, moved.n_params, defined=nothing_moves)
        fixed = int((scale == 0).sum())
        return replace(estimate, details={**estimate.details, "parameters_at_zero": fixed})
