"""Sharpness under random noise: its mean, along random directions, and the largest noise that costs little."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from landscope.core.errors import NotApplicableError
from landscope.core.estimate import Estimate, Status
from landscope.measures.base import register
from landscope.measures.sharpness.worst_case import RESCALINGS, PerturbationMeasure, adaptive_scale, require_finite
from landscope.probe.batches import Batch
from landscope.probe.loss.answers import right_answers
from landscope.probe.perturbed import (
    Shifts,
    antithetic,
    check_positive,
    direction,
    included,
    losses_at,
    on_sphere,
    sample_losses,
)
from landscope.probe.points import width
from landscope.probe.probe import Probe
from landscope.probe.totals import FORWARD

__all__ = [
    "AverageSharpness",
    "Bracket",
    "PacBayesSigma",
    "RandomSharpness",
    "first_crossing",
    "sample_errors",
    "summaries",
]


# Average-case sharpness (Andriushchenko et al. 2023): the expected rise of the loss under Gaussian noise.
#
#     E_{δ ~ N(0, ρ² diag(c²))} [ L(θ + δ) − L(θ) ],   c = 1 (plain) or c = |θ| + η (adaptive)
#
# ρ is the standard deviation of each coordinate, so that ‖δ‖₂ ≈ ρ√P. For small ρ it is ½ρ² Σ c_i² H_ii: plain, half of
# ρ² tr H. Noise comes in pairs ±δ, in which everything odd cancels, the gradient first of all; the error bar is that of
# the mean over pairs, widened where there are few of them (Student), so that two errors cover 95 %. samples + 1 forward passes.


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

    title = "average sharpness"
    cost = "41 forward passes"
    reference = "Andriushchenko et al. 2023"
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

    @property
    def invariances(self) -> frozenset[str]:
        """Noise in proportion to the weights ignores their scale, but not a shift of the logits."""
        if not self.adaptive:
            return self.invariant_to
        return frozenset() if self.eta else RESCALINGS

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


# Random-direction sharpness: the change of the loss at a fixed distance, over random directions.
#
#     Δ_j = L(θ + ε_j) − L(θ),   ε_j uniform on the sphere ‖ε‖₂ = ρ,   j = 1 … samples
#
# To second order the mean is ρ² tr H / (2P), so in many dimensions it is tiny against the worst case: a random direction is
# nearly orthogonal to the few sharp ones. The maximum is that of `samples` directions, not of the sphere: it grows with their
# number and has no error bar. samples + 1 forward passes.


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

    title = "random sharpness"
    cost = "21 forward passes"
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


# PAC-Bayes noise scale (Neyshabur et al. 2017; Jiang et al. 2020): how much Gaussian noise the parameters tolerate.
#
#     σ* = largest σ with  E_{z ~ N(0, I)} [ L(θ + σ c ⊙ z) ] − L(θ) ≤ target,   c = 1, or c = |θ| (`adaptive`)
#
# σ is a standard deviation; 1/σ² is the sharpness in the bounds. The mean is taken over the same pairs ±z at every σ, so that
# it is a smooth function of σ, whose first crossing of the target is bracketed by doubling and found by bisection in log σ.
# For small targets σ* ≈ √(2 target / tr H). With `metric="accuracy"` the target is a drop in accuracy.


DOUBLINGS = 40
"""How often the bracket is doubled or halved: a factor of 10¹² either way."""


@dataclass(frozen=True)
class Bracket:
    """rise(low) ≤ target < rise(high), and the exponent q of rise ∝ σ^q around it."""

    low: float
    high: float
    rise_low: float
    rise_high: float
    exponent: float
    evaluations: int

    def crossing(self, target: float) -> float:
        """Where the line through both ends meets the target."""
        if not math.isfinite(self.rise_high):
            return self.low
        return self.low + (self.high - self.low) * (target - self.rise_low) / (self.rise_high - self.rise_low)


def first_crossing(rise: Callable[[float], float], target: float, start: float, tol: float) -> Bracket | None:
    """Bracket the σ at which a rising function first exceeds `target`, to a relative width `tol`; `None`: it never does.

    >>> bracket = first_crossing(lambda s: s**2, 0.25, start=10.0, tol=0.01)
    >>> abs(bracket.crossing(0.25) - 0.5) < 1e-4, round(bracket.exponent, 6)
    (True, 2.0)
    """
    low = high = start
    rise_low = rise_high = rise(start)
    count = 1
    while not rise_low <= target or rise_high <= target:
        if count > DOUBLINGS:
            return None
        if rise_high <= target:
            low, rise_low, high = high, rise_high, 2 * high
            rise_high = rise(high)
        else:
            high, rise_high, low = low, rise_low, low / 2
            rise_low = rise(low)
        count += 1
    exponent = 2.0
    if rise_low > 0 and math.isfinite(rise_high):
        exponent = math.log(rise_high / rise_low) / math.log(high / low)
    while high / low > 1 + tol:
        middle = math.sqrt(low * high)
        at_middle = rise(middle)
        count += 1
        if at_middle <= target:
            low, rise_low = middle, at_middle
        else:
            high, rise_high = middle, at_middle
    return Bracket(low, high, rise_low, rise_high, exponent, count)


def sample_errors(probe: Probe, params: Mapping[str, Tensor], batch: Batch) -> Tensor:
    """The fraction of wrong predictions of each sample (n,): 0 or 1 where it has one label."""
    try:
        right = right_answers(probe.loss, probe.outputs(params, batch), probe.targets(batch), batch.size)
    except NotApplicableError as error:
        raise NotApplicableError(f"{error}; use metric='loss'") from error
    return 1 - right


@register("pac_bayes_sigma")
@dataclass(frozen=True, kw_only=True)
class PacBayesSigma(PerturbationMeasure):
    """The largest noise scale σ that raises the mean loss (or lowers the accuracy) by at most `target`.

    `samples` noise vectors (in pairs ±z) at every σ, `tol` the relative width of the bracket. The error bar is that of the mean
    over pairs, widened where there are few of them (Student), and divided by its slope in σ.

    >>> probe = Probe(torch.nn.Linear(2, 1, bias=False), (torch.eye(2), torch.zeros(2, 1)), "mse")
    >>> estimate = PacBayesSigma(target=0.01, samples=400)(probe)      # rise = σ²
    >>> abs(estimate.value - 0.1) < 4 * estimate.stderr
    True
    """

    title = "PAC-Bayes σ"
    unit = "parameter"
    cost = "about 21 forward passes for every σ that is tried"
    reference = "Neyshabur et al. 2017; Jiang et al. 2020"
    invariant_to: ClassVar[frozenset[str]] = frozenset({"logit_shift"})

    target: float = 0.1
    metric: Literal["loss", "accuracy"] = "loss"
    samples: int = 20
    tol: float = 0.02
    adaptive: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(target=self.target, tol=self.tol)
        if self.metric not in ("loss", "accuracy"):
            raise ValueError(f"metric must be 'loss' or 'accuracy', got {self.metric!r}")
        if self.samples < 4 or self.samples % 2:
            raise ValueError(
                f"samples come in pairs and an error bar needs two: an even number ≥ 4, got {self.samples}"
            )

    @property
    def invariances(self) -> frozenset[str]:
        """Noise in proportion to the weights ignores their scale, but not a shift of the logits."""
        return RESCALINGS if self.adaptive else self.invariant_to

    def _evaluations(self) -> int:
        """Values of σ that a search tries: some for the bracket, then one for each halving of log 2, one at the end."""
        return 5 + math.ceil(math.log2(math.log(2) / math.log1p(self.tol)))

    def passes(self, probe: Probe) -> float:
        """One forward pass per noise vector and σ."""
        return FORWARD * (self.samples + 1) * self._evaluations()

    def within(self, passes: float, probe: Probe) -> PacBayesSigma:
        """Fewer noise vectors."""
        most = int(passes / FORWARD / self._evaluations() - 1) // 2 * 2
        return replace(self, samples=max(4, min(self.samples, most)))

    def _measure(self, probe: Probe) -> Estimate:
        moved = included(probe, self.include)
        unit = adaptive_scale(moved, 0.0) if self.adaptive else torch.ones_like(moved.vector())
        values = sample_losses if self.metric == "loss" else sample_errors

        pairs = self.samples // 2
        normals: Callable[[int], Tensor] = partial(direction, moved, self.seed)
        if width(moved, pairs, vectors=1) == pairs:
            normals = cache(normals)  # the same at every σ

        def shifts(sigma: float) -> Shifts:
            return losses_at(moved, antithetic(normals, sigma * unit), self.samples, values)

        def rise(sigma: float) -> float:
            mean = shifts(sigma).pair_mean()[0]
            return mean if math.isfinite(mean) else math.inf

        size = 1.0 if self.adaptive else float(moved.vector().square().mean().sqrt())
        start = 2.0 ** round(math.log2(0.1 * size or 0.01))  # a power of two: the bracket does not depend on the start
        bracket = first_crossing(rise, self.target, start, self.tol)
        if bracket is None:
            raise NotApplicableError(
                f"no noise scale was found that costs {self.target:g} in {self.metric}: the cost is below it, or above it, at "
                f"every scale tried. Ask for another target."
            )
        sigma = bracket.crossing(self.target)
        final = shifts(sigma)
        mean, error = final.pair_mean()
        slope = max(bracket.exponent, 0.5) * self.target / sigma
        data_error = final.data_stderr(torch.full((self.samples,), 1 / self.samples))
        return Estimate(
            sigma,
            stderr=math.hypot(error / slope, (bracket.high - bracket.low) / 4) if math.isfinite(mean) else bracket.high,
            data_stderr=None if data_error is None else data_error / slope,
            status=Status.CONVERGED,
            details={
                "sharpness": 1 / sigma**2,
                "bracket": [bracket.low, bracket.high],
                "rise_at_value": mean if math.isfinite(mean) else None,
                "rise_exponent": bracket.exponent,
                "scales_tried": bracket.evaluations + 1,
                "at_rest": final.base,
                "parameters": moved.n_params,
            },
        )
