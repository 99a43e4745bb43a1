"""Attacks on a classifier by its gradient: one step (FGSM), and ascent on the cross-entropy (PGD), in a ball around each input.

What an attack finds is a bound: the accuracy on the worst inputs of the ball, the robust accuracy, is at most that on the
inputs found. Neither of the two here is enough to believe in robustness, since the gradient of the cross-entropy vanishes where a
network is very sure: see `landscope.measures.robustness.auto_pgd` for `strongest`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from landscope.core.errors import OperandError
from landscope.core.estimate import Estimate, Status
from landscope.core.seeding import generator, normal
from landscope.measures.calibration.scores import mean_estimate
from landscope.measures.robustness.classifier import Classifier, checked_inputs
from landscope.measures.sharpness.ascent import NormBall
from landscope.probe.probe import Probe

Norm = Literal["inf", "2"]
Clip = tuple[float, float] | None

BATCH = 256
"""Samples that are attacked together, unless a `Classifier` says otherwise."""


@dataclass(frozen=True, eq=False)
class Attack:
    """Adversarial inputs, on the device of the given ones, and whether the model still classifies them correctly."""

    inputs: Tensor
    correct: Tensor
    """On the adversarial inputs (n,)."""
    clean_correct: Tensor
    """On the given inputs (n,)."""
    after: Mapping[str, float] = field(default_factory=dict)
    """Where several attacks were made one after the other: the accuracy that each has left."""
    blind: float = 0.0
    """Share of the attacked samples on which every gradient was exactly zero, of differences of logits as well: rounded or
    thresholded inputs, for one. Attacks by gradient can tell nothing of those."""

    def __repr__(self) -> str:
        left = "".join(f", {accuracy:.3g} after {name}" for name, accuracy in self.after.items() if name != "clean")
        return (
            f"Attack({len(self.correct)} samples: clean accuracy {self.clean_accuracy}; accuracy {self.accuracy}{left})"
        )

    @property
    def accuracy(self) -> Estimate:
        """The robust accuracy is at most this: the accuracy on the inputs found, with its error over samples."""
        found = replace(mean_estimate(self.correct.cpu().double()), details=dict(self.after))
        if not self.correct.any():
            return found
        reason = "the robust accuracy is at most this: a stronger attack may find more"
        if self.blind:
            reason += f". No gradient led anywhere on {self.blind:.0%} of the samples: of those this says nothing"
        return replace(found, stderr=None, status=Status.UPPER_BOUND, reason=reason)

    @property
    def clean_accuracy(self) -> Estimate:
        """On the given inputs, with its standard error over samples."""
        return mean_estimate(self.clean_correct.cpu().double())


@dataclass(frozen=True)
class InputBall:
    """A ball of perturbations of inputs that stay within `clip`; the norm is over all numbers of a sample.

    >>> ball = InputBall.of(0.5, "2", (0.0, 1.0))
    >>> ball.inside(torch.zeros(1, 2), torch.tensor([[3.0, 4.0]]))
    tensor([[0.3000, 0.4000]])
    """

    ball: NormBall
    clip: Clip

    @classmethod
    def of(cls, eps: float, norm: Norm, clip: Clip) -> InputBall:
        """Checked."""
        if not (math.isfinite(eps) and eps >= 0):
            raise ValueError(f"eps must be a finite number, not negative, got {eps}")
        if norm not in ("inf", "2"):
            raise ValueError(f"norm must be 'inf' or '2', got {norm!r}")
        if clip is not None and not clip[0] < clip[1]:
            raise ValueError(f"clip must be (lowest, highest) valid input, or None, got {clip}")
        return cls(NormBall(eps, float(norm)), clip)

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

    def inside(self, x: Tensor, shift: Tensor) -> Tensor:
        """The nearest valid input to x + shift: within the ball around x, then within `clip`."""
        moved = x + self.ball.project(shift)
        return moved if self.clip is None else moved.clamp(*self.clip)

    def draw(self, like: Tensor, seed: int, *stream: str | int) -> Tensor:
        """Uniform in the ball, on the CPU, for all samples at once: batches change nothing."""
        rng = generator(seed, "attack", *stream)
        dtype = torch.promote_types(like.dtype, torch.float32)
        if self.ball.p == math.inf:
            return (2 * torch.rand(like.shape, generator=rng, dtype=dtype) - 1) * self.ball.radius
        shift = normal(like.shape, rng, dtype)
        share = torch.rand((len(like),) + (1,) * (like.dim() - 1), generator=rng, dtype=dtype) ** (1 / like[0].numel())
        return share * self.ball.random(shift)


class Worst:
    """Of each sample, the worst point seen so far: a misclassified one before others, then the one of larger margin."""

    def __init__(self, classifier: Classifier, x: Tensor, y: Tensor) -> None:
        """Begin with the given inputs themselves; to be called inside `Classifier.evaluating`."""
        self.inputs = x.clone()
        self.correct = torch.ones(len(x), dtype=torch.bool, device=x.device)
        self._margin = torch.full((len(x),), -math.inf, dtype=torch.float64, device=x.device)
        for part in classifier.parts(len(x), BATCH):
            images = classifier.ready(x[part])
            self.note(part, images, *classifier.judged(images, y[part].to(classifier.device)))
        self.clean = self.correct.clone()
        self._attacked, self._led = (torch.zeros_like(self.clean) for _ in range(2))

    def note(self, part: slice | Tensor, points: Tensor, margin: Tensor, right: Tensor) -> None:
        """Note one point for each sample of a part."""
        margin, right, held = margin.to(self._margin), right.to(self.correct), self.correct[part]
        worse = (held & ~right) | ((held == right) & (margin > self._margin[part]))
        wide = worse.view(-1, *[1] * (points.dim() - 1))
        self.inputs[part] = torch.where(wide, points.to(self.inputs), self.inputs[part])
        self._margin[part] = torch.where(worse, margin, self._margin[part])
        self.correct[part] = held & right

    def note_slopes(self, part: Tensor, slopes: Tensor) -> None:
        """Look at the gradients at one point of each sample of a part."""
        self._attacked[part] = True
        self._led[part] |= (slopes != 0).flatten(1).any(1).to(self._led)

    def attack(self, home: torch.device, after: Mapping[str, float] | None = None) -> Attack:
        """What was found."""
        attacked = int(self._attacked.sum())
        blind = int((self._attacked & ~self._led).sum()) / attacked if attacked else 0.0
        return Attack(self.inputs.to(home), self.correct.to(home), self.clean.to(home), after or {}, blind)


def likelihood(z: Tensor, y: Tensor) -> Tensor:
    """The cross-entropy of each sample."""
    return cross_entropy(z, y, reduction="none")


# The fast gradient sign method (Goodfellow et al. 2015): one step up the loss, as long as the ∞-norm allows.
#
#     x′ = clip(x + ε sign ∇_x ℓ(x, y)),    ℓ the cross-entropy of the true label
#
# It needs no search and is weak.


def fgsm(model: nn.Module | Probe | Classifier, x: Tensor, y: Tensor, eps: float, *, clip: Clip = (0.0, 1.0)) -> Attack:
    """Adversarial inputs by one step, and the accuracy on them. One gradient and one forward pass.

    The model is untouched: a frozen copy of it is attacked, or the one that a probe or a `Classifier` holds.

    >>> net, x = nn.Linear(2, 2), torch.rand(8, 2)
    >>> attack = fgsm(net, x, torch.arange(8) % 2, eps=0.1)
    >>> bool(((attack.inputs - x).abs() < 0.1 + 1e-6).all())
    True
    """
    x, y = checked_inputs(x, y)
    ball = InputBall.of(eps, "inf", clip)
    ball.check(x)
    classifier = Classifier.of(model)
    home, x = x.device, classifier.held(x)
    with classifier.evaluating():
        found = torch.empty_like(x)
        correct, clean = (torch.empty(len(x), dtype=torch.bool, device=x.device) for _ in range(2))
        for part in classifier.parts(len(x), BATCH):
            images, labels = classifier.ready(x[part]), y[part].to(classifier.device)
            _, right, _, slope = classifier.slopes(images, labels, likelihood)
            moved = ball.inside(images, eps * ball.ball.steepest(slope))
            found[part], clean[part] = moved.to(found), right.to(clean)
            correct[part] = classifier.judged(moved, labels)[1].to(correct)
    return Attack(found.to(home), correct.to(home), clean.to(home))


# Projected gradient ascent on the inputs (Madry et al. 2018).
#
#     x′ ← project(x′ + step · direction of ∇_x ℓ(x′, y)),    from random starts in the ball ‖x′ − x‖ ≤ ε
#
# with ℓ the cross-entropy of the true label, in the norm ∞ (direction: the sign) or 2 (direction: the normalised gradient). Of
# all points that it visits, the clean one included, each sample keeps one that is misclassified if there is any, and among
# those the one with the largest margin. The accuracy never exceeds the clean one, and bounds the robust accuracy from above.


def pgd(
    model: nn.Module | Probe | Classifier,
    x: Tensor,
    y: Tensor,
    eps: float,
    *,
    steps: int = 20,
    step_size: float | None = None,
    restarts: int = 1,
    norm: Norm = "inf",
    clip: Clip = (0.0, 1.0),
    seed: int = 0,
) -> Attack:
    """Adversarial inputs by ascent, and the accuracy on them; restarts · steps gradients and a few forward passes.

    Args:
        model: a module, of which a frozen copy is attacked, or a probe or `Classifier`, whose frozen model is.
        x, y: inputs (n, …) within `clip`, and labels (n,).
        eps: the radius of the ball.
        steps, step_size: how many steps, and how long each; default 2.5 ε / steps, enough to cross the ball.
        restarts: random starts per sample; the worst point of all counts.
        norm: of the ball, `"inf"` or `"2"`.
        clip: the range of valid inputs, or `None`. For normalised inputs it is not (0, 1), and ε is in their unit.
        seed: of the starts.

    >>> net = nn.Linear(2, 2)
    >>> attack = pgd(net, torch.rand(8, 2), torch.arange(8) % 2, eps=0.1, steps=5, norm="2")
    >>> attack.accuracy.value <= attack.clean_accuracy.value
    True
    """
    x, y = checked_inputs(x, y)
    ball = InputBall.of(eps, norm, clip)
    ball.check(x)
    if steps < 1 or restarts < 1:
        raise ValueError(f"steps and restarts must be at least 1, got {steps} and {restarts}")
    length = 2.5 * eps / steps if step_size is None else step_size
    classifier = Classifier.of(model)
    home, x = x.device, classifier.held(x)
    with classifier.evaluating():
        worst = Worst(classifier, x, y)
        for restart in range(restarts):
            start = ball.draw(x, seed, restart)
            for part in classifier.parts(len(x), BATCH):
                images, labels = classifier.ready(x[part]), y[part].to(classifier.device)
                moved = ball.inside(images, classifier.ready(start[part]))
                for _ in range(steps):
                    margin, right, _, slope = classifier.slopes(moved, labels, likelihood)
                    worst.note(part, moved, margin, right)
                    moved = ball.inside(images, moved - images + length * ball.ball.steepest(slope))
                worst.note(part, moved, *classifier.judged(moved, labels))
    return worst.attack(home)
