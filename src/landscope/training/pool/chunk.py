"""Members of a pool that train together: from one optimizer step to the next, and at the end of an epoch who goes on.

What `running.Run` does for one model, for n of them at once. A member that is done (all epochs, converged, stopped early) or
has failed leaves the program at the next row of the history, and the others go on in a smaller one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from landscope.training.loop.folder import Trained, load_snapshots, save_result, save_snapshot, save_state
from landscope.training.loop.run import Watch, finite
from landscope.training.pool.feed import PoolFeed
from landscope.training.pool.program import Program
from landscope.training.pool.result import FAILED, leave
from landscope.training.pool.state import ChunkState
from landscope.training.pool.step import PoolStep
from landscope.training.schedule import (
    Row,
    averaging_begins,
    epoch_row,
    has_row,
    improved,
    learning_rate,
    reason_to_stop,
    row_before,
)
from landscope.training.spec import TrainingSpec
from landscope.training.task import Task

__all__ = ["Chunk", "Places"]


@dataclass(frozen=True)
class Places:
    """Where things are written: the checkpoint of a chunk, and the result of each member by its number; or nowhere."""

    chunk: Path | None = None
    members: Mapping[int, Path] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    """Fingerprints of what came as an argument, which belong to a checkpoint and to a result."""


class Chunk:
    """The members in `state`, numbered as in the pool, whose specs are `specs`; `results` are those that have left."""

    def __init__(
        self, task: Task, specs: Mapping[int, TrainingSpec], state: ChunkState, places: Places, *, capture: bool
    ) -> None:
        self.task, self.specs, self.places = task, specs, places
        self.program, self._per_epoch = Program(task), task.steps_per_epoch
        self.results: dict[int, Trained] = {}
        self._capture = capture
        self._before = state.seconds
        self._started = self._saved = time.monotonic()
        steps = task.spec.snapshots
        self._snapshots: dict[int, dict[int, dict[str, Tensor]]] = {
            number: load_snapshots(places.members.get(number), steps, state.step - 1 if failed < 0 else failed)
            for number, failed in zip(state.numbers, state.health.failed_at.tolist(), strict=True)
        }
        self._enter(state)
        self._keep_snapshots()

    def _enter(self, state: ChunkState) -> None:
        specs = [self.specs[number] for number in state.numbers]
        self.state = state
        self._feed = PoolFeed(self.task, [spec.seed for spec in specs])
        self._step = PoolStep(self.program, specs, state, capture=self._capture)

    @property
    def over(self) -> bool:
        """Whether all members have left."""
        return not self.state.numbers

    def advance(self) -> None:
        """One optimizer step of every member."""
        state, averaging = self.state, self.task.spec.averaging
        state.totals += self._step(state.step, *self._feed(state.step))
        state.step += 1
        if averaging is not None and averaging.kind == "ema" and self._averages():
            self._average(1 - averaging.decay)
        self._keep_snapshots()

    @property
    def epoch(self) -> int:
        """The epoch, counted from 1, of the last step."""
        return (self.state.step - 1) // self._per_epoch + 1

    def _averages(self) -> bool:
        return self.epoch > averaging_begins(self.task.spec)

    @torch.no_grad()
    def _average(self, share: float) -> None:
        state = self.state
        state.averaged += 1
        if state.averaged == 1:
            state.average = {name: value.detach().clone() for name, value in state.stack.params.items()}
            return
        for name, value in state.average.items():
            value.lerp_(state.stack.params[name], share)

    def _keep_snapshots(self) -> None:
        step = self.state.step
        if step not in self.task.spec.snapshots:
            return
        for at, number in enumerate(self.state.numbers):
            if step in self._snapshots[number] or not self.state.health.alive[at]:
                continue
            weights = {name: value.cpu().clone() for name, value in self.state.stack.member(at).items()}
            self._snapshots[number][step] = weights
            if number in self.places.members:
                save_snapshot(self.places.members[number], step, weights)

    def at_end_of_epoch(self) -> bool:
        """Whether the last step was the last one of its epoch."""
        return self.state.step > 0 and self.state.step % self._per_epoch == 0

    def end_epoch(self) -> Row | None:
        """Average; where rows are due evaluate, write them and keep the best; members that are done leave. The mean row."""
        task, state, spec, epoch = self.task, self.state, self.task.spec, self.epoch
        if spec.averaging is not None and spec.averaging.kind == "swa" and self._averages():
            self._average(1 / (state.averaged + 1))
        if not has_row(spec, epoch):
            return None
        scores = self.program.scores(state.stack, task.rows.validation)
        totals, failed_at = state.totals.cpu(), state.health.failed_at.tolist()
        better, reasons = [False] * len(state.numbers), dict[int, str]()
        rows: list[Row] = []
        for at, number in enumerate(state.numbers):
            own, history = self.specs[number], state.history[at]
            if failed_at[at] >= 0:
                reasons[at] = self._failure(own, failed_at[at], "the loss became NaN or infinite")
                continue
            row = epoch_row(
                epoch=epoch,
                step=state.step,
                lr=learning_rate(own, state.step - 1, self._per_epoch),
                totals=totals[at],
                rows=self._rows(),
                validation=scores[at] if scores else None,
                classes=task.classes,
                fam=False,
                seconds=self.elapsed(),
            )
            history.append(row)
            rows.append(row)
            better[at] = own.early_stopping is not None and improved(history, own.early_stopping)
            if reason := reason_to_stop(history, own):
                whole = finite(state.stack.member(at).values())
                what = "the weights became NaN or infinite"
                reasons[at] = reason if whole else self._failure(own, state.step - 1, what)
        state.totals.zero_()
        self._keep_best(better)
        self._leave(reasons)
        return {key: sum(row[key] for row in rows) / len(rows) for key in rows[0]} if rows else None

    def _failure(self, spec: TrainingSpec, step: int, what: str) -> str:
        return FAILED + str(Watch(replace(self.task, spec=spec), None).error(step, what))

    def _keep_best(self, better: list[bool]) -> None:
        if not any(better):
            return
        here = {name: value.detach() for name, value in {**self.state.stack.params, **self.state.stack.buffers}.items()}
        mask = torch.tensor(better, device=self.state.totals.device)
        before = self.state.best or here
        self.state.best = {
            name: torch.where(mask.view(-1, *[1] * (value.dim() - 1)), value, before[name])
            for name, value in here.items()
        }

    def _leave(self, reasons: Mapping[int, str]) -> None:
        if not reasons:
            return
        self._collect(sorted(reasons), reasons, finished=True)
        staying = [at for at in range(len(self.state.numbers)) if at not in reasons]
        if staying:
            self._enter(self.state.take(staying))
        else:
            self.state.numbers = []

    def _collect(self, at: list[int], reasons: Mapping[int, str], *, finished: bool) -> None:
        """Make the results of some members and write them."""
        going = self.state.take(at)
        told = [reasons[place] for place in at]
        for number, result in leave(self.program, self.specs, going, told, finished=finished).items():
            where = self.places.members.get(number)
            done = replace(result, snapshots=self._snapshots[number], seconds=self.elapsed(), folder=where)
            self.results[number] = done
            if where is not None and finished:
                save_result(where, done, self.places.given)

    def interrupt(self, reason: str) -> None:
        """Everyone leaves where they stand; they can go on from the checkpoint."""
        places = list(range(len(self.state.numbers)))
        self._collect(places, dict.fromkeys(places, reason), finished=False)
        self.state.numbers = []

    def means(self) -> tuple[float, float | None]:
        """Loss and error since the last row of the history, averaged over the members that still move."""
        share = max(1, int(self.state.health.alive.sum())) * max(1, self._rows())
        loss, error, _ = (self.state.totals.sum(0) / share).tolist()
        return loss, error if self.task.classes else None

    def _rows(self) -> int:
        """The training rows that went into `totals`."""
        return self.task.rows_in(self.state.step - row_before(self.task.spec, self.epoch) * self._per_epoch)

    def elapsed(self) -> float:
        """Seconds since the chunk began, those before an interruption included."""
        return self._before + time.monotonic() - self._started

    def save(self, every: float = 0.0) -> None:
        """Write a checkpoint if the last one is `every` seconds old."""
        if self.places.chunk is None or time.monotonic() - self._saved < every:
            return
        self.state.seconds = self.elapsed()
        save_state(self.places.chunk, self.state.tensors(), {**self.state.plain(), "given": dict(self.places.given)})
        self._saved = time.monotonic()
