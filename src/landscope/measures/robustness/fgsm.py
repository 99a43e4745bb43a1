"""The fast gradient sign method (Goodfellow et al. 2015): one step up the loss, as long as the ∞-norm allows.

    x′ = clip(x + ε sign ∇_x ℓ(x, y)),    ℓ the cross-entropy of the true label

It needs no search and finds little: `pgd` is the stronger attack.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from landscope.core.probe import Probe
from landscope.measures.robustness.ball import Attack, Ball, Clip
from landscope.measures.robustness.classifier import Classifier, checked_inputs, parts

__all__ = ["fgsm"]


def fgsm(
    model: nn.Module | Probe, x: Tensor, y: Tensor, eps: float, *, clip: Clip = (0.0, 1.0), batch_size: int = 256
) -> Attack:
    """Adversarial inputs by one step, and the accuracy on them. One gradient and one forward pass.

    The model is untouched: a frozen copy of it is attacked, or the one that a probe holds.

    >>> net, x = nn.Linear(2, 2), torch.rand(8, 2)
    >>> attack = fgsm(net, x, torch.arange(8) % 2, eps=0.1)
    >>> bool(((attack.inputs - x).abs() < 0.1 + 1e-6).all())
    True
    """
    x, y = checked_inputs(x, y)
    ball = Ball(eps, "inf", clip)
    ball.check(x)
    classifier = Classifier.of(model)
    home, x = x.device, classifier.held(x)
    found = torch.empty_like(x)
    correct, clean = (torch.empty(len(x), dtype=torch.bool, device=x.device) for _ in range(2))
    with classifier.evaluating():
        for part in parts(len(x), batch_size):
            images, labels = classifier.ready(x[part]), y[part].to(classifier.device)
            _, right, slope = classifier.slopes(images, labels)
            moved = ball.inside(images, eps * ball.direction(slope))
            found[part], clean[part] = moved.to(found), right.to(clean)
            correct[part] = classifier.judged(moved, labels)[1].to(correct)
    return Attack(found.to(home), correct.to(home), clean.to(home))
