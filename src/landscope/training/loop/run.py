"""A run of n ≥ 1 members from one optimizer step to the next: step, count; at the end of an epoch average, evaluate, decide.

A member that is done (all epochs, converged, stopped early) or has failed leaves at the next row of the history, and the others
continue in a smaller program. `train` is the case n = 1.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from landscope.core.distributed import processes
from landscope.core.json import Plain
from landscope.data import Split
from landscope.training.averaging import averaged_model
from landscope.training.callbacks import Callback, TrainingDisplay
from landscope.training.evaluate import SplitScore, precise, rank
from landscope.training.loop.folder import (
    FAILED,
    TrainingResult,
    load_snapshots,
    save_result,
    save_snapshot,
    save_state,
)
from landscope.training.loop.interruption import REASONS, Interruption
from landscope.training.loop.state import State, Weights, member
from landscope.training.schedule import (
    Row,
    averaging_begins,
    epoch_row,
    has_row,
    improved,
    learning_rate,
    reason_to_stop,
    row_before,
    steps_below,
)
from landscope.training.spec import TrainingSpec
from landscope.training.task import Task
from landscope.training.task_data import SPLITS


class Program(Protocol):
    """The tensors of n members, and how they are stepped and evaluated."""

    @property
    def specs(self) -> Sequence[TrainingSpec]:
        """Each member's own: they differ in their seeds and numbers only."""

    def step(self, number: int) -> Tensor:
        """Optimizer step `number`, counted from 0; the sums of `METRICS` over the batches, (n, 3)."""

    def failed_at(self) -> Sequence[int]:
        """The step at which each member's loss was not finite, −1 where it always was; a program may raise instead."""

    def fail(self, at: int, step: int, what: str) -> str:
        """Why a member leaves that is not finite after a step; a program may raise that instead."""

    def weights(self) -> Weights:
        """Parameters and buffers, (n, …), not copied."""

    def parameters(self) -> Weights:
        """The parameters, (n, …), not copied."""

    def scores(self, split: Split, models: Sequence[nn.Module] | None = None) -> Sequence[SplitScore] | None:
        """The score of every member as it is, or of other models like them; `None` for a split without samples."""

    def model(self, weights: Mapping[str, Tensor]) -> nn.Module:
        """A model of its own with the weights of one member, in evaluation mode."""

    def take(self, places: Sequence[int]) -> Program:
        """The program of some members alone."""

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that a step changes."""

    def plain(self) -> dict[str, Plain]:
        """Everything else that it changes, as JSON knows it."""


@dataclass(frozen=True)
class Places:
    """Where things are written: the checkpoint, and the result of each member by its number; or nowhere."""

    checkpoint: Path | None = None
    members: Mapping[int, Path] = field(default_factory=dict)
    given: Mapping[str, str] = field(default_factory=dict)
    """Fingerprints of what was given as an argument, which belong to a checkpoint and to a result."""


def finite(weights: Weights) -> list[bool]:
    """Whether every number is finite, for each of the n members that are stacked.

    >>> finite({"w": torch.tensor([[1.0, 2.0], [1.0, torch.nan]])})
    [True, False]
    """
    floats = [value.detach() for value in weights.values() if value.is_floating_point()]
    sums = [value.reshape(len(value), -1).sum(1, dtype=precise(value.device)) for value in floats]
    return torch.stack(sums).isfinite().all(0).tolist()


class Run:
    """The members in `state`, whose tensors `program` holds; `results` are those that have left, by their number."""

    def __init__(
        self, task: Task, program: Program, state: State, places: Places, callbacks: Sequence[Callback] = ()
    ) -> None:
        self.task, self.program, self.state, self.places = task, program, state, places
        self.results: dict[int, TrainingResult] = {}
        self._per_epoch, self._writes = task.steps_per_epoch, rank() == 0
        self._callbacks = callbacks if self._writes else ()
        self._before = state.seconds
        self._started = self._saved = time.monotonic()
        self._snapshots: dict[int, dict[int, dict[str, Tensor]]] = {
            number: load_snapshots(
                places.members.get(number), task.spec, history, state.step - 1 if failed < 0 else failed
            )
            for number, history, failed in zip(state.numbers, state.history, program.failed_at(), strict=True)
        }
        if state.step in task.spec.snapshots:
            self._keep_snapshots(range(len(state.numbers)))

    def until_over(self, interruption: Interruption, display: TrainingDisplay, checkpoint_every: float) -> str | None:
        """Step after step until all members have left, or somebody asks to stop: why."""
        for callback in self._callbacks:
            callback.on_start(self.task.spec, self.task.model)
        ended = self.at_end_of_epoch()  # a checkpoint is written before its epoch is evaluated
        while self.state.numbers:
            while not ended:
                self.advance()
                display.step(self.state.step, self.means)
                reason = _agreed(interruption.reason(), self.state.totals.device)
                self.save(0.0 if reason else checkpoint_every)
                if reason:
                    self._leave(dict.fromkeys(range(len(self.state.numbers)), reason), finished=False)
                    return reason
                ended = self.at_end_of_epoch()
            self.end_epoch(display)
            ended = False
        return None

    def advance(self) -> None:
        """One optimizer step of every member."""
        state, averaging = self.state, self.task.spec.averaging
        metrics = self.program.step(state.step)
        state.totals += metrics
        state.step += 1
        if averaging is not None and averaging.kind == "ema" and self._averages():
            self._average(1 - averaging.decay)
        if state.step in self.task.spec.snapshots:
            self._keep_snapshots(range(len(state.numbers)))
        if self._callbacks:
            samples = self.task.samples_in(state.step) - self.task.samples_in(state.step - 1)
            rate = learning_rate(self.task.spec, state.step - 1, self._per_epoch)
            for callback in self._callbacks:
                callback.on_step(state.step, metrics[0, 0] / samples, rate)

    @property
    def epoch(self) -> int:
        """The epoch, counted from 1, of the last step."""
        return (self.state.step - 1) // self._per_epoch + 1

    def at_end_of_epoch(self) -> bool:
        """Whether the last step was the last one of its epoch."""
        return self.state.step > 0 and self.state.step % self._per_epoch == 0

    def _averages(self) -> bool:
        return self.epoch > averaging_begins(self.task.spec)

    @torch.no_grad()
    def _average(self, share: float) -> None:
        """Move the average by a share of the way to the present weights."""
        state, here = self.state, self.program.parameters()
        state.averaged += 1
        if state.averaged == 1:
            state.average = {name: value.detach().clone() for name, value in here.items()}
        else:
            torch._foreach_lerp_(list(state.average.values()), [here[name] for name in state.average], share)

    def _keep_snapshots(self, places: Sequence[int]) -> None:
        """Keep the present weights of the members in some places that have not failed."""
        step, failed_at, weights = self.state.step, self.program.failed_at(), self.program.weights()
        for at in places:
            number = self.state.numbers[at]
            kept = self._snapshots[number]
            if step in kept or failed_at[at] >= 0:
                continue
            kept[step] = {name: value.detach().to("cpu", copy=True) for name, value in member(weights, at).items()}
            if self._writes and number in self.places.members:
                save_snapshot(self.places.members[number], step, kept[step])

    def end_epoch(self, display: TrainingDisplay) -> None:
        """Average; where rows are due evaluate, write them and keep the best; members that are done leave."""
        state, spec, averaging = self.state, self.task.spec, self.task.spec.averaging
        if averaging is not None and averaging.kind == "swa" and self._averages():
            self._average(1 / (state.averaged + 1))
        if not has_row(spec, self.epoch):
            return
        failed_at = self.program.failed_at()
        rows = self._new_rows([at for at, failed in enumerate(failed_at) if failed < 0])
        state.totals.zero_()
        below = {at: steps_below(state.history[at], spec.snapshots_below).values() for at in rows}
        self._keep_snapshots([at for at in rows if state.step in below[at]])
        stopping = spec.early_stopping
        self._keep_best(
            [
                stopping is not None and at in rows and improved(state.history[at], stopping)
                for at in range(len(state.numbers))
            ]
        )
        if rows:
            display.epoch(_mean(list(rows.values())))
        for callback in self._callbacks:
            callback.on_epoch(rows[0], self.task.model)
        over = {at: reason_to_stop(state.history[at], self.program.specs[at]) for at in rows}
        reasons = {at: reason for at, reason in over.items() if reason}
        whole = finite(self.program.weights()) if reasons else []
        for at, failed in enumerate(failed_at):
            if failed >= 0:
                reasons[at] = self.program.fail(at, failed, "the loss became NaN or infinite")
            elif at in reasons and not whole[at]:
                reasons[at] = self.program.fail(at, state.step - 1, "the weights became NaN or infinite")
        if reasons:
            self._leave(reasons, finished=True)

    def _new_rows(self, places: Sequence[int]) -> dict[int, Row]:
        """Rows of the history for the members in some places."""
        state, scores = self.state, self.program.scores(self.task.data.validation)
        losses = self.task.spec.snapshots_below
        waits = any(len(steps_below(state.history[at], losses)) < len(losses) for at in places)
        evaluated = self.program.scores(self.task.data.train) if waits else None
        totals, rows = state.totals.cpu(), dict[int, Row]()
        for at in places:
            rows[at] = epoch_row(
                epoch=self.epoch,
                step=state.step,
                lr=learning_rate(self.program.specs[at], state.step - 1, self._per_epoch),
                totals=totals[at],
                rows=self._samples(),
                evaluated=evaluated[at] if evaluated else None,
                validation=scores[at] if scores else None,
                classes=self.task.classes,
                fam=self.task.spec.fam is not None,
                seconds=self.elapsed(),
            )
            state.history[at].append(rows[at])
        return rows

    @torch.no_grad()
    def _keep_best(self, better: Sequence[bool]) -> None:
        if not any(better):
            return
        here = self.program.weights()
        mask = torch.tensor(better, device=self.state.totals.device)
        before = self.state.best or here
        self.state.best = {
            name: torch.where(mask.view(-1, *[1] * (value.dim() - 1)), value, before[name])
            for name, value in here.items()
        }

    def _leave(self, reasons: Mapping[int, str], *, finished: bool) -> None:
        """Make the results of the members in some places, and write them if they are `finished`; the others stay."""
        state, task, program = self.state, self.task, self.program
        places = sorted(reasons)
        kinds = {"final": program.weights(), "best": state.best}
        models = {kind: [program.model(member(w, at)) for at in places] for kind, w in kinds.items() if w}
        if state.averaged:
            averages = [member(state.average, at) for at in places]
            models["average"] = [averaged_model(task, *pair) for pair in zip(models["final"], averages, strict=True)]
        scores = {kind: self._scores(nets) for kind, nets in models.items()} if finished else {}
        for place, at in enumerate(places):
            number, well = state.numbers[at], not reasons[at].startswith(FAILED)
            where = self.places.members.get(number)
            mine = {kind: nets[place] for kind, nets in models.items()}
            result = self.results[number] = TrainingResult(
                model=mine["final"],
                best=mine.get("best"),
                average=mine.get("average"),
                snapshots=self._snapshots[number],
                history=state.history[at],
                scores={kind: values[place] for kind, values in scores.items()} if well else {},
                finished=finished and well,
                stopped=reasons[at],
                spec=program.specs[at],
                seconds=self.elapsed(),
                folder=where,
                rows=task.data.name,
            )
            if where is not None and finished and self._writes:
                save_result(where, result, self.places.given)
        staying = [at for at in range(len(state.numbers)) if at not in reasons]
        if staying:
            self.state, self.program = state.take(staying), program.take(staying)
        else:
            state.numbers = []

    def _scores(self, models: Sequence[nn.Module]) -> list[dict[str, float]]:
        """Each model's loss and error on each split that has samples."""
        every: list[dict[str, float]] = [{} for _ in models]
        for split in SPLITS:
            scores = self.program.scores(getattr(self.task.data, split), models) or ()
            for own, score in zip(every, scores, strict=False):
                own[f"{split}_loss"] = score.loss
                if score.error is not None:
                    own[f"{split}_error"] = score.error
        return every

    def means(self) -> tuple[float, float | None]:
        """Loss and error since the last row of the history, averaged over the members that still move."""
        moving = sum(failed < 0 for failed in self.program.failed_at())
        loss, error, _ = (self.state.totals.sum(0) / (max(1, moving) * max(1, self._samples()))).tolist()
        return loss, error if self.task.classes else None

    def _samples(self) -> int:
        """The training samples that went into `totals`."""
        return self.task.samples_in(self.state.step - row_before(self.task.spec, self.epoch) * self._per_epoch)

    def elapsed(self) -> float:
        return self._before + time.monotonic() - self._started

    def save(self, every: float = 0.0) -> None:
        """Write a checkpoint if the last one is `every` seconds old; never one without finite weights."""
        folder, state, program = self.places.checkpoint, self.state, self.program
        if folder is None or not self._writes or time.monotonic() - self._saved < every:
            return
        program.failed_at()  # may raise, instead of a checkpoint
        if any(finite(program.weights())):
            state.seconds = self.elapsed()
            plain: dict[str, Plain] = {**state.plain(), **program.plain(), "given": dict(self.places.given)}
            save_state(folder, {**state.tensors(), **program.tensors()}, plain)
        self._saved = time.monotonic()


def _mean(rows: Sequence[Row]) -> Row:
    return {key: sum(row[key] for row in rows) / len(rows) for key in rows[0]}


def _agreed(reason: str | None, device: torch.device) -> str | None:
    """The same answer on every process: if one is asked to stop, all stop after the same step."""
    if processes() == 1:
        return reason
    code = torch.tensor(0 if reason is None else 1 + REASONS.index(reason), device=device)
    dist.all_reduce(code, op=dist.ReduceOp.MAX)
    return None if not int(code) else REASONS[int(code) - 1]
