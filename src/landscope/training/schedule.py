"""What a step or an epoch decides: learning rate, stopping, the row of the history. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

from torch import Tensor

from landscope.training.evaluate import SplitScore
from landscope.training.loop.step import METRICS
from landscope.training.spec import EarlyStoppingSpec, ScheduleSpec, TrainingSpec

# The learning rate as a function of the optimizer step: nothing is stepped, so nothing can be stepped wrongly.
#
#     constant          1
#     cosine            f + (1 − f)(1 + cos πt)/2, t the share of the steps after warm-up (Loshchilov and Hutter 2017)
#     multistep         γ^(milestones passed)
#     flat_linear_flat  1 until `flat`, then linearly to f at `end` (Izmailov et al. 2018; Granziol 2020)
#     warm-up           (k + 1)/w for the first w steps, times the above
#
# Step k counts from 0 over optimizer steps (not batches of an accumulated one, not epochs).


ROUNDING = 1e-9
"""Shares of a run times its steps fall short of whole numbers by rounding."""


def factor(step: int, steps: int, spec: ScheduleSpec) -> float:
    """What the base rate is multiplied by for optimizer step `step` of `steps`.

    >>> [factor(k, 4, ScheduleSpec(name="cosine")) for k in (0, 2)]
    [1.0, 0.5]
    >>> [factor(k, 10, ScheduleSpec(name="multistep", milestones=(0.3, 0.6), gamma=0.5)) for k in (2, 3, 6)]
    [1.0, 0.5, 0.25]
    """
    warm = round(spec.warmup * steps)
    rise = min(1.0, (step + 1) / warm) if warm else 1.0
    share = step / steps
    if spec.name == "cosine":
        done = max(0, step - warm) / max(1, steps - warm)
        return rise * (spec.final + (1 - spec.final) * (1 + math.cos(math.pi * done)) / 2)
    if spec.name == "multistep":
        return float(rise * spec.gamma ** sum(step >= part * steps - ROUNDING for part in spec.milestones))
    if spec.name == "flat_linear_flat":
        fallen = min(1.0, max(0.0, (share - spec.flat) / (spec.end - spec.flat)))
        return rise * (1 - (1 - spec.final) * fallen)
    return rise


def averaging_begins(spec: TrainingSpec) -> int:
    """The first epoch, counted from 0, whose iterates are averaged; the last one always is.

    >>> from landscope.training.spec import AveragingSpec, ModelSpec
    >>> averaging_begins(TrainingSpec(model=ModelSpec(name="mlp"), epochs=300, averaging=AveragingSpec(start=0.54)))
    162
    """
    if spec.averaging is None:
        return spec.epochs
    return min(math.ceil(spec.averaging.start * spec.epochs - ROUNDING), spec.epochs - 1)


def learning_rate(spec: TrainingSpec, step: int, steps_per_epoch: int) -> float:
    """The rate of optimizer step `step`: by the schedule, or fixed once iterates are averaged and a rate is set for that."""
    averaging = spec.averaging
    if averaging and averaging.lr is not None and step >= averaging_begins(spec) * steps_per_epoch:
        return spec.optimizer.lr * averaging.lr
    return spec.optimizer.lr * factor(step, spec.epochs * steps_per_epoch, spec.schedule)


def penalty_strength(spec: TrainingSpec, step: int, steps_per_epoch: int) -> float:
    """FAM's λ at optimizer step `step`: it rises from 0 over its warm-up.

    >>> from landscope.training.spec import FAMSpec, ModelSpec
    >>> spec = TrainingSpec(model=ModelSpec(name="mlp"), epochs=2, fam=FAMSpec(strength=0.8, warmup=0.5))
    >>> [penalty_strength(spec, step, 4) for step in (0, 1, 3, 7)]
    [0.2, 0.4, 0.8, 0.8]
    """
    assert spec.fam is not None
    warm = round(spec.fam.warmup * spec.epochs * steps_per_epoch)
    return spec.fam.strength * (min(1.0, (step + 1) / warm) if warm else 1.0)


# The history of a run: a row after every epoch, or after every `evaluate_every` of them.


Row: TypeAlias = dict[str, float]
"""epoch, step, lr, train_loss, train_error, evaluated_loss, validation_loss, validation_error, kappa, seconds: as far as they
exist.

Training figures are means over the batches since the row before, as they were met (with the weights and the augmentation of that
moment); validation figures are those of the weights at the end of the epoch, as is `evaluated_loss`, of all training rows, while
`snapshots_below` waits for it. `kappa` is FAM's κ. `seconds` count from the start of the run.
"""


def has_row(spec: TrainingSpec, epoch: int) -> bool:
    """Whether an epoch, counted from 1, ends with a row.

    >>> from landscope.training.spec import ModelSpec
    >>> spec = TrainingSpec(model=ModelSpec(name="mlp"), epochs=5, evaluate_every=2)
    >>> [epoch for epoch in range(1, 6) if has_row(spec, epoch)]
    [2, 4, 5]
    """
    return epoch % spec.evaluate_every == 0 or epoch == spec.epochs


def row_before(spec: TrainingSpec, epoch: int) -> int:
    """The last epoch before this one, both counted from 1, that has a row; 0 if none has.

    >>> from landscope.training.spec import ModelSpec
    >>> row_before(TrainingSpec(model=ModelSpec(name="mlp"), epochs=5, evaluate_every=2), 4)
    2
    """
    return (epoch - 1) // spec.evaluate_every * spec.evaluate_every


def epoch_row(
    *,
    epoch: int,
    step: int,
    lr: float,
    totals: Tensor,
    rows: int,
    evaluated: SplitScore | None,
    validation: SplitScore | None,
    classes: int,
    fam: bool,
    seconds: float,
) -> Row:
    """The row of an epoch from the sums over the batches, over `rows` samples, since the row before."""
    means = dict(zip(METRICS, (totals / rows).tolist(), strict=True))
    row: Row = {"epoch": epoch, "step": step, "lr": lr, "train_loss": means["loss"]}
    if classes:
        row["train_error"] = means["error"]
    if evaluated is not None:
        row["evaluated_loss"] = evaluated.loss
    if validation is not None:
        row["validation_loss"] = validation.loss
        if validation.error is not None:
            row["validation_error"] = validation.error
    if fam:
        row["kappa"] = means["kappa"]
    row["seconds"] = seconds
    return row


def steps_below(history: Sequence[Row], losses: Sequence[float]) -> dict[float, int]:
    """For each loss the step of the first row whose evaluated loss is at most this; without those that no row has reached.

    >>> rows = [{"step": 4, "evaluated_loss": 0.3}, {"step": 8, "evaluated_loss": 0.04}, {"step": 12}]
    >>> steps_below(rows, (0.5, 0.1, 0.01))
    {0.5: 4, 0.1: 8}
    """
    seen = [(int(row["step"]), row["evaluated_loss"]) for row in history if "evaluated_loss" in row]
    first = {bound: next((step for step, loss in seen if loss <= bound), None) for bound in losses}
    return {bound: step for bound, step in first.items() if step is not None}


# When a run ends before its last epoch: pure functions of the history, so that a resumed run decides alike.


def improved(history: Sequence[Row], spec: EarlyStoppingSpec) -> bool:
    """Whether the last row of the history is better on the validation data than every one before it.

    >>> improved([{"validation_loss": 2.0}, {"validation_loss": 1.0}], EarlyStoppingSpec())
    True
    """
    return _best(history, spec) == len(history) - 1


def _best(history: Sequence[Row], spec: EarlyStoppingSpec) -> int:
    values = [row[f"validation_{spec.metric}"] for row in history]
    return min(range(len(values)), key=lambda at: math.inf if math.isnan(values[at]) else values[at])


def reason_to_stop(history: Sequence[Row], spec: TrainingSpec) -> str | None:
    """Why the run is over after its last epoch so far, or `None`.

    >>> from landscope.training.spec import ConvergenceSpec, ModelSpec
    >>> spec = TrainingSpec(model=ModelSpec(name="mlp"), epochs=9, convergence=ConvergenceSpec(relative_change=0.05))
    >>> reason_to_stop([{"epoch": 1, "train_loss": 1.0}, {"epoch": 2, "train_loss": 0.98}], spec)
    'converged: the training loss changed by 2 % in the last epoch'
    """
    stopping, convergence = spec.early_stopping, spec.convergence
    epoch, loss = history[-1]["epoch"], history[-1]["train_loss"]
    if epoch >= spec.epochs:
        return "all epochs done"
    if stopping and stopping.patience:
        waited = epoch - history[_best(history, stopping)]["epoch"]
        if waited >= stopping.patience:
            return f"early stopping: no better validation {stopping.metric} for {waited} epochs"
    if convergence and epoch < convergence.after:
        return None
    if convergence and convergence.below is not None and loss < convergence.below:
        return f"converged: the training loss is below {convergence.below:g}"
    if convergence and convergence.relative_change is not None and len(history) > 1:
        before = history[-2]["train_loss"]
        change = abs(loss - before) / abs(before) if before else 0.0
        if change < convergence.relative_change:
            last = "epoch" if spec.evaluate_every == 1 else f"{spec.evaluate_every} epochs"
            return f"converged: the training loss changed by {100 * change:.2g} % in the last {last}"
    return None
