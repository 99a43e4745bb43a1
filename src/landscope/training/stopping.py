"""When a run ends before its last epoch: pure functions of the history, so that a resumed run decides alike."""

from __future__ import annotations

import math
from collections.abc import Sequence

from landscope.training.history import Row
from landscope.training.spec import EarlyStoppingSpec, TrainingSpec

__all__ = ["improved", "reason_to_stop"]


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
