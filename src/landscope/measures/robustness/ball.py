"""Balls of perturbations in the norms ∞ and 2, and what an attack does in them."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from landscope.core.errors import OperandError
from landscope.core.estimate import Estimate, Status
from landscope.core.seeding import generator, normal
from landscope.measures.calibration.resampling import mean_estimate

__all__ = ["Attack", "Ball", "Clip", "Norm"]

Norm = Literal["inf", "2"]
Clip = tuple[float, float] | None


@dataclass(frozen=True, eq=False)
class Attack:
    """Adversarial inputs, on the device of the given ones, and whether the model still classifies them rightly."""

    inputs: Tensor
    correct: Tensor
    """On the adversarial inputs (n,)."""
    clean_correct: Tensor
    """On the given inputs (n,)."""
    searched: bool = False
    """The inputs are the worst that a search found, which stand for the worst of the ball."""

    @property
    def accuracy(self) -> Estimate:
        """On the adversarial inputs, with its error over samples; after a search, an upper bound of the robust accuracy."""
        found = mean_estimate(self.correct.cpu().double())
        if not self.searched or not self.correct.any():
            return found
        reason = "the robust accuracy is at most this: more steps or restarts may find more"
        return replace(found, stderr=None, status=Status.UPPER_BOUND, reason=reason)

    @property
    def clean_accuracy(self) -> Estimate:
        """On the given inputs, with its standard error over samples."""
        return mean_estimate(self.clean_correct.cpu().double())


@dataclass(frozen=True)
class Ball:
    """Perturbations δ with ‖δ‖ ≤ eps of inputs that stay within `clip`; the 2-norm is over all numbers of a sample.

    >>> ball = Ball(0.5, "2", (0.0, 1.0))
    >>> ball.inside(torch.zeros(1, 2), torch.tensor([[3.0, 4.0]]))
    tensor([[0.3000, 0.4000]])
    """

    eps: float
    norm: Norm
    clip: Clip

    def __post_init__(self) -> None:
        if not (math.isfinite(self.eps) and self.eps >= 0):
            raise ValueError(f"eps must be a finite number, not negative, got {self.eps}")
        if self.norm not in ("inf", "2"):
            raise ValueError(f"norm must be 'inf' or '2', got {self.norm!r}")
        if self.clip is not None and not self.clip[0] < self.clip[1]:
            raise ValueError(f"clip must be (lowest, highest) valid input, or None, got {self.clip}")

    def check(self, x: Tensor) -> None:
        """Refuse inputs that are not valid to begin with: projecting them would change them without an attack."""
        if not x.is_floating_point():
            raise OperandError(f"inputs must be real numbers, got {x.dtype}; scale bytes to [0, 1] first")
        if self.clip is not None:
            low, high = float(x.min()), float(x.max())
            if low < self.clip[0] or high > self.clip[1]:
                raise OperandError(
                    f"inputs run from {low:.4g} to {high:.4g}, outside clip={self.clip}. Attack images before they are "
                    f"normalised (put that into the model), or pass the range of valid inputs as clip=, or clip=None."
                )

    def direction(self, slope: Tensor) -> Tensor:
        """The step of length 1 along which the loss rises fastest."""
        return slope.sign() if self.norm == "inf" else slope / _length(slope).clamp(min=1e-30)

    def inside(self, x: Tensor, shift: Tensor) -> Tensor:
        """The nearest valid input to x + shift: within the ball around x, then within `clip`."""
        if self.norm == "inf":
            moved = x + shift.clamp(-self.eps, self.eps)
        else:
            moved = x + shift * (self.eps / _length(shift).clamp(min=1e-30)).clamp(max=1)
        return moved if self.clip is None else moved.clamp(*self.clip)

    def draw(self, like: Tensor, seed: int, restart: int) -> Tensor:
        """Uniform in the ball, on the CPU, for all samples at once: batches change nothing."""
        rng = generator(seed, "attack", restart)
        dtype = torch.promote_types(like.dtype, torch.float32)
        if self.norm == "inf":
            return (2 * torch.rand(like.shape, generator=rng, dtype=dtype) - 1) * self.eps
        shift = normal(like.shape, rng, dtype)
        radius = torch.rand((len(like),) + (1,) * (like.dim() - 1), generator=rng, dtype=dtype) ** (1 / like[0].numel())
        return self.eps * radius * shift / _length(shift)


def _length(x: Tensor) -> Tensor:
    return torch.linalg.vector_norm(x, dim=tuple(range(1, x.dim())), keepdim=True)
