"""Attacks on a classifier: the worst inputs in a ball around the given ones, by one step or by ascent."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from landscope.core.errors import DataError, EmptyDataError, LabelRangeError, OperandError
from landscope.core.estimate import Estimate, Status
from landscope.core.memory import available_bytes
from landscope.core.seeding import generator, normal
from landscope.measures.calibration.scores import mean_estimate
from landscope.measures.norm_ball import NormBall
from landscope.probe.checks import tensor_output
from landscope.probe.conditions import Precision, measuring
from landscope.probe.frozen import frozen_copy, is_recurrent, unwrap
from landscope.probe.probe import Probe

__all__ = ["Attack", "Classifier", "Clip", "InputBall", "Norm", "checked_inputs", "fgsm", "pgd"]


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
    searched: bool = False
    """The inputs are the worst that a search found; the ball may hold worse ones."""

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

    def draw(self, like: Tensor, seed: int, restart: int) -> Tensor:
        """Uniform in the ball, on the CPU, for all samples at once: batches change nothing."""
        rng = generator(seed, "attack", restart)
        dtype = torch.promote_types(like.dtype, torch.float32)
        if self.ball.p == math.inf:
            return (2 * torch.rand(like.shape, generator=rng, dtype=dtype) - 1) * self.ball.radius
        shift = normal(like.shape, rng, dtype)
        share = torch.rand((len(like),) + (1,) * (like.dim() - 1), generator=rng, dtype=dtype) ** (1 / like[0].numel())
        return share * self.ball.random(shift)


# A frozen classifier to try inputs on: a private copy of a model, so that the given one stays untouched.


@dataclass(frozen=True, eq=False)
class Classifier:
    """A model in eval mode with fixed parameters; where, how precisely and in what batches it computes.

    `precision="tf32"` is faster on a GPU and hardly ever changes a prediction. `batch_size` bounds memory; no result depends on
    it.
    """

    model: nn.Module
    device: torch.device
    dtype: torch.dtype
    temperature: float = 1.0
    precision: Precision = "highest"
    batch_size: int | None = None

    def __post_init__(self) -> None:
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")

    @classmethod
    def of(
        cls,
        model: nn.Module | Probe | Classifier,
        device: torch.device | str | None = None,
        precision: Precision = "highest",
        batch_size: int | None = None,
    ) -> Classifier:
        """A copy of a model, on its own device where none is named, or the frozen model that a probe holds already."""
        if isinstance(model, Classifier):
            return model
        if isinstance(model, Probe):
            if model.mode != "eval":
                raise OperandError("robustness is measured in eval mode: build the probe with mode='eval'")
            return cls(model.modules[""], model.device, model.dtype, model.temperature, precision, batch_size)
        inner = unwrap(model)
        present = next((p.device for p in inner.parameters()), torch.device("cpu"))
        home = present if device is None else torch.device(device)
        twin, _ = frozen_copy(inner, "eval", None, home)
        dtype = next((p.dtype for p in twin.parameters() if p.is_floating_point()), torch.float32)
        return cls(twin, home, dtype, precision=precision, batch_size=batch_size)

    def evaluating(self) -> AbstractContextManager[None]:
        """The context to evaluate and differentiate in; global random state is preserved."""
        return measuring(self.device, self.precision, is_recurrent(self.model))

    def parts(self, n: int, usual: int) -> Iterator[slice]:
        """Consecutive slices of n samples, of the batch size or else of the usual one.

        >>> list(Classifier.of(nn.Linear(2, 2)).parts(5, 3))
        [slice(0, 3, None), slice(3, 5, None)]
        """
        size = self.batch_size or usual
        for start in range(0, n, size):
            yield slice(start, min(start + size, n))

    def held(self, x: Tensor) -> Tensor:
        """All inputs where the model is, if they fit there with room to spare; otherwise where they are."""
        fits = x.numel() * x.element_size() < available_bytes(self.device) // 8
        return x.to(self.device) if fits else x

    def ready(self, x: Tensor) -> Tensor:
        """Inputs where the model is, and in its precision."""
        return x.detach().to(self.device, self.dtype)

    def logits(self, x: Tensor) -> Tensor:
        """Logits (n, C) of a batch."""
        z = tensor_output(self.model(x.clone())) / self.temperature  # a forward pass may write into its input
        if z.dim() != 2 or z.shape[0] != len(x) or z.shape[1] < 2:
            raise OperandError(
                f"expected logits ({len(x)}, C) of at least two classes, got {tuple(z.shape)} from the model"
            )
        return z

    def judged(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """The loss of each sample of a batch, and whether it is classified correctly."""
        with torch.no_grad():
            z = self.logits(x)
            return F.cross_entropy(z, y, reduction="none"), z.argmax(1) == y

    def slopes(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """The result of `judged`, and the gradient of each sample's loss with respect to its input."""
        point = x.detach().requires_grad_()
        z = self.logits(point)
        losses = F.cross_entropy(z, y, reduction="none")
        (slope,) = torch.autograd.grad(losses.sum(), point)
        return losses.detach(), z.detach().argmax(1) == y, slope


def checked_inputs(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs (n, …) and integer labels (n,), detached; refused where they do not fit together.

    >>> checked_inputs(torch.rand(3, 2), torch.tensor([0, 1]))
    Traceback (most recent call last):
    landscope.core.errors.OperandError: expected one label per input, got inputs (3, 2) and labels (2,)
    """
    if x.dim() < 2 or y.shape != x.shape[:1]:
        raise OperandError(f"expected one label per input, got inputs {tuple(x.shape)} and labels {tuple(y.shape)}")
    if not len(x):
        raise EmptyDataError("there are no samples")
    if y.is_floating_point() or y.dtype == torch.bool or bool((y < 0).any()):
        raise LabelRangeError(f"class labels must be integers from 0 on, got {y.dtype}, smallest {float(y.min()):g}")
    if x.is_floating_point() and not bool(torch.isfinite(x).all()):
        raise DataError("the inputs hold NaN or infinity")
    return x.detach(), y.detach().long()


# The fast gradient sign method (Goodfellow et al. 2015): one step up the loss, as long as the ∞-norm allows.
#
#     x′ = clip(x + ε sign ∇_x ℓ(x, y)),    ℓ the cross-entropy of the true label
#
# It needs no search and is weak: `pgd` is the stronger attack.


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
    found = torch.empty_like(x)
    correct, clean = (torch.empty(len(x), dtype=torch.bool, device=x.device) for _ in range(2))
    with classifier.evaluating():
        for part in classifier.parts(len(x), BATCH):
            images, labels = classifier.ready(x[part]), y[part].to(classifier.device)
            _, right, slope = classifier.slopes(images, labels)
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
# those the one with the largest loss. The accuracy never exceeds the clean one, and bounds the robust accuracy from above.


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
    worst = _Worst(x)
    with classifier.evaluating():
        for part in classifier.parts(len(x), BATCH):
            images, labels = classifier.ready(x[part]), y[part].to(classifier.device)
            worst.note(part, images, *classifier.judged(images, labels))
        clean = worst.correct.clone()
        for restart in range(restarts):
            start = ball.draw(x, seed, restart)
            for part in classifier.parts(len(x), BATCH):
                images, labels = classifier.ready(x[part]), y[part].to(classifier.device)
                moved = ball.inside(images, classifier.ready(start[part]))
                for _ in range(steps):
                    loss, right, slope = classifier.slopes(moved, labels)
                    worst.note(part, moved, loss, right)
                    moved = ball.inside(images, moved - images + length * ball.ball.steepest(slope))
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
