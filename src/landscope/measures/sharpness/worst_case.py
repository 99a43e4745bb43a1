"""Worst-case sharpness: adaptive, Keskar's and SAM's, each a maximum of the loss in a ball."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor

from landscope.core.errors import NotApplicableError
from landscope.core.estimate import Estimate
from landscope.measures.base import Measure, register
from landscope.measures.facts import Family
from landscope.measures.sharpness.ascent import Method, NormBall
from landscope.measures.sharpness.search import (
    Search,
    WorstCase,
    ascent_estimate,
    check_effort,
    early_estimate,
    rise_of_last_layer,
    worst_cases,
)
from landscope.probe.perturbed import Include, Shifts, check_positive, included
from landscope.probe.probe import Probe
from landscope.probe.rows.last_layer import layer_bounds
from landscope.probe.rows.means import row_mean
from landscope.probe.rows.outputs import outputs_of

# What the perturbation measures share: the choice of parameters, the scaling, and what to refuse.


RESCALINGS = frozenset({"layer_rescaling", "neuron_rescaling", "batchnorm_scaling"})
"""Transformations that perturbations in proportion to |θ| ignore."""


@dataclass(frozen=True, kw_only=True)
class PerturbationMeasure(Measure):
    """A measure that perturbs the parameters named by `include` (see `landscope.probe.perturbed.included`)."""

    family = Family.PERTURBATION
    unit = "loss"
    better = None

    include: Include = "all"

    def __post_init__(self) -> None:
        if not isinstance(self.include, str):
            object.__setattr__(self, "include", tuple(self.include))
        elif self.include not in ("all", "weights"):
            object.__setattr__(self, "include", (self.include,))


def adaptive_scale(probe: Probe, eta: float) -> Tensor:
    """The scaling c = |θ| + η (P,): parameters that are exactly zero stay so where η = 0.

    >>> net = torch.nn.Linear(2, 1, bias=False)
    >>> with torch.no_grad(): _ = net.weight.copy_(torch.tensor([[0.0, -2.0]]))
    >>> adaptive_scale(Probe(net, (torch.ones(2, 2), torch.zeros(2, 1)), "mse"), 0.0)
    tensor([0., 2.])
    """
    return probe.vector().abs() + eta


def highest_loss(probe: Probe) -> float | None:
    """The upper end of the mean loss, as far as the forward pass for the order of rows has come; `None` before that."""
    outputs = outputs_of(probe)
    if outputs.losses is None or outputs.order is None or not outputs.rows:
        return None
    return row_mean(outputs.read_values(outputs.losses), outputs.order).high


def require_finite(shifts: Shifts, what: str) -> Shifts:
    """Refuse a loss that overflows at some perturbed point: it has neither a mean nor a maximum."""
    lost = int((~torch.isfinite(shifts.mean)).sum())
    if lost:
        raise NotApplicableError(
            f"the loss is infinite or undefined at {lost} of {len(shifts.mean)} perturbed points: {what} is too large here"
        )
    return shifts


# Worst-case adaptive m-sharpness (Kwon et al. 2021; Andriushchenko et al. 2023).
#
#     E_S max_{‖δ ⊘ c‖_p ≤ ρ} L_S(θ + δ) − L_S(θ),   c = |θ| + η,  p ∈ {2, ∞},  S a batch of m samples
#
# Every parameter moves in proportion to its size, so that rescalings of ReLU networks change nothing (η = 0); one that is
# exactly zero does not move then. For small ρ the value over ρ tends to the mean over batches of Σ|θ_i g_i| (p = ∞) or
# ‖θ ⊙ g‖₂ (p = 2).


@register("adaptive_sharpness")
@dataclass(frozen=True, kw_only=True)
class AdaptiveSharpness(PerturbationMeasure):
    """How much the loss can rise by steps in proportion to the weights: the most found within ‖δ ⊘ (|θ| + η)‖_p ≤ ρ.

    A mean over batches of `batch_size` samples.

    A lower bound of the mean of the maxima, with status `lower bound`: more restarts may find more, by an unknown amount.
    `data_stderr` is the spread over batches.

    Args:
        p: 2 or `"inf"` (`math.inf` is taken too).
        batch_size: m, or `None`: one maximum for all data.
        batches: how many batches (default: all that can be cut; see `landscope.probe.rows.samples`).
        method: `"apgd"` (Auto-PGD) or `"pga"` (constant projected steps).
        step_size: with `"pga"`, plain gradient steps δ + step_size ∇L instead of normalised ones.
        restarts: ascents per batch, the first from θ, the others from random points; invariance to permutations needs 1.

    >>> import torch
    >>> probe = Probe(torch.nn.Linear(1, 1, bias=False), (torch.ones(4, 1), torch.zeros(4, 1)), "mse", dtype=torch.float64)
    >>> w = float(probe.vector())                                        # L = w²: the worst case is w(1 ± ρ)
    >>> abs(AdaptiveSharpness(rho=0.1)(probe).value - (1.1**2 - 1) * w**2) < 1e-12
    True
    """

    title = "adaptive sharpness"
    cost = "20 gradients"
    turn = 3
    reference = "Kwon et al. 2021; Andriushchenko et al. 2023"
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

    @property
    def invariances(self) -> frozenset[str]:
        """Random restarts depend on the order of neurons; η and plain gradient steps depend on scales."""
        rescalings: frozenset[str] = frozenset() if self.eta or self.step_size else RESCALINGS
        return rescalings if self.restarts > 1 else rescalings | {"permutation"}

    def at_once(self, probe: Probe) -> Estimate | None:
        """At least what a step of the last layer gives; at least 0, since the point itself lies in its neighbourhood."""
        moved = included(probe, self.include)
        ball = NormBall(self.rho, 2 if self.p == 2 else math.inf)
        return rise_of_last_layer(moved, lambda: adaptive_scale(moved, self.eta), ball)

    def refine(self, probe: Probe) -> Iterator[Estimate | None]:
        """What the batches done so far gave, or some rows; then the search."""
        moved = included(probe, self.include)
        search = Search(self.steps, self.restarts, self.method, self.step_size, self.seed)
        ball = NormBall(self.rho, 2 if self.p == 2 else math.inf)
        scale = adaptive_scale(moved, self.eta)
        nothing_moves, fixed = not bool(scale.any()), int((scale == 0).sum())
        for found in worst_cases(moved, scale, ball, search, self.batch_size, self.batches):
            if not isinstance(found, WorstCase):
                yield early_estimate(found)
                continue
            estimate = ascent_estimate(found, found.mean, self.rho, search, moved.n_params, defined=nothing_moves)
            yield replace(estimate, details={**estimate.details, "parameters_at_zero": fixed})


# Keskar sharpness (Keskar et al. 2017): the largest rise of the loss in a box, relative to 1 + L, in per cent.
#
#     φ = 100 · ( max_{|δ_i| ≤ ε (|θ_i| + 1)} L(θ + δ) − L(θ) ) / (1 + L(θ))
#
# The box is an ℓ∞ ball in units of |θ_i| + 1, on all data. The authors maximise by 10 iterations of L-BFGS-B; here it is
# Auto-PGD with sign steps, whose first step goes to the corner of the box that the gradient points to. `steps`
# gradients per restart.


@register("keskar_sharpness")
@dataclass(frozen=True, kw_only=True)
class KeskarSharpness(PerturbationMeasure):
    """How much the loss can rise in a small box around the weights, in percent: 100 · (largest loss found there − L) / (1 + L).

    A lower bound of φ, with status `lower bound`: more restarts may find more, by an unknown amount.

    >>> import torch
    >>> net = torch.nn.Linear(1, 1, bias=False)
    >>> _ = torch.nn.init.ones_(net.weight)
    >>> probe = Probe(net, (torch.ones(4, 1), torch.zeros(4, 1)), "mse", dtype=torch.float64)   # L = w², w = 1
    >>> round(KeskarSharpness(epsilon=0.1)(probe).value, 9)                           # 100 (1.2² − 1) / 2
    22.0
    """

    title = "Keskar sharpness"
    unit = "%"
    cost = "10 gradients and three forward passes"
    turn = 3
    reference = "Keskar et al. 2017"
    invariant_to: ClassVar[frozenset[str]] = frozenset({"permutation"})

    epsilon: float = 1e-3
    steps: int = 10
    restarts: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(epsilon=self.epsilon)
        check_effort(self.steps, self.restarts)

    @property
    def invariances(self) -> frozenset[str]:
        """Random restarts depend on the order of neurons."""
        return frozenset() if self.restarts > 1 else self.invariant_to

    def at_once(self, probe: Probe) -> Estimate | None:
        """At least what a step of the last layer gives; at least 0, since the point itself lies in its neighbourhood."""
        moved = included(probe, self.include)
        found = rise_of_last_layer(moved, lambda: adaptive_scale(moved, 1.0), NormBall(self.epsilon, math.inf))
        return replace(found, value=100 / (1 + (highest_loss(moved) or 0.0)) * found.value)

    def refine(self, probe: Probe) -> Iterator[Estimate | None]:
        """What some rows led to, then the search."""
        moved = included(probe, self.include)
        search = Search(self.steps, self.restarts, "apgd", seed=self.seed)
        for found in worst_cases(moved, adaptive_scale(moved, 1.0), NormBall(self.epsilon, math.inf), search):
            if not isinstance(found, WorstCase):
                yield early_estimate(found, 100 / (1 + (highest_loss(moved) or 0.0)))
                continue
            (loss,) = found.losses
            factor = 100 / (1 + loss)
            estimate = ascent_estimate(found, found.mean, self.epsilon, search, moved.n_params)
            error = found.data_stderr
            yield replace(
                estimate,
                value=factor * found.mean,
                data_stderr=None if error is None else factor * error,
                details={**estimate.details, "loss": loss},
            )


# SAM sharpness (Foret et al. 2021): the largest rise of the loss within a Euclidean distance ρ.
#
#     max_{‖ε‖₂ ≤ ρ} L(θ + ε) − L(θ)
#
# One step is SAM's own: the loss at ρ ∇L/‖∇L‖, exact to first order (the value over ρ tends to ‖∇L‖). More steps are
# Auto-PGD with normalised gradients, whose first step is SAM's: they can only find more. At a stationary point the
# gradient gives no direction: the first step is random there, and further ones find ½ρ²λ₁ as power iteration would.


@register("sam_sharpness")
@dataclass(frozen=True, kw_only=True)
class SAMSharpness(PerturbationMeasure):
    """How much the loss can rise within a ball of radius ρ around the weights.

    The best of `restarts` ascents of `steps` steps, on all data or as a mean over batches of `batch_size` samples.

    With one step from θ the value is SAM's own, which the step defines: status `exact` (except where the gradient is zero, and
    the step random). With more, it is what the search found: a `lower bound` of the maximum. With several restarts the value
    depends on the order of neurons, through the random starts.

    >>> probe = Probe(torch.nn.Linear(1, 1, bias=False), (torch.ones(4, 1), torch.zeros(4, 1)), "mse", dtype=torch.float64)
    >>> w = float(probe.vector().abs())                                # L = w²
    >>> abs(SAMSharpness(rho=0.1)(probe).value - (0.2 * w + 0.01)) < 1e-12
    True
    """

    title = "SAM sharpness"
    cost = "one gradient and three forward passes"
    turn = 1
    reference = "Foret et al. 2021"
    invariant_to: ClassVar[frozenset[str]] = frozenset({"logit_shift", "permutation"})

    rho: float = 0.05
    steps: int = 1
    restarts: int = 1
    batch_size: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(rho=self.rho)
        check_effort(self.steps, self.restarts, self.batch_size)

    @property
    def invariances(self) -> frozenset[str]:
        """Random restarts depend on the order of neurons."""
        return frozenset({"logit_shift"}) if self.restarts > 1 else self.invariant_to

    def at_once(self, probe: Probe) -> Estimate | None:
        """At least ρ times what the norm of the gradient is at least, to first order."""
        bounds = layer_bounds(included(probe, self.include))
        return None if bounds is None else bounds.at_least(self.rho * bounds.slope)

    def refine(self, probe: Probe) -> Iterator[Estimate | None]:
        """What the batches done so far gave, or some rows; then the search."""
        moved = included(probe, self.include)
        search = Search(self.steps, self.restarts, "apgd", seed=self.seed)
        ball, one_step = NormBall(self.rho, 2), self.steps == self.restarts == 1
        for found in worst_cases(moved, torch.ones_like(moved.vector()), ball, search, self.batch_size):
            if not isinstance(found, WorstCase):
                yield early_estimate(found, defined=one_step)
                continue
            defined = one_step and not found.stationary
            yield ascent_estimate(found, found.mean, self.rho, search, moved.n_params, defined=defined)
