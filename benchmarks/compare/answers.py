"""What a tool answers, and how far it is from the truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .networks import Subject


@dataclass(frozen=True)
class Answer:
    """A number or tensor, and what the tool itself says about its accuracy."""

    value: float | Tensor
    claimed: float | None = None
    """The relative error that the tool states; `None` where it states none."""
    note: str = ""
    cpu: float = 0.0
    """Processor seconds that were spent in other processes."""
    memory: int = 0
    """Bytes that other processes took at their peaks."""

    def tensor(self) -> Tensor:
        """In float64, on the CPU, flat."""
        return torch.as_tensor(self.value, dtype=torch.float64).detach().cpu().flatten()


Work = Callable[[], Answer]


class Tool(Protocol):
    """Prepares the work outside of the clock, and returns what is timed."""

    def __call__(self, subject: Subject, **settings: float) -> Work:
        """Settings are those of the row."""
        ...


# Errors: how far an answer is from the truth, as a share of the truth.


def relative(answer: Tensor, truth: Tensor) -> float:
    """‖answer − truth‖ / ‖truth‖."""
    return float((answer - truth).norm() / truth.norm())


def shortfall(answer: Tensor, truth: Tensor) -> float:
    """By how much less a search found than the best one did: (truth − answer) / truth."""
    return float(((truth - answer) / truth).clamp(min=0).max())


def of_the_move(answer: Tensor, truth: Tensor) -> float:
    """Of a step of training, ‖step − true step‖ / ‖true step‖. The first half of both is where it started."""
    (start, _), (_, end), (_, true) = truth.chunk(2), answer.chunk(2), truth.chunk(2)
    return float((end - true).norm() / (true - start).norm())


def of_the_range(answer: Tensor, truth: Tensor) -> float:
    """Root mean square over the points of a picture, as a share of its largest difference."""
    return float((answer - truth).square().mean().sqrt() / (truth.max() - truth.min()))


def between_spectra(answer: Tensor, truth: Tensor) -> float:
    """Wasserstein distance ∫ |F − G| dλ of two eigenvalue distributions, over the mean |λ| of the true one.

    Both are nodes followed by weights.
    """
    (nodes, weights), (true_nodes, true_weights) = answer.chunk(2), truth.chunk(2)
    shares = torch.cat([weights / weights.sum(), -true_weights / true_weights.sum()])
    at, order = torch.cat([nodes, true_nodes]).sort()
    apart = shares[order].cumsum(0)[:-1].abs() @ at.diff()
    return float(apart / (true_nodes.abs() @ true_weights / true_weights.sum()))
