"""Adversarial inputs: the fast gradient sign method (Goodfellow et al. 2015) and projected gradient ascent (Madry et al. 2018).

    FGSM    x′ = clip(x + ε sign ∇_x ℓ)
    PGD     x′ ← project(x′ + step · direction of ∇_x ℓ),  from random starts in the ball ‖x′ − x‖ ≤ ε, inputs kept within `clip`

with ℓ the cross-entropy of the true label, in the norm ∞ (direction: the sign) or 2 (direction: the normalised gradient). Of
all points that PGD visits, the clean one included, each sample keeps one that is misclassified if there is any, and among
those the one with the largest loss: its accuracy never exceeds the clean one. It is an upper bound of the robust accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from landscope.core.errors import OperandError
from landscope.core.estimate import Estimate
from landscope.core.probe import Probe
from landscope.core.seeding import generator, normal
from landscope.measures.calibration.resampling import mean_estimate
from landscope.measures.robustness.classifier import Classifier, checked_images

__all__ = ["Attack", "fgsm", "pgd"]

Norm = Literal["inf", "2"]
Clip = tuple[float, float] | None


@dataclass(frozen=True, eq=False)
class Attack:
    """Adversarial inputs, on the device of the given ones, and whether the model still classifies them rightly."""

    inputs: Tensor
    correct: Tensor
    """(n,) on the adversarial inputs."""
    clean_correct: Tensor
    """(n,) on the given inputs."""

    @property
    def accuracy(self) -> Estimate:
        """On the adversarial inputs, with its standard error over samples."""
        return mean_estimate(self.correct.double().cpu())

    @property
    def clean_accuracy(self) -> Estimate:
        """On the given inputs."""
        return mean_estimate(self.clean_correct.double().cpu())


def fgsm(
    model: nn.Module | Probe, x: Tensor, y: Tensor, eps: float, *, clip: Clip = (0.0, 1.0), batch_size: int = 256
) -> Attack:
    """One step of length ε in the ∞-norm. One gradient and one forward pass; the model is untouched.

    >>> net = nn.Linear(2, 2)
    >>> attack = fgsm(net, torch.rand(8, 2), torch.arange(8) % 2, eps=0.1)
    >>> float((attack.inputs - torch.rand(8, 2)).abs().max()) <= 1 and attack.accuracy.value <= 1
    True
    """
    x, y = checked_images(x, y)
    _check(x, eps, clip)
    classifier = Classifier.of(model)
    found, correct, clean = torch.empty_like(x), torch.empty_like(y, dtype=torch.bool), torch.empty_like(y, dtype=torch.bool)
    with classifier.evaluating():
        for part in _parts(len(x), batch_size):
            images, labels = classifier.ready(x[part]), y[part].to(classifier.device)
            _, right, slope = _ascent_direction(classifier, images, labels)
            moved = _clipped(images + eps * slope.sign(), clip)
            found[part], clean[part] = moved.to(found), right.to(clean.device)
            correct[part] = (classifier.logits(moved).argmax(1) == labels).to(correct.device)
    return Attack(found, correct, clean)


def pgd(
    model: nn.Module | Probe,
    x: Tensor,
    y: Tensor,
    eps: float,
    *,
    steps: int = 20,
    step_size: float | None = None,
    restarts: int = 1,
    norm: Norm = "inf",
    random_start: bool = True,
    clip: Clip = (0.0, 1.0),
    batch_size: int = 256,
    seed: int = 0,
) -> Attack:
    """Projected gradient ascent; restarts · (steps gradients + 1 forward pass). The model is untouched.

    Args:
        model: a module, or a probe, whose frozen model is taken.
        x, y: inputs (n, …) within `clip`, and labels (n,).
        eps: radius of the ball.
        steps, step_size: how many steps, and how long; default length 2.5 ε / steps, which reaches across the ball.
        restarts: starts per sample; the worst end counts.
        norm: of the ball, `"inf"` or `"2"` (over all of a sample's numbers).
        random_start: uniformly in the ball; otherwise the first start is at the clean input.
        clip: the range of valid inputs, or `None`. Normalised inputs have another range than (0, 1), and ε is in their unit.
        seed: of the starts, which do not depend on the batch size.

    >>> net = nn.Linear(2, 2)
    >>> attack = pgd(net, torch.rand(8, 2), torch.arange(8) % 2, eps=0.1, steps=5, norm="2")
    >>> attack.accuracy.value <= attack.clean_accuracy.value
    True
    """
    x, y = checked_images(x, y)
    _check(x, eps, clip)
    if steps < 1 or restarts < 1:
        raise ValueError(f"steps and restarts must be at least 1, got {steps} and {restarts}")
    if norm not in ("inf", "2"):
        raise ValueError(f"norm must be 'inf' or '2', got {norm!r}")
    length = 2.5 * eps / steps if step_size is None else step_size
    classifier = Classifier.of(model)
    worst = _Worst(x, y)
    with classifier.evaluating():
        for restart in range(restarts):
            start = _start(x, eps, norm, seed, restart) if random_start or restart else torch.zeros_like(x)
            for part in _parts(len(x), batch_size):
                images, labels = classifier.ready(x[part]), y[part].to(classifier.device)
                if restart == 0:
                    worst.note(part, images, *_judged(classifier, images, labels))
                moved = _clipped(images + classifier.ready(start[part]), clip)
                for _ in range(steps):
                    loss, right, slope = _ascent_direction(classifier, moved, labels)
                    worst.note(part, moved, loss, right)
                    ahead = moved - images + length * _direction(slope, norm)
                    moved = _clipped(images + _projected(ahead, eps, norm), clip)
                worst.note(part, moved, *_judged(classifier, moved, labels))
    return worst.attack()


class _Worst:
    """Of each sample, the worst point seen so far: misclassified before rightly classified, then by loss."""

    def __init__(self, x: Tensor, y: Tensor) -> None:
        self._inputs = x.clone()
        self._loss = torch.full(y.shape, -math.inf, device=x.device)
        self._correct = torch.ones(y.shape, dtype=torch.bool, device=x.device)
        self._clean: Tensor | None = None

    def note(self, part: slice, points: Tensor, loss: Tensor, right: Tensor) -> None:
        loss, right = loss.to(self._loss), right.to(self._correct.device)
        held = self._correct[part]
        better = (held & ~right) | ((held == right) & (loss > self._loss[part]))
        shape = (-1,) + (1,) * (points.dim() - 1)
        self._inputs[part] = torch.where(better.view(shape), points.to(self._inputs), self._inputs[part])
        self._loss[part] = torch.where(better, loss, self._loss[part])
        self._correct[part] = held & right

    def attack(self) -> Attack:
        assert self._clean is not None
        return Attack(self._inputs, self._correct, self._clean)
