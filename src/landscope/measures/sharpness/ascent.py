"""Ascent in a ball, many starts at once: plain projected steps and Auto-PGD (Croce & Hein 2020).

Each row of a block (k, P) climbs its own function; rows share nothing but the program. The points are scaled, u = δ ⊘ c, so
that the ball is ‖u‖_p ≤ ρ whatever the scaling c, and a coordinate with c = 0 simply does not move: nothing is ever
divided by c. `steps` gradients and one last value per row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

from landscope.core.errors import BudgetSpentError
from landscope.probe.perturbed import on_sphere

Method = Literal["pga", "apgd"]
Evaluate = Callable[[Tensor, bool], tuple[Tensor, Tensor]]
"""(points (k, P), whether slopes are wanted) → values (k,) in float64, slopes (k, P) or anything where they are not."""

MOMENTUM = 0.75
"""Auto-PGD's α: the weight of the new step against the last one."""
PROGRESS = 0.75
"""Auto-PGD's threshold: the share of steps since the last checkpoint that must have raised the value."""


@dataclass(frozen=True)
class AscentResult:
    """The best point of each row, its value, the step at which it was seen (0: the start), and whether all steps were taken."""

    point: Tensor
    value: Tensor
    step: Tensor
    first: Tensor
    """The values at the starts."""
    complete: bool
    stationary: Tensor
    """Where the slope at the start is zero, so that the first step went along the kick."""


def checkpoints(steps: int) -> list[int]:
    """After which steps Auto-PGD looks back: 22 % of them, then at intervals that shrink to 6 %.

    >>> checkpoints(20)
    [5, 9, 12, 14, 16, 18, 19, 20]
    """
    points = [0.0, 0.22]
    while points[-1] < 1:
        points.append(points[-1] + max(points[-1] - points[-2] - 0.03, 0.06))
    return sorted({math.ceil(round(steps * share, 6)) for share in points[1:] if share <= 1} | {steps})


def ascend(
    evaluate: Evaluate,
    start: Tensor,
    kick: Tensor,
    ball: Ball,
    steps: int,
    method: Method,
    plain: Tensor | None = None,
) -> AscentResult:
    """Climb from `start` and remember the best point seen.

    `apgd` begins with steps of 2ρ, halves them where progress stalls and goes back to the best point then. `pga` takes
    constant steps of 2.5ρ/steps, or, with `plain`, unnormalised ones: u + plain ⊙ slope. Where the slope at the start is
    exactly zero, the first step goes along `kick`. Values that are not finite are never the best.

    >>> from landscope.measures.sharpness.ascent import NormBall
    >>> bowl = lambda u, slopes: (u.square().sum(1).double(), 2 * u)
    >>> ascend(bowl, torch.zeros(1, 2), torch.tensor([[3.0, 4.0]]), NormBall(1.0, 2), 1, "apgd").value
    tensor([1.], dtype=torch.float64)
    """
    x = before = best_x = start
    value, slope = _finite(*evaluate(x, True))
    first, best, best_slope = value, value, slope
    found = torch.zeros_like(best, dtype=torch.long)
    stationary = ~slope.any(1)
    slope = torch.where(stationary[:, None], kick, slope)
    stride = torch.full_like(best, 2.0 * ball.radius if method == "apgd" else 2.5 * ball.radius / steps)
    looks = set(checkpoints(steps)) if method == "apgd" else set()
    rises, last_look, stride_then, best_then = torch.zeros_like(best), 0, stride, best
    for k in range(1, steps + 1):
        move = stride[:, None].to(x.dtype) * ball.steepest(slope) if plain is None else plain * slope
        ahead = ball.project(x + move)
        if method == "apgd" and k > 1:
            ahead = ball.project(x + MOMENTUM * (ahead - x) + (1 - MOMENTUM) * (x - before))
        before, x = x, ahead
        try:
            new, slope = _finite(*evaluate(x, k < steps))
        except BudgetSpentError:
            return AscentResult(best_x, best, found, first, False, stationary)
        rises, value = rises + (new > value), new
        better = value > best
        best = torch.where(better, value, best)
        found = torch.where(better, k, found)
        best_x = torch.where(better[:, None], x, best_x)
        if k == steps:
            break
        best_slope = torch.where(better[:, None], slope, best_slope)
        if k in looks:
            stalled = (rises < PROGRESS * (k - last_look)) | ((stride == stride_then) & (best == best_then))
            rises, last_look, stride_then, best_then = torch.zeros_like(rises), k, stride, best
            stride = torch.where(stalled, stride / 2, stride)
            x, before = (torch.where(stalled[:, None], best_x, y) for y in (x, before))
            slope = torch.where(stalled[:, None], best_slope, slope)
            value = torch.where(stalled, best, value)
    return AscentResult(best_x, best, found, first, True, stationary)


def _finite(values: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
    return values.nan_to_num(-math.inf, -math.inf, -math.inf), slopes.nan_to_num(0.0, 0.0, 0.0)


# Balls in the norms 2 and ∞: what a search for a worst case stays in, among parameters and among inputs alike.


class Ball(Protocol):
    """What an ascent needs to know of the set that it stays in."""

    @property
    def radius(self) -> float:
        """How far it reaches."""

    def project(self, points: Tensor) -> Tensor:
        """The nearest points (k, …) of it."""

    def steepest(self, slopes: Tensor) -> Tensor:
        """The step of norm 1 that gains most to first order."""


@dataclass(frozen=True)
class NormBall:
    """‖u‖_p ≤ ρ for p = 2 or ∞, for every row u of a block (k, …) by itself.

    >>> NormBall(1.0, math.inf).project(torch.tensor([[3.0, -0.5]])), NormBall(1.0, 2).steepest(torch.tensor([[3.0, 4.0]]))
    (tensor([[ 1.0000, -0.5000]]), tensor([[0.6000, 0.8000]]))
    """

    radius: float
    p: float

    def project(self, points: Tensor) -> Tensor:
        """The nearest points in the ball."""
        if self.p == math.inf:
            return points.clamp(-self.radius, self.radius)
        rows = points.flatten(1)
        lengths = torch.linalg.vector_norm(rows, dim=1, keepdim=True, dtype=torch.float64)
        return torch.where(lengths > self.radius, on_sphere(rows, self.radius), rows).view_as(points)

    def steepest(self, slopes: Tensor) -> Tensor:
        """The step of norm 1 that gains most to first order; zero for a zero slope."""
        return slopes.sign() if self.p == math.inf else on_sphere(slopes.flatten(1), 1.0).view_as(slopes)

    def random(self, normals: Tensor) -> Tensor:
        """Random points from standard normal numbers: uniform in the cube (∞), on the sphere (2).

        Nearly all of the volume of a high-dimensional ball lies at its sphere.
        """
        if self.p == math.inf:
            return self.radius * torch.erf(normals / math.sqrt(2))
        return on_sphere(normals.flatten(1), self.radius).view_as(normals)
