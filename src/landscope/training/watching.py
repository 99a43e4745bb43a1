"""A loss that is NaN or infinite, found without waiting for the device at every step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor

from landscope.core.errors import NonFiniteTrainingError
from landscope.training.evaluating import precise
from landscope.training.feeding import Feed
from landscope.training.schedules import learning_rate
from landscope.training.sources import Task

__all__ = ["Watch", "finite"]

SHOWN = 12
EVERY = 50
"""Steps between two looks where a look waits for the device."""


def finite(tensors: Iterable[Tensor]) -> bool:
    """Whether every number in the tensors is.

    >>> finite([torch.ones(2)]), finite([torch.tensor([1.0, math.nan])])
    (True, False)
    """
    sums = [t.detach().sum(dtype=precise(t.device)) for t in tensors if t.is_floating_point()]
    return not sums or bool(torch.stack([s.to(sums[0].device) for s in sums]).isfinite().all())


class Watch:
    """Keeps the losses of the last steps and raises with the first that is not finite."""

    def __init__(self, task: Task, folder: Path | None) -> None:
        self._task, self._folder = task, folder
        self._every = 1 if task.train.y.device.type == "cpu" else EVERY
        self._losses: list[tuple[int, Tensor]] = []

    def note(self, step: int, loss: Tensor) -> None:
        """The loss of a step, summed over its batch."""
        self._losses.append((step, loss.clone() if self._every > 1 else loss))
        if len(self._losses) >= self._every:
            self.look()

    def look(self) -> None:
        """Raise if one of the losses since the last look is not finite."""
        noted, self._losses = self._losses, []
        if not noted:
            return
        values = torch.stack([loss for _, loss in noted]).tolist() if len(noted) > 1 else [float(noted[0][1])]
        for (step, _), value in zip(noted, values, strict=True):
            if not math.isfinite(value):
                raise self.error(step, f"the loss became {value}")

    def error(self, step: int, what: str) -> NonFiniteTrainingError:
        """The error for a step, with its batch and what may help."""
        task, spec = self._task, self._task.spec
        epoch, at = divmod(step, task.steps_per_epoch)
        rows = Feed(task).numbers(step)
        listed = ", ".join(map(str, rows[:SHOWN].tolist())) + (f", … ({len(rows)} rows)" if len(rows) > SHOWN else "")
        rate = learning_rate(spec, step, task.steps_per_epoch)
        lower = "" if spec.precision in ("float32", "float64") else ", set precision: float32"
        hint = (
            "the inputs of this batch are not finite: look at these rows"
            if not finite([task.train.x[rows]])
            else f"lower optimizer.lr, add schedule.warmup or clip_norm{lower}, or look at these rows"
        )
        kept = f" The last checkpoint with finite weights is kept in {self._folder}." if self._folder else ""
        return NonFiniteTrainingError(
            f"{what} at step {step} (epoch {epoch + 1}, batch {at + 1} of {task.steps_per_epoch}), learning rate {rate:g}, "
            f"training rows {listed}. What may help: {hint}.{kept}"
        )
