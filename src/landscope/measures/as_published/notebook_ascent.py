"""The three gradient ascents of paper 5's notebooks, one for each family of models.

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
from typing import ClassVar

import torch
from torch import Tensor

from landscope.core.errors import NotApplicableError
from landscope.core.estimate import Estimate, Status
from landscope.core.seeding import generator
from landscope.measures.as_published.notebook_steps import (
    batch_gradient,
    batch_sums,
    clamped,
    dropout_from,
    in_training_mode,
    mean_loss,
    refuse_processes,
)
from landscope.measures.base import Measure
from landscope.probe.perturbed import check_positive
from landscope.probe.probe import Probe
from landscope.probe.samples import m_batches
from landscope.probe.totals import FORWARD

__all__ = ["FewRestartsSharpness", "MovedCentreSharpness", "UnsignedBallSharpness"]


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

    key: ClassVar[str] = "unsigned_ball_sharpness"

    learning_rate: float = 0.102
    epochs: int = 6

    def passes(self, probe: Probe) -> float:
        """One gradient for each step, and one at w₀."""
        return self.epochs * self._rounds(probe) + 1.0

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


@dataclass(frozen=True, kw_only=True)
class MovedCentreSharpness(_Notebook):
    """The LeNet notebook: the ball around the end of the first step, batch after batch, in training mode.

    Five epochs of steps on batches of `batch_size` samples in random order (what does not fill a batch is left out). After
    each epoch the loss on all data is taken in eval mode; the value is the largest of these less the loss at w₀. In training
    mode dropout is on during the ascent, and the running statistics of BatchNorm follow it: with weights held within
    ρ = 1e-4, the changes of about 1 % of the loss from epoch to epoch in the published log can only be theirs.

    Args:
        training_mode: as in the notebook; otherwise the ascent is in the probe's own mode.

    >>> probe = Probe(torch.nn.Linear(1, 1, bias=False), (torch.ones(4, 1), torch.zeros(4, 1)), "mse", dtype=torch.float64)
    >>> w = float(probe.vector())                                # L = w²: one step to 2w, then w(2 ± 2ρ)
    >>> estimate = MovedCentreSharpness(rho=0.1, learning_rate=0.5)(probe)
    >>> abs(estimate.value - (2.2**2 - 1) * w**2) < 1e-12
    True
    """

    key: ClassVar[str] = "moved_centre_sharpness"

    rho: float = 1e-4
    learning_rate: float = 0.05
    epochs: int = 5
    training_mode: bool = True

    def passes(self, probe: Probe) -> float:
        """A gradient and a forward pass for each epoch, and a forward pass at w₀."""
        return self.epochs * (1 + FORWARD) + FORWARD

    def _measure(self, probe: Probe) -> Estimate:
        refuse_processes()
        weights = probe.vector()
        base, ends = mean_loss(probe, weights), []
        climber = in_training_mode(probe) if self.training_mode else probe
        centre: Tensor | None = None
        with dropout_from(self.seed):
            for epoch in range(self.epochs):
                for batch in m_batches(probe, self.batch_size, seed=_seed(self.seed, "epoch", epoch)):
                    weights = weights + self.learning_rate * batch_gradient(climber, weights, batch)
                    centre = weights if centre is None else centre
                    weights = clamped(weights, centre, self.rho * centre.abs())
                ends.append(self._evaluated(climber, weights))
        finite = [loss for loss in ends if math.isfinite(loss)]
        if not finite or centre is None:
            raise NotApplicableError(f"the ascent diverges: learning_rate = {self.learning_rate:g} is too large here")
        start = probe.vector().double()
        moved = float((centre - start).norm() / (self.rho * start).norm()) if bool(start.any()) else None
        return Estimate(
            max(finite) - base,
            stderr=None,
            status=Status.CONVERGED,
            details={"loss": base, "epochs": list(finite), "first_step_over_radius": moved},
        )

    def _evaluated(self, climber: Probe, weights: Tensor) -> float:
        if not self.training_mode:
            return mean_loss(climber, weights)
        climber.module("").eval()
        loss = mean_loss(climber, weights)
        climber.module("").train()
        return loss


@dataclass(frozen=True, kw_only=True)
class FewRestartsSharpness(_Notebook):
    """The GAT notebook: 5 restarts on random batches, judged by the loss on all data, with dropout on.

    B · mean over trials of (max_k L(w_k) − L(w₀)): each trial climbs `steps` steps on one batch, drawn with replacement (so of
    fewer than `batch_size` different samples), but L is the loss on all data, in training mode, and its sum over the
    B = ⌈n/batch_size⌉ batches in place of their mean. The text has 50 restarts and the batch's own loss.

    Args:
        trials: restarts; 50 in the text.
        training_mode: as in the notebook; otherwise in the probe's own mode.

    >>> probe = Probe(torch.nn.Linear(1, 1, bias=False), (torch.ones(4, 1), torch.zeros(4, 1)), "mse", dtype=torch.float64)
    >>> w = float(probe.vector())                                        # L = w²: the worst case is w(1 ± ρ)
    >>> abs(FewRestartsSharpness(rho=0.1)(probe).value - (1.1**2 - 1) * w**2) < 1e-12
    True
    """

    key: ClassVar[str] = "few_restarts_sharpness"

    rho: float = 0.02
    learning_rate: float = 0.236
    trials: int = 5
    steps: int = 5
    training_mode: bool = True

    def passes(self, probe: Probe) -> float:
        """For each step a gradient on a batch and a forward pass over all data."""
        share = min(1.0, self.batch_size / probe.n_samples)
        return self.trials * self.steps * (share + FORWARD) + FORWARD

    def _measure(self, probe: Probe) -> Estimate:
        refuse_processes()
        centre = probe.vector()
        with dropout_from(self.seed):
            base = mean_loss(self._climber(probe), centre)
            highest = [self._climb(probe, centre, trial) for trial in range(self.trials)]
        rises = torch.tensor(highest, dtype=torch.float64) - base
        if not bool(torch.isfinite(rises).all()):
            raise NotApplicableError(f"the loss is infinite or undefined within rho = {self.rho:g}")
        rounds = self._rounds(probe)
        return Estimate(
            rounds * float(rises.mean()),
            stderr=rounds * float(rises.std()) / math.sqrt(self.trials) if self.trials > 1 else None,
            status=Status.CONVERGED,
            details={"loss": base, "rises": rises.tolist(), "mean": float(rises.mean()), "batches": rounds},
        )

    def _climber(self, probe: Probe) -> Probe:
        return in_training_mode(probe) if self.training_mode else probe

    def _climb(self, probe: Probe, centre: Tensor, trial: int) -> float:
        """The highest loss on all data that one trial sees after its steps."""
        climber, weights, losses = self._climber(probe), centre, []
        draws = torch.randint(probe.n_samples, (self.batch_size,), generator=generator(self.seed, "distinct", trial))
        batch = next(m_batches(probe, len(draws.unique()), 1, _seed(self.seed, "trial", trial)))
        for _ in range(self.steps):
            weights = weights + self.learning_rate * batch_gradient(climber, weights, batch)
            weights = clamped(weights, centre, self.rho * centre.abs())
            losses.append(mean_loss(climber, weights))
        return max(losses)
