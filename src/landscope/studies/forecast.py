"""About how long a study will take: one gradient is timed for each kind of training, and multiplied out.

Nothing that the spec names as `package.module:function` is called: how long such trainings take is not known.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from landscope.core.importing import is_import
from landscope.studies.grid import RunSpec
from landscope.studies.study import Study
from landscope.training.sources import Task, make_task

__all__ = ["Forecast", "forecast"]

TRIALS = 3


@dataclass(frozen=True)
class Forecast:
    """Seconds of each run by key, one run at a time on this machine; measuring is counted where it has a budget."""

    training: dict[str, float | None]
    """`None` where rows or network are functions that the spec names, which are not called here."""
    measuring: float | None
    """Per run; `None` where the spec sets no `seconds` and no run is done yet."""

    @property
    def total(self) -> float:
        """Seconds of all runs, as far as they can be told."""
        return sum(self.known) + len(self.training) * (self.measuring or 0.0)

    @property
    def known(self) -> list[float]:
        """Seconds of the trainings that could be timed."""
        return [seconds for seconds in self.training.values() if seconds is not None]


def forecast(study: Study) -> Forecast:
    """Time one gradient for every network and batch size of the study; runs that are done tell the rest."""
    timed: dict[tuple[object, ...], float] = {}
    training = {key: _training_seconds(run, timed) for key, run in study.runs.items()}
    known = sorted(seconds for seconds in training.values() if seconds is not None)
    progress = study.progress()
    spec = study.spec.measuring
    measuring = None
    if progress.seconds_per_run is not None and known:
        usual = known[len(known) // 2]
        measuring = max(0.0, progress.seconds_per_run - usual)
    elif spec.seconds is not None:
        subjects = len(spec.checkpoints) * spec.temperatures
        measuring = spec.seconds * len(spec.splits) * subjects
    return Forecast(training, measuring)


def _training_seconds(run: RunSpec, timed: dict[tuple[object, ...], float]) -> float | None:
    spec = run.training
    if spec is None:
        return 0.0
    if is_import(spec.data.name) or is_import(spec.model.name):
        return None
    kind = (spec.model.name, repr(sorted(spec.model.options.items())), repr(spec.data), spec.batch_size)
    if kind not in timed:
        task = make_task(spec)
        timed[kind] = _gradient_seconds(task) * task.steps_per_epoch
    effort = 2.0 if spec.sam is not None and spec.sam.rho > 0 else 1.0
    return timed[kind] * spec.epochs * effort


def _gradient_seconds(task: Task) -> float:
    """The median of a few gradients of one batch."""
    size = len(task.train.y) if task.spec.batch_size == "full" else task.spec.batch_size
    x, y = task.train.x[:size], task.train.y[:size]
    seconds = []
    for _ in range(TRIALS):
        start = time.perf_counter()
        task.model.zero_grad()
        task.objective.sum(task.forward(task.model, x), y, len(y)).backward()
        seconds.append(time.perf_counter() - start)
    task.model.zero_grad()
    return sorted(seconds)[TRIALS // 2]
