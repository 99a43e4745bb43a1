"""Projected gradient ascent on the inputs (Madry et al. 2018).

    x′ ← project(x′ + step · direction of ∇_x ℓ(x′, y)),    from random starts in the ball ‖x′ − x‖ ≤ ε

with ℓ the cross-entropy of the true label, in the norm ∞ (direction: the sign) or 2 (direction: the normalised gradient). Of
all points that it visits, the clean one included, each sample keeps one that is misclassified if there is any, and among
those the one with the largest loss: the accuracy never exceeds the clean one. It bounds the robust accuracy from above.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from landscope.core.probe import Probe
from landscope.measures.robustness.ball import Attack, Ball, Clip, Norm
from landscope.measures.robustness.classifier import Classifier, checked_inputs, parts

__all__ = ["pgd"]


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
    clip: Clip = (0.0, 1.0),
    batch_size: int = 256,
    seed: int = 0,
) -> Attack:
    """Adversarial inputs by ascent, and the accuracy on them; restarts · steps gradients and a few forward passes.

    Args:
        model: a module, of which a frozen copy is attacked, or a probe, whose frozen model is.
        x, y: inputs (n, …) within `clip`, and labels (n,).
        eps: the radius of the ball.
        steps, step_size: how many steps, and how long each; default 2.5 ε / steps, enough to cross the ball.
        restarts: random starts per sample; the worst point of all counts.
        norm: of the ball, `"inf"` or `"2"`.
        clip: the range of valid inputs, or `None`. Normalised inputs have another one than (0, 1), and ε is in their unit.
        batch_size: bounds memory; the result does not depend on it.
        seed: of the starts.

    >>> net = nn.Linear(2, 2)
    >>> attack = pgd(net, torch.rand(8, 2), torch.arange(8) % 2, eps=0.1, steps=5, norm="2")
    >>> attack.accuracy.value <= attack.clean_accuracy.value
    True
    """
    x, y = checked_inputs(x, y)
    ball = Ball(eps, norm, clip)
    ball.check(x)
    if steps < 1 or restarts < 1:
        raise ValueError(f"steps and restarts must be at least 1, got {steps} and {restarts}")
    length = 2.5 * eps / steps if step_size is None else step_size
    classifier = Classifier.of(model)
    home, x = x.device, classifier.held(x)
    worst = _Worst(x)
    with classifier.evaluating():
        for part in parts(len(x), batch_size):
            images, labels = classifier.ready(x[part]), y[part].to(classifier.device)
            worst.note(part, images, *classifier.judged(images, labels))
        clean = worst.correct.clone()
        for restart in range(restarts):
            start = ball.draw(x, seed, restart)
            for part in parts(len(x), batch_size):
                images, labels = classifier.ready(x[part]), y[part].to(classifier.device)
                moved = ball.inside(images, classifier.ready(start[part]))
                for _ in range(steps):
                    loss, right, slope = classifier.slopes(moved, labels)
                    worst.note(part, moved, loss, right)
                    moved = ball.inside(images, moved - images + length * ball.direction(slope))
                worst.note(part, moved, *classifier.judged(moved, labels))
    return Attack(worst.inputs.to(home), worst.correct.to(home), clean.to(home), searched=True)


class _Worst:
    """Of each sample, the worst point seen so far: a misclassified one before others, then the one of larger loss."""

    def __init__(self, x: Tensor) -> None:
        self.inputs = x.clone()
        self.correct = torch.ones(len(x), dtype=torch.bool, device=x.device)
        self._loss = torch.full((len(x),), -math.inf, dtype=torch.float64, device=x.device)

    def note(self, part: slice, points: Tensor, loss: Tensor, right: Tensor) -> None:
        """Look at one point of each sample of a part."""
        loss, right, held = loss.to(self._loss), right.to(self.correct), self.correct[part]
        worse = (held & ~right) | ((held == right) & (loss > self._loss[part]))
        wide = worse.view(-1, *[1] * (points.dim() - 1))
        self.inputs[part] = torch.where(wide, points.to(self.inputs), self.inputs[part])
        self._loss[part] = torch.where(worse, loss, self._loss[part])
        self.correct[part] = held & right
