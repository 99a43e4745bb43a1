"""Balls in the norms 2 and ∞: what a search for a worst case stays in, among parameters and among inputs alike."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from landscope.probe.perturbed import on_sphere


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
