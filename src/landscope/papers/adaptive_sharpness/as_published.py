"""Paper 5, as coded: the gradient ascents of its three notebooks, one for each family of models.

The text has one estimator for all: batches S of 64, five projected gradient steps with the learning rate of training, the
highest L_S(w + δ) − L_S(w), ‖δ ⊘ |w|‖_∞ ≤ ρ, the mean over 50 batches. That is the corrected measure (with Auto-PGD,
`method="apgd"`, the same measure finds more). The notebooks did three other things.

All take plain steps w ← w + η ∇L with the learning rate η of training, and then clamp w around a centre c:

    FCNN     clamp(w, c − ρc, c + ρc), c = w₀, without |c|: where c < 0 the limits are crossed, and `torch.clamp` returns the
             upper one: every negative weight is set to (1 + ρ)c, whatever the gradient says
    LeNet    clamp(w, c − ρ|c|, c + ρ|c|), but c shares storage with w when the first step is taken: c = w₀ + η∇L, so that the
             first step is free and the ball lies around its end
    GAT      the right ball around the right centre

Nothing holds the value above zero, as the worst case would: an ascent that only finds lower losses gives a negative number.
The values are what these steps give, not bounds of a maximum; one run with random batches has no error bar.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from landscope.core.errors import NotApplicableError
from landscope.core.estimate import Estimate, Status
from landscope.core.seeding import generator
from landscope.measures.base import Measure, register
from landscope.measures.facts import Family
from landscope.papers.adaptive_sharpness.notebook_steps import (
    batch_gradients,
    batch_sums,
    clamped,
    dropout_from,
    in_training_mode,
    mean_loss,
    refuse_processes,
    sum_of_batch_means,
)
from landscope.probe.perturbed import check_positive
from landscope.probe.probe import Probe
from landscope.probe.rows.samples import m_batches
from landscope.probe.totals import FORWARD

__all__ = ["FewRestartsSharpness", "MovedCentreSharpness", "StaleStatistics", "UnsignedBallSharpness"]


DRAWS = 5
"""Further draws of the loss at w₀, for its noise."""


def _seed(seed: int, *stream: str | int) -> int:
    return generator(seed, *stream).initial_seed()


@dataclass(frozen=True, kw_only=True)
class _Notebook(Measure):
    rho: float = 0.025
    learning_rate: float = 0.014
    batch_size: int = 64

    def __post_init__(self) -> None:
        check_positive(rho=self.rho, learning_rate=self.learning_rate)
        for name in ("batch_size", "epochs", "trials", "steps"):
            if getattr(self, name, 1) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")

    def _rounds(self, probe: Probe) -> int:
        """Batches in an epoch."""
        return math.ceil(probe.n_samples / self.batch_size)


@register("adaptive-sharpness/unsigned_ball")
@dataclass(frozen=True, kw_only=True)
class UnsignedBallSharpness(_Notebook):
    """The FCNN notebook: the ball without |w|, on all data.

    Batches are drawn but not used: ⌈n/batch_size⌉ full-data steps make an epoch. The weights at the end of the epoch with
    the largest sum of losses are kept; the value is their loss less that at w₀. Six epochs, though the text says 5 updates, and
    the learning rate of the notebook is 0.102 where the text has 0.014.

    >>> probe = Probe(torch.nn.Linear(1, 1, bias=False), (torch.ones(4, 1), torch.zeros(4, 1)), "mse", dtype=torch.float64)
    >>> w = float(probe.vector())                                # L = w²: here the worst case is w(1 + ρ) on either side
    >>> abs(UnsignedBallSharpness(rho=0.1, learning_rate=1.0)(probe).value - (1.1**2 - 1) * w**2) < 1e-12
    True
    """

    title, family, unit, better = "rise in a ball without |w|", Family.PERTURBATION, "loss", None
    cost = "6 epochs of full-data steps"

    learning_rate: float = 0.102
    epochs: int = 6

    def _measure(self, probe: Probe) -> Estimate:
        centre = probe.vector()
        base, slope = self._at(probe, centre)
        weights, best, kept, sums = centre, 0.0, math.nan, []
        for _ in range(self.epochs):
            total, loss = 0.0, math.nan
            for _ in range(self._rounds(probe)):
                weights = clamped(weights + self.learning_rate * slope, centre, self.rho * centre)
                loss, slope = self._at(probe, weights)
                total += loss
            sums.append(total)
            if total > best:
                best, kept = total, loss
        if not math.isfinite(kept):
            raise NotApplicableError(f"no epoch of the ascent kept a finite loss above zero at rho = {self.rho:g}")
        return Estimate(
            kept - base,
            status=Status.CONVERGED,
            details={"loss": base, "epoch": sums.index(best) + 1, "negative_weights": int((centre < 0).sum())},
        )

    def _at(self, probe: Probe, weights: Tensor) -> tuple[float, Tensor]:
        slope, loss = probe.total(lambda batch: batch_sums(probe, weights, batch), load=1.0)
        return float(loss) / probe.n_samples, slope / probe.n_samples


@register("adaptive-sharpness/moved_centre")
@dataclass(frozen=True, kw_only=True)
class MovedCentreSharpness(_Notebook):
    """The LeNet notebook: the ball around the end of the first step, batch after batch, in training mode.

    Five epochs of steps on batches of `batch_size` samples in random order (what does not fill a batch is left out). After
    each epoch the loss on all data is taken in eval mode; the value is the largest of these less the loss at w₀. In training
    mode dropout is on during the ascent, and the running statistics of BatchNorm follow it: where they were stale at w₀, as in a
    network that was left in evaluation mode while it trained, the value is mostly their replacement (`StaleStatistics`).
    `weights_only` in the details is what the climbed weights add by themselves, with the statistics of w₀ put back.

    Args:
        training_mode: as in the notebook; otherwise the ascent is in the probe's own mode.

    >>> probe = Probe(torch.nn.Linear(1, 1, bias=False), (torch.ones(4, 1), torch.zeros(4, 1)), "mse", dtype=torch.float64)
    >>> w = float(probe.vector())                                # L = w²: one step to 2w, then w(2 ± 2ρ)
    >>> estimate = MovedCentreSharpness(rho=0.1, learning_rate=0.5)(probe)
    >>> abs(estimate.value - (2.2**2 - 1) * w**2) < 1e-12
    True
    """

    title, family, unit, better = "rise around moved weights", Family.PERTURBATION, "loss", None
    cost = "5 epochs of steps"

    rho: float = 1e-4
    learning_rate: float = 0.05
    epochs: int = 5
    training_mode: bool = True

    def _measure(self, probe: Probe) -> Estimate:
        refuse_processes()
        start = weights = probe.vector()
        base = mean_loss(probe, weights)
        climber = in_training_mode(probe) if self.training_mode else probe
        ends: list[tuple[float, Tensor]] = []
        centre: Tensor | None = None
        with dropout_from(self.seed):
            for epoch in range(self.epochs):
                with batch_gradients(climber) as gradient:
                    for batch in m_batches(probe, self.batch_size, seed=_seed(self.seed, "epoch", epoch)):
                        weights = weights + self.learning_rate * gradient(weights, batch)
                        centre = weights if centre is None else centre
                        weights = clamped(weights, centre, self.rho * centre.abs())
                ends.append((self._evaluated(climber, weights), weights))
        finite = [end for end in ends if math.isfinite(end[0])]
        if not finite or centre is None:
            raise NotApplicableError(f"the ascent diverges: learning_rate = {self.learning_rate:g} is too large here")
        highest, reached = max(finite, key=lambda end: end[0])
        moved = (
            float((centre - start).double().norm() / (self.rho * start.double()).norm()) if bool(start.any()) else None
        )
        return Estimate(
            highest - base,
            stderr=None,
            status=Status.CONVERGED,
            details={
                "loss": base,
                "epochs": [loss for loss, _ in finite],
                "first_step_over_radius": moved,
                "weights_only": mean_loss(probe, reached) - base,
            },
        )

    def _evaluated(self, climber: Probe, weights: Tensor) -> float:
        if not self.training_mode:
            return mean_loss(climber, weights)
        climber.module("").eval()
        loss = mean_loss(climber, weights)
        climber.module("").train()
        return loss


@register("adaptive-sharpness/stale_statistics")
@dataclass(frozen=True, kw_only=True)
class StaleStatistics(Measure):
    """How far BatchNorm's running statistics are from those of the network's own activations: the loss that replacing them adds.

    L(w₀) with the statistics after one epoch of forward passes in training mode (batches of `batch_size` in random order), less
    L(w₀) with its own. The weights do not move. Without BatchNorm it is 0; after ordinary training it is small, since
    the statistics followed the weights.

    >>> stale = torch.nn.Sequential(torch.nn.BatchNorm1d(1), torch.nn.Linear(1, 1, bias=False))
    >>> _ = torch.nn.init.ones_(stale[1].weight)
    >>> data = (torch.tensor([[1.0], [3.0]] * 200), torch.tensor([[1.0], [3.0]] * 200))    # as they are, they are the targets
    >>> 3.5 < StaleStatistics(batch_size=4)(Probe(stale, data, "mse")).value < 4           # normalised, they are about −1 and 1
    True
    """

    title, family, unit, better = "staleness of BatchNorm", Family.PERTURBATION, "loss", None
    cost = "an epoch of forward passes"

    batch_size: int = 64

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size must be at least 1, got {self.batch_size}")

    def _measure(self, probe: Probe) -> Estimate:
        refuse_processes()
        weights, follower = probe.vector(), in_training_mode(probe)
        params = probe.space.unflatten(weights)
        base = mean_loss(probe, weights)
        with dropout_from(self.seed), probe.ledger.timed(probe.device), probe.measuring(), torch.no_grad():
            for batch in m_batches(probe, self.batch_size, seed=_seed(self.seed, "epoch", 0)):
                probe.ledger.check()
                follower.loss_sum(params, batch)
                probe.ledger.add(FORWARD * batch.size / probe.n_samples)
        follower.module("").eval()
        return Estimate(
            mean_loss(follower, weights) - base, stderr=None, status=Status.CONVERGED, details={"loss": base}
        )


@register("adaptive-sharpness/few_restarts")
@dataclass(frozen=True, kw_only=True)
class FewRestartsSharpness(_Notebook):
    """The GAT notebook: 5 restarts on random batches, judged by the loss on all data, with dropout on.

    Mean over trials of max_k S(w_k) − S(w₀). Each trial climbs `steps` steps on one batch, drawn with replacement (so of fewer
    than `batch_size` different samples). S is taken in training mode: the data is cut afresh into batches of `batch_size` and a
    rest, 64, 64 and 12 of Cora's 140 nodes, each has a forward pass with dropout of its own, and the mean losses are added up.
    S(w₀) is a single such draw and the top the largest of five, so that much of the value is noise (`noise` in the details is the
    deviation of S(w₀) over five more draws). The text has 50 restarts and the batch's own loss.

    Args:
        trials: restarts; 50 in the text.
        training_mode: as in the notebook; otherwise in the probe's own mode.

    >>> probe = Probe(torch.nn.Linear(1, 1, bias=False), (torch.ones(4, 1), torch.zeros(4, 1)), "mse", dtype=torch.float64)
    >>> w = float(probe.vector())                                        # L = w²: the worst case is w(1 ± ρ)
    >>> abs(FewRestartsSharpness(rho=0.1)(probe).value - (1.1**2 - 1) * w**2) < 1e-12
    True
    """

    title, family, unit, better = "rise of redrawn losses, 5 restarts", Family.PERTURBATION, "loss", None
    cost = "25 steps, each judged on all data"

    rho: float = 0.02
    learning_rate: float = 0.236
    trials: int = 5
    steps: int = 5
    training_mode: bool = True

    def _measure(self, probe: Probe) -> Estimate:
        refuse_processes()
        centre = probe.vector()
        with dropout_from(self.seed):
            base = self._drawn_loss(self._climber(probe), centre, "base")
            highest = [self._climb(probe, centre, trial) for trial in range(self.trials)]
            again = [self._drawn_loss(self._climber(probe), centre, "again", draw) for draw in range(DRAWS)]
        rises = torch.tensor(highest, dtype=torch.float64) - base
        if not bool(torch.isfinite(rises).all()):
            raise NotApplicableError(f"the loss is infinite or undefined within rho = {self.rho:g}")
        return Estimate(
            float(rises.mean()),
            stderr=float(rises.std()) / math.sqrt(self.trials) if self.trials > 1 else None,
            status=Status.CONVERGED,
            details={
                "loss": base,
                "rises": rises.tolist(),
                "batches": self._rounds(probe),
                "noise": float(torch.tensor(again, dtype=torch.float64).std()),
            },
        )

    def _climber(self, probe: Probe) -> Probe:
        return in_training_mode(probe) if self.training_mode else probe

    def _drawn_loss(self, climber: Probe, weights: Tensor, *stream: str | int) -> float:
        return sum_of_batch_means(climber, weights, self.batch_size, _seed(self.seed, "cut", *stream))

    def _climb(self, probe: Probe, centre: Tensor, trial: int) -> float:
        """The highest sum of losses that one trial sees after its steps."""
        climber, weights, losses = self._climber(probe), centre, []
        draws = torch.randint(probe.n_samples, (self.batch_size,), generator=generator(self.seed, "distinct", trial))
        batch = next(m_batches(probe, len(draws.unique()), 1, _seed(self.seed, "trial", trial)))
        for step in range(self.steps):
            with batch_gradients(climber) as gradient:
                weights = weights + self.learning_rate * gradient(weights, batch)
            weights = clamped(weights, centre, self.rho * centre.abs())
            losses.append(self._drawn_loss(climber, weights, trial, step))
        return max(losses)
