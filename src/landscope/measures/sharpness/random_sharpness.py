"""Random-direction sharpness (papers 1 and 2): the change of the loss at a fixed distance, over random directions.

    Δ_j = L(θ + ε_j) − L(θ),   ε_j uniform on the sphere ‖ε‖₂ = ρ,   j = 1 … samples

Paper 1 takes the maximum of 20 directions at ρ = 0.05, paper 2 the mean of |Δ|/ρ over 100 at ρ = 0.005. To second order the
mean is ρ² tr H / (2P), so in many dimensions it is tiny against the worst case: a random direction hardly meets the sharp
ones. The maximum is that of `samples` directions, not of the sphere: it grows with their number and has no error bar.
samples + 1 forward passes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from landscope.core.estimate import Estimate, Status
from landscope.core.ledger import FORWARD
from landscope.core.probe import Probe
from landscope.measures.base import register
from landscope.measures.sharpness.perturbation import check_positive, direction, included, losses_at, on_sphere
from landscope.measures.sharpness.perturbed import PerturbationMeasure, require_finite

__all__ = ["RandomSharpness", "summaries"]

Statistic = Literal["max", "mean", "mean_abs"]


def summaries(changes: Tensor) -> dict[str, float]:
    """The maximum, the mean and the mean absolute value of changes (k,).

    >>> summaries(torch.tensor([1.0, -3.0, 2.0]))
    {'max': 2.0, 'mean': 0.0, 'mean_abs': 2.0}
    """
    return {
        "max": float(changes.max()),
        "mean": float(changes.mean()),
        "mean_abs": float(changes.abs().mean()),
    }


@register("random_sharpness")
@dataclass(frozen=True, kw_only=True)
class RandomSharpness(PerturbationMeasure):
    """The `statistic` of L(θ + ε) − L(θ) over random ε with ‖ε‖₂ = ρ; all of them, and divided by ρ, in the details.

    >>> probe = Probe(torch.nn.Linear(2, 1, bias=False), (torch.eye(2), torch.zeros(2, 1)), "mse")
    >>> estimate = RandomSharpness(rho=0.1, samples=4, statistic="mean")(probe)
    >>> len(estimate.details["changes"])
    4
    """

    invariant_to: ClassVar[frozenset[str]] = frozenset({"logit_shift"})

    rho: float = 0.05
    samples: int = 20
    statistic: Statistic = "max"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(rho=self.rho)
        if self.statistic not in ("max", "mean", "mean_abs"):
            raise ValueError(f"statistic must be 'max', 'mean' or 'mean_abs', got {self.statistic!r}")
        if self.samples < (1 if self.statistic == "max" else 2):
            raise ValueError(f"a mean with an error bar needs samples ≥ 2, a maximum ≥ 1; got {self.samples}")

    def passes(self, probe: Probe) -> float:
        """One forward pass per direction, and one at θ."""
        return FORWARD * (self.samples + 1)

    def within(self, passes: float, probe: Probe) -> RandomSharpness:
        """Fewer directions."""
        return replace(self, samples=max(2, min(self.samples, int(passes / FORWARD) - 1)))

    def _measure(self, probe: Probe) -> Estimate:
        moved = included(probe, self.include)
        shifts = losses_at(moved, lambda j: on_sphere(direction(moved, self.seed, j), self.rho), self.samples)
        changes = require_finite(shifts, f"rho = {self.rho:g}").mean
        values = summaries(changes)
        k = len(changes)
        weights = {
            "max": torch.nn.functional.one_hot(changes.argmax(), k).double(),
            "mean": torch.full((k,), 1 / k, dtype=torch.float64),
            "mean_abs": changes.sign() / k,
        }[self.statistic]
        spread = {"mean": changes, "mean_abs": changes.abs()}
        errors = {name: float(v.std()) / math.sqrt(k) if k > 1 else None for name, v in spread.items()}
        return Estimate(
            values[self.statistic],
            stderr=errors.get(self.statistic),
            data_stderr=shifts.data_stderr(weights),
            status=Status.CONVERGED,
            reason="the maximum over a sample of directions has no standard error" if self.statistic == "max" else "",
            details={
                **values,
                **{f"{name}_per_rho": value / self.rho for name, value in values.items()},
                **{f"{name}_stderr": error for name, error in errors.items()},
                "changes": changes.tolist(),
                "loss": shifts.base,
                "parameters": moved.n_params,
            },
        )
