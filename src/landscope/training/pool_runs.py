"""The two ways to train the members of a pool: together, chunk by chunk as memory allows, or one by one with `train`."""

from __future__ import annotations

import gc
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from landscope.core.errors import NonFiniteTrainingError, OutOfMemoryError
from landscope.core.memory import is_out_of_memory
from landscope.training.callbacks import Callback
from landscope.training.capturing import own_stream
from landscope.training.history import Row
from landscope.training.interruption import Interruption
from landscope.training.loop import train
from landscope.training.pool_chunk import Chunk, Places
from landscope.training.pool_folder import PoolFolder
from landscope.training.pool_leaving import FAILED
from landscope.training.pool_program import stacked
from landscope.training.pool_state import ChunkState
from landscope.training.pool_updates import Settings, fresh_state
from landscope.training.progress import Display, training_display
from landscope.training.result import Trained, save_result, with_weights
from landscope.training.rows import DataLike
from landscope.training.sources import Task, built_model
from landscope.training.spec import TrainingSpec
from landscope.training.state import weights_of

__all__ = ["Conditions", "one_by_one", "together"]

Results = dict[int, Trained]


@dataclass(frozen=True, kw_only=True)
class Conditions:
    """What a run goes by apart from its specs."""

    task: Task
    specs: Sequence[TrainingSpec]
    data: DataLike | None
    folder: PoolFolder
    interruption: Interruption
    should_stop: Callable[[], bool] | None
    deadline: float | None
    """When the time is up, by `time.monotonic`."""
    resume: bool
    checkpoint_every: float
    progress: bool | None
    graphs: bool | None

    def initial(self, number: int) -> nn.Module:
        """A member before its first step."""
        model = built_model(self.specs[number], self.task.rows, self.task.loss)
        return model.to(self.task.train.y.device, next(self.task.model.parameters()).dtype)

    def unfinished(
        self, number: int, reason: str, model: nn.Module | None = None, history: Sequence[Row] = ()
    ) -> Trained:
        """A member that has ended before its time."""
        return Trained(
            model=(model or self.initial(number)).eval(),
            best=None,
            average=None,
            snapshots={},
            history=list(history),
            scores={},
            finished=False,
            stopped=reason,
            spec=self.specs[number],
            seconds=0.0,
            folder=self.folder.members.get(number),
            rows=self.task.rows.name,
        )


def together(on: Conditions, missing: Sequence[int], at_once: int) -> Results:
    """Members in chunks of at most `at_once`, each one program; chunks that do not fit into memory are halved."""
    device = on.task.train.y.device
    results: Results = {}
    started = on.folder.under_way(missing, device) if on.resume else {}
    busy = {number for state in started.values() for number in state.numbers}
    fresh = [number for number in missing if number not in busy]
    queue: deque[tuple[int, list[int]]] = deque((first, state.numbers) for first, state in started.items())
    queue.extend((fresh[at], fresh[at : at + at_once]) for at in range(0, len(fresh), at_once))
    while queue:
        first, numbers = queue.popleft()
        if reason := on.interruption.reason():
            results |= {number: on.unfinished(number, reason) for number in numbers}
            continue
        try:
            results |= _chunk(on, first, started.pop(first) if first in started else _fresh(on, numbers))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if len(numbers) == 1:
                raise OutOfMemoryError(
                    f"one member does not fit into the memory of {device}. Choose a smaller batch_size or `accumulate`."
                ) from error
            on.folder.forget(first)
            gc.collect()
            half = len(numbers) // 2
            queue.extendleft([(numbers[half], numbers[half:]), (numbers[0], numbers[:half])])
    return results


def _fresh(on: Conditions, numbers: Sequence[int]) -> ChunkState:
    stack = stacked([on.initial(number) for number in numbers], on.task.train.y.device)
    remembers = Settings([on.specs[number].optimizer for number in numbers]).remembers
    return ChunkState.fresh(numbers, stack, fresh_state(on.task.spec.optimizer, stack.params, remembers))


def _chunk(on: Conditions, first: int, state: ChunkState) -> Results:
    """One chunk from its state to its results."""
    device = on.task.train.y.device
    capture = device.type == "cuda" and on.graphs is not False
    places = Places(on.folder.chunk(first), on.folder.members, on.folder.given)
    with own_stream(device, capture):
        chunk = Chunk(on.task, dict(enumerate(on.specs)), state, places, capture=capture)
        with training_display(on.progress, on.task.steps, on.task.spec.epochs, state.step) as display:
            reason = _steps(on, chunk, display)
    if reason is None:
        on.folder.forget(first)
    else:
        chunk.interrupt(reason)
    return chunk.results


def _steps(on: Conditions, chunk: Chunk, display: Display) -> str | None:
    """Step after step until all members have left, or somebody asks to stop: why."""
    ended = chunk.at_end_of_epoch()  # a checkpoint is written before its epoch is evaluated
    while not chunk.over:
        while not ended:
            chunk.advance()
            display.step(chunk.state.step, chunk.means)
            reason = on.interruption.reason()
            chunk.save(0.0 if reason else on.checkpoint_every)
            if reason:
                return reason
            ended = chunk.at_end_of_epoch()
        if row := chunk.end_epoch():
            display.epoch(row)
        ended = False
    return None


class _LastGood(Callback):
    """Keeps the history and the weights at its last row."""

    def on_start(self, spec: TrainingSpec, model: nn.Module) -> None:
        """The initial weights."""
        del spec
        self.model, self.history = model, list[Row]()
        self.weights: dict[str, Tensor] = weights_of(model)

    def on_epoch(self, row: Row, model: nn.Module) -> None:
        """The weights after an epoch that has a row."""
        self.history.append(row)
        self.weights = weights_of(model)


def one_by_one(on: Conditions, missing: Sequence[int]) -> Results:
    """Members with `train`, one after another; one that fails keeps the weights at the last row of its history."""
    results: Results = {}
    halted: str | None = None
    for number in missing:
        halted = halted or on.interruption.reason()
        if halted is not None:
            results[number] = on.unfinished(number, halted)
            continue
        kept, where = _LastGood(), on.folder.members.get(number)
        try:
            result = train(
                on.specs[number],
                data=on.data,
                folder=where,
                resume=on.resume,
                device=on.task.train.y.device,
                time_limit=None if on.deadline is None else max(0.0, on.deadline - time.monotonic()),
                should_stop=on.should_stop,
                checkpoint_every=on.checkpoint_every,
                callbacks=(kept,),
                progress=on.progress,
                graphs=on.graphs,
            )
            halted = None if result.finished else result.stopped
        except NonFiniteTrainingError as error:
            model = with_weights(kept.model, kept.weights)
            result = on.unfinished(number, FAILED + str(error), model, kept.history)
            if where is not None:
                save_result(where, result, on.folder.given)
        results[number] = result
    return results
