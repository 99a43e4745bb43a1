"""Average-case sharpness (Andriushchenko et al. 2023): the expected rise of the loss under Gaussian noise.

    E_{δ ~ N(0, ρ² diag(c²))} [ L(θ + δ) − L(θ) ],   c = 1 (plain) or c = |θ| + η (adaptive)

ρ is the standard deviation of each coordinate, so that ‖δ‖₂ ≈ ρ√P. For small ρ it is ½ρ² Σ c_i² H_ii: plain, half of
ρ² tr H. Noise comes in pairs ±δ, in which everything odd cancels, the gradient first of all; the error bar is that of
the mean over pairs, widened where there are few of them (Student), so that two of it cover 95 %. samples + 1 forward passes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import torch

from landscope.core.estimate import Estimate, Status
from landscope.core.ledger import FORWARD
from landscope.core.probe import Probe
from landscope.measures.base import register
from landscope.measures.sharpness.perturbation import antithetic, check_positive, direction, included, losses_at
from landscope.measures.sharpness.perturbed import RESCALINGS, PerturbationMeasure, adaptive_scale, require_finite

__all__ = ["AverageSharpness"]


@register("average_sharpness")
@dataclass(frozen=True, kw_only=True)
class AverageSharpness(PerturbationMeasure):
    """The mean of L(θ + δ) − L(θ) over `samples` Gaussian δ, in pairs ±δ.

    With `adaptive=True` it is invariant to layer and neuron rescaling and to scaling before a BatchNorm (η = 0), and no
    longer to a shift of the logits. `details["curvature"]` is 2·value/ρ², which tends to tr H (plain) as ρ → 0.

    >>> probe = Probe(torch.nn.Linear(2, 1, bias=False), (torch.eye(2), torch.zeros(2, 1)), "mse")
    >>> estimate = AverageSharpness(rho=0.1, samples=400)(probe)       # L = ‖w‖²/2: tr H = 2, the value 0.01
    >>> abs(estimate.value - 0.01) < 4 * estimate.stderr
    True
    """

    invariant_to: ClassVar[frozenset[str]] = frozenset({"logit_shift"})

    rho: float = 0.005
    samples: int = 40
    adaptive: bool = False
    eta: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(rho=self.rho)
        if self.samples < 4 or self.samples % 2:
            raise ValueError(
                f"samples come in pairs and an error bar needs two: an even number ≥ 4, got {self.samples}"
            )
        if self.eta < 0 or (self.eta and not self.adaptive):
            raise ValueError(f"eta must not be negative and needs adaptive=True, got eta={self.eta}")
        if self.adaptive:
            self._is_invariant_to(frozenset() if self.eta else RESCALINGS)

    def passes(self, probe: Probe) -> float:
        """One forward pass per sample, and one at θ."""
        return FORWARD * (self.samples + 1)

    def within(self, passes: float, probe: Probe) -> AverageSharpness:
        """Fewer pairs."""
        return replace(self, samples=max(4, min(self.samples, int(passes / FORWARD - 1) // 2 * 2)))

    def _measure(self, probe: Probe) -> Estimate:
        moved = included(probe, self.include)
        scale = self.rho * adaptive_scale(moved, self.eta) if self.adaptive else self.rho
        delta = antithetic(partial(direction, moved, self.seed), scale)
        shifts = require_finite(losses_at(moved, delta, self.samples), f"rho = {self.rho:g}")
        value, error = shifts.pair_mean()
        return Estimate(
            value,
            stderr=error,
            data_stderr=shifts.data_stderr(torch.full((self.samples,), 1 / self.samples)),
            status=Status.CONVERGED,
            details={
                "per_rho": value / self.rho,
                "curvature": 2 * value / self.rho**2,
                "curvature_stderr": 2 * error / self.rho**2,
                "changes": shifts.mean.tolist(),
                "loss": shifts.base,
                "parameters": moved.n_params,
            },
        )
