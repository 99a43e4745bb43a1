"""Attacks that are hard to fool: Auto-PGD on losses that do not vanish, and ascents towards one wrong class after the other.

The gradient of the cross-entropy is p − e_y: where a network is very sure it is zero to rounding, ascent on it stands still, and
the network looks robust. Differences of logits keep their gradient, and divided by another difference (DLR, Croce & Hein 2020)
they do not depend on the scale of the logits at all:

    margin    max_{c≠y} z_c − z_y
    dlr       (max_{c≠y} z_c − z_y) / (z_π1 − z_π3)                      π: the logits in falling order
    towards t (z_t − z_y) / (z_π1 − (z_π3 + z_π4)/2)

Auto-PGD (`landscope.measures.sharpness.ascent`) needs no step size. `strongest` makes three attacks one after another, each on
the samples that survive the ones before: cross-entropy, DLR, then the most likely wrong classes one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Literal

import torch
from torch import Tensor, nn

from landscope.core.seeding import generator, normal
from landscope.measures.robustness.attacks import (
    BATCH,
    Attack,
    Clip,
    InputBall,
    Norm,
    Worst,
    likelihood,
)
from landscope.measures.robustness.classifier import Classifier, Objective, checked_inputs, margin
from landscope.measures.sharpness.ascent import ascend
from landscope.probe.probe import Probe

AttackLoss = Literal["cross_entropy", "margin", "dlr"]
TARGETS = 9
"""Wrong classes that are tried, the most likely first."""
STEPS = 100
EQUAL = 1e-12
"""Keeps a quotient of differences finite where logits are equal."""


def dlr(z: Tensor, y: Tensor) -> Tensor:
    """The margin over the difference of the first and the third logit; the margin itself where there are two classes.

    >>> z, y = torch.tensor([[4.0, 1.0, 3.0]]), torch.tensor([0])
    >>> float(dlr(z, y)), bool(torch.isclose(dlr(z, y), dlr(100 * z + 7, y)))
    (-0.3333333432674408, True)
    """
    if z.shape[1] < 3:
        return margin(z, y)
    ordered = z.topk(3, dim=1).values
    return margin(z, y) / (ordered[:, 0] - ordered[:, 2] + EQUAL)


def towards(z: Tensor, y: Tensor, target: Tensor) -> Tensor:
    """The logit of the target less that of the true class, over a spread of the first four; without it for fewer classes."""
    rise = z.gather(1, target[:, None])[:, 0] - z.gather(1, y[:, None])[:, 0]
    if z.shape[1] < 4:
        return rise
    ordered = z.topk(4, dim=1).values
    return rise / (ordered[:, 0] - (ordered[:, 2] + ordered[:, 3]) / 2 + EQUAL)


LOSSES: Mapping[AttackLoss, Objective] = MappingProxyType({"cross_entropy": likelihood, "margin": margin, "dlr": dlr})


@dataclass(frozen=True, eq=False)
class _Room:
    """The shifts (k, numbers) that leave each of k images a valid input of its ball: what an ascent stays in."""

    ball: InputBall
    images: Tensor

    @property
    def radius(self) -> float:
        return self.ball.ball.radius

    def project(self, points: Tensor) -> Tensor:
        return (self.ball.inside(self.images, points.view_as(self.images)) - self.images).flatten(1)

    def steepest(self, slopes: Tensor) -> Tensor:
        return self.ball.ball.steepest(slopes)


@dataclass(frozen=True, eq=False)
class _Siege:
    """A classifier, the ball, the samples, and the worst that was found so far."""

    classifier: Classifier
    ball: InputBall
    x: Tensor
    y: Tensor
    worst: Worst
    steps: int
    seed: int

    @classmethod
    def of(
        cls,
        model: nn.Module | Probe | Classifier,
        x: Tensor,
        y: Tensor,
        ball: InputBall,
        steps: int,
        seed: int,
        **counts: int,
    ) -> _Siege:
        """Checked, with the given inputs as the first that were tried."""
        for name, count in {"steps": steps, **counts}.items():
            if count < 1:
                raise ValueError(f"{name} must be at least 1, got {count}")
        x, y = checked_inputs(x, y)
        ball.check(x)
        classifier = Classifier.of(model)
        x = classifier.held(x)
        with classifier.evaluating():
            return cls(classifier, ball, x, y, Worst(classifier, x, y), steps, seed)

    def untargeted(self, loss: AttackLoss, restarts: int = 1) -> None:
        """Ascend away from the true class."""
        for restart in range(restarts):
            self._ascend(lambda _: LOSSES[loss], loss, restart)

    def targeted(self, targets: int) -> None:
        """Ascend towards each of the most likely wrong classes of the clean images."""
        order = self._likely(targets)
        for place in range(order.shape[1]):
            self._ascend(partial(_towards, order[:, place]), "targeted", place)

    def _ascend(self, objective: Callable[[Tensor], Objective], *stream: str | int) -> None:
        """One ascent for every sample still classified correctly; `objective` gives that of the samples with some numbers."""
        standing = self.worst.correct.nonzero()[:, 0]
        starts = self.ball.draw(self.x, self.seed, *stream)
        kicks = normal(self.x.shape, generator(self.seed, "kick", *stream), starts.dtype)
        with self.classifier.evaluating():
            for part in self.classifier.parts(len(standing), BATCH):
                rows = standing[part]
                images, labels = self.classifier.ready(self.x[rows]), self.y[rows.cpu()].to(self.classifier.device)
                start, kick = (self.classifier.ready(drawn[rows.cpu()]).flatten(1) for drawn in (starts, kicks))
                room = _Room(self.ball, images)
                evaluate = partial(self._evaluate, rows, images, labels, objective(rows))
                ascend(evaluate, room.project(start), kick, room, self.steps, "apgd")

    def _evaluate(
        self, rows: Tensor, images: Tensor, labels: Tensor, objective: Objective, points: Tensor, _: bool
    ) -> tuple[Tensor, Tensor]:
        """The objective and its slopes at images that are shifted by `points`; all of them are looked at."""
        moved = self.ball.inside(images, points.view_as(images))
        by, right, values, slope = self.classifier.slopes(moved, labels, objective)
        self.worst.note(rows, moved, by, right)
        self.worst.note_slopes(rows, slope)
        return values.double(), slope.flatten(1)

    def _likely(self, targets: int) -> Tensor:
        """The wrong classes of each sample (n, targets), the most likely first."""
        found = []
        with self.classifier.evaluating(), torch.no_grad():
            for part in self.classifier.parts(len(self.x), BATCH):
                z = self.classifier.logits(self.classifier.ready(self.x[part]))
                wrong = z.scatter(1, self.y[part].to(z.device)[:, None], -torch.inf)
                found.append(wrong.topk(min(targets, z.shape[1] - 1), dim=1).indices)
        return torch.cat(found).to(self.worst.correct.device)

    @property
    def accuracy(self) -> float:
        return float(self.worst.correct.double().mean())


def _towards(target: Tensor, rows: Tensor) -> Objective:
    """`towards` the targets of some samples."""
    wanted = target[rows]
    return lambda z, y: towards(z, y, wanted.to(z.device))


def apgd(
    model: nn.Module | Probe | Classifier,
    x: Tensor,
    y: Tensor,
    eps: float,
    *,
    loss: AttackLoss = "dlr",
    steps: int = STEPS,
    restarts: int = 1,
    norm: Norm = "inf",
    clip: Clip = (0.0, 1.0),
    seed: int = 0,
) -> Attack:
    """Auto-PGD on one loss; restarts · steps gradients, on the samples still classified correctly. Arguments as for `pgd`.

    >>> net = nn.Linear(2, 3)
    >>> attack = apgd(net, torch.rand(8, 2), torch.arange(8) % 3, eps=0.2, steps=5)
    >>> attack.accuracy.value <= attack.clean_accuracy.value
    True
    """
    if loss not in LOSSES:
        raise ValueError(f"loss must be one of {', '.join(LOSSES)}, got {loss!r}")
    siege = _Siege.of(model, x, y, InputBall.of(eps, norm, clip), steps, seed, restarts=restarts)
    siege.untargeted(loss, restarts)
    return siege.worst.attack(x.device)


def targeted(
    model: nn.Module | Probe | Classifier,
    x: Tensor,
    y: Tensor,
    eps: float,
    *,
    targets: int = TARGETS,
    steps: int = STEPS,
    norm: Norm = "inf",
    clip: Clip = (0.0, 1.0),
    seed: int = 0,
) -> Attack:
    """Auto-PGD towards each of the `targets` most likely wrong classes; targets · steps gradients, on those still correct.

    >>> net = nn.Linear(2, 3)
    >>> attack = targeted(net, torch.rand(8, 2), torch.arange(8) % 3, eps=0.2, steps=5)
    >>> attack.accuracy.value <= attack.clean_accuracy.value
    True
    """
    siege = _Siege.of(model, x, y, InputBall.of(eps, norm, clip), steps, seed, targets=targets)
    siege.targeted(targets)
    return siege.worst.attack(x.device)


def strongest(
    model: nn.Module | Probe | Classifier,
    x: Tensor,
    y: Tensor,
    eps: float,
    *,
    targets: int = TARGETS,
    steps: int = STEPS,
    norm: Norm = "inf",
    clip: Clip = (0.0, 1.0),
    seed: int = 0,
) -> Attack:
    """Cross-entropy, then DLR, then the wrong classes one by one: the accuracy to quote, and in `after` what each has left.

    Where the accuracy falls far from the first attack to the last, the network hides its gradients, and attacks on its
    cross-entropy alone prove nothing. At most (2 + targets) · steps gradients; those that fall early cost no more.

    >>> net = nn.Linear(2, 3)
    >>> list(strongest(net, torch.rand(8, 2), torch.arange(8) % 3, eps=0.2, steps=5).after)
    ['clean', 'APGD on the cross-entropy', 'APGD on DLR', 'APGD towards each class']
    """
    siege = _Siege.of(model, x, y, InputBall.of(eps, norm, clip), steps, seed, targets=targets)
    after = {"clean": siege.accuracy}
    siege.untargeted("cross_entropy")
    after["APGD on the cross-entropy"] = siege.accuracy
    siege.untargeted("dlr")
    after["APGD on DLR"] = siege.accuracy
    siege.targeted(targets)
    after["APGD towards each class"] = siege.accuracy
    return siege.worst.attack(x.device, after)
