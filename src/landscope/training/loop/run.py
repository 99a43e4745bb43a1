"""A run from one optimizer step to the next: feed, step, watch, count; at the end of an epoch average, evaluate, decide."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler

from landscope.core.distributed import processes
from landscope.core.errors import LandscopeError, NonFiniteTrainingError, SpecError
from landscope.training.averaging import Average, averaged_model
from landscope.training.callbacks import Callback
from landscope.training.evaluate import evaluate, precise, rank
from landscope.training.fast_steps import Captured, Compiled, StepFunction, parts_to_compile
from landscope.training.loop.feed import Feed, seed_noise
from landscope.training.loop.fingerprints import require_same
from landscope.training.loop.folder import load_snapshots, load_state, save_snapshot, save_state
from landscope.training.loop.state import State, weights_of
from landscope.training.loop.step import Step
from landscope.training.objectives import FAM
from landscope.training.optimizers.building import build_optimizer, set_rate
from landscope.training.progress import Display
from landscope.training.schedule import (
    averaging_begins,
    epoch_row,
    has_row,
    improved,
    learning_rate,
    reason_to_stop,
    row_before,
)
from landscope.training.task import Task, memory_format

__all__ = ["Run", "Watch", "finite"]


# A loss that is NaN or infinite, found without waiting for the device at every step.


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


class Run:
    """A run of a task on the device that it lies on, with its state."""

    def __init__(self, task: Task, *, folder: Path | None, callbacks: Sequence[Callback], graphs: bool | None) -> None:
        spec, device = task.spec, task.train.y.device
        self.task, self.folder, self.callbacks = task, folder, callbacks
        self.per_epoch = task.steps_per_epoch
        # fused steps have their rate as one float32 on the device, which is not what float64 asks for
        fused = device.type == "cuda" and spec.precision in ("float32", "bfloat16")
        model = task.model
        model.to(memory_format=memory_format(spec, model, device))  # type: ignore[call-overload]
        averaging = spec.averaging
        self.fam = _fam(task)
        self.state = State(
            model,
            build_optimizer(model, spec, fused=fused),
            Average(model, averaging.decay if averaging.kind == "ema" else None) if averaging else None,
            self.fam,
            GradScaler(device.type) if spec.precision == "float16" else None,
        )
        capturable = fused and processes() == 1
        self.captures = capturable if graphs is None else capturable and graphs
        full = len(task.train.y) if spec.batch_size == "full" else spec.batch_size
        step: StepFunction = Step(task, self.state.optimizer, fam=self.fam, scaler=self.state.scaler)
        if spec.compile and device.type == "cuda":
            step = Compiled(
                step, full, parts_to_compile(model, model.get_submodule(self.fam.layer) if self.fam else None)
            )
        redraw = self.fam.redraw if self.fam is not None else None
        self._step = Captured(step, full, redraw) if self.captures else step
        self._feed = Feed(task)
        self._watch = Watch(task, folder)
        self._started = self._saved = time.monotonic()
        self._before = 0.0
        self.snapshots: dict[int, dict[str, Tensor]] = {}

    @property
    def writes(self) -> bool:
        """Whether this process writes files and calls callbacks."""
        return rank() == 0

    def begin(self, resume: bool, given: dict[str, str]) -> None:
        """Start at the first step, or where the last checkpoint was written."""
        self._given = given
        folder = self.folder
        if resume and folder is not None and (found := load_state(folder)) is not None:
            tensors, plain = found
            assert isinstance(plain, dict)
            require_same(folder, cast(dict[str, str], plain["given"]), given)
            self.state.restore(tensors, plain)
            self.snapshots = load_snapshots(folder, self.task.spec.snapshots, self.state.step - 1)
        self._before = self.state.seconds
        self._keep_snapshot()

    def advance(self) -> None:
        """One optimizer step."""
        spec, at = self.task.spec, self.state.step
        x, y = self._feed(at)
        rate = learning_rate(spec, at, self.per_epoch)
        set_rate(self.state.optimizer, rate)
        seed_noise(spec.seed, at, y.device, rank())
        metrics = self._step(x, y)
        self.state.totals += metrics
        self._watch.note(at, metrics[0])
        self.state.step += 1
        average = self.state.average
        if average is not None and spec.averaging and spec.averaging.kind == "ema" and self._averages():
            average.take()
        self._keep_snapshot()
        if self.writes:
            for callback in self.callbacks:
                callback.on_step(self.state.step, metrics[0] / len(y), rate)

    @property
    def epoch(self) -> int:
        """The epoch, counted from 1, of the last step."""
        return (self.state.step - 1) // self.per_epoch + 1

    def at_end_of_epoch(self) -> bool:
        """Whether the last step was the last one of its epoch."""
        return self.state.step > 0 and self.state.step % self.per_epoch == 0

    def _averages(self) -> bool:
        return self.epoch > averaging_begins(self.task.spec)

    def _keep_snapshot(self) -> None:
        step = self.state.step
        if step in self.task.spec.snapshots and step not in self.snapshots:
            self._watch.look()
            self.snapshots[step] = {name: value.cpu() for name, value in weights_of(self.state.model).items()}
            if self.folder is not None and self.writes:
                save_snapshot(self.folder, step, self.snapshots[step])

    def means(self) -> tuple[float, float | None]:
        """Loss and error since the last row of the history."""
        loss, error, _ = (self.state.totals / max(1, self._rows())).tolist()
        return loss, error if self.task.classes else None

    def _rows(self) -> int:
        """The training rows that went into `totals`."""
        return self.task.rows_in(self.state.step - row_before(self.task.spec, self.epoch) * self.per_epoch)

    def end_epoch(self, display: Display) -> str | None:
        """Average; where a row is due evaluate, write it and keep the best; why the run is over, if it is."""
        spec, state = self.task.spec, self.state
        if state.average is not None and spec.averaging and spec.averaging.kind == "swa" and self._averages():
            state.average.take()
        if not has_row(spec, self.epoch):
            return None
        self._watch.look()
        row = epoch_row(
            epoch=self.epoch,
            step=state.step,
            lr=learning_rate(spec, state.step - 1, self.per_epoch),
            totals=state.totals,
            rows=self._rows(),
            validation=evaluate(self.task, state.model, self.task.rows.validation),
            classes=self.task.classes,
            fam=spec.fam is not None,
            seconds=self.elapsed(),
        )
        state.history.append(row)
        state.totals.zero_()
        if spec.early_stopping and improved(state.history, spec.early_stopping):
            state.best = weights_of(state.model)
        display.epoch(row)
        if self.writes:
            for callback in self.callbacks:
                callback.on_epoch(row, state.model)
        return reason_to_stop(state.history, spec)

    def elapsed(self) -> float:
        """Seconds of training, those before an interruption included."""
        return self._before + time.monotonic() - self._started

    def save(self, every: float = 0.0) -> None:
        """Write a checkpoint if the last one is `every` seconds old; never one with weights that are not finite."""
        if self.folder is None or not self.writes or time.monotonic() - self._saved < every:
            return
        self._watch.look()
        if finite(self.state.model.state_dict().values()):
            self.state.seconds = self.elapsed()
            save_state(self.folder, self.state.tensors(), {**self.state.plain(), "given": dict(self._given)})
        self._saved = time.monotonic()

    def check_weights(self) -> None:
        """Refuse to end with weights that are not finite."""
        self._watch.look()
        if not finite(self.state.model.state_dict().values()):
            raise self._watch.error(self.state.step - 1, "the weights became NaN or infinite")

    def averaged(self) -> torch.nn.Module | None:
        """The model with averaged weights, if averaging has begun."""
        average, size = self.state.average, self.task.spec.batch_size
        if average is None or not average.count:
            return None
        x = self.task.train.x
        return averaged_model(
            self.state.model, average.weights, self.task.forward, x, len(x) if size == "full" else size
        )


def _fam(task: Task) -> FAM | None:
    spec = task.spec.fam
    if spec is None:
        return None
    try:
        return FAM(
            task.model,
            layer=spec.layer,
            strength=spec.strength,
            form=spec.form,
            probes=spec.probes,
            seed=task.spec.seed,
            gradient=spec.gradient,
        )
    except LandscopeError as error:
        raise SpecError(f"fam.layer: {error}") from error
