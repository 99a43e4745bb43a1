"""The two strategies of a pool: members stacked, chunk by chunk as memory allows, or one after another with `train`."""

from __future__ import annotations

import gc
import os
import shutil
import time
import warnings
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from torch import Tensor, nn

from landscope.core.errors import NonFiniteTrainingError, OutOfMemoryError, SpecError
from landscope.core.files import LARGEST_DOCUMENT, read_regular
from landscope.core.json import TEXT, checked, parse_json
from landscope.core.memory import is_out_of_memory
from landscope.training.callbacks import Callback, training_display
from landscope.training.evaluate import rank
from landscope.training.fast_steps import own_stream
from landscope.training.loop.folder import (
    FAILED,
    TrainingResult,
    check_same_inputs,
    load_result,
    load_state,
    prepare_folder,
    save_result,
    weights_of,
    with_weights,
    write_json,
)
from landscope.training.loop.interruption import Interruption
from landscope.training.loop.run import Places, Run
from landscope.training.loop.state import State, some
from landscope.training.loop.train import train
from landscope.training.pool.program import StackedProgram
from landscope.training.pool.result import Strategy
from landscope.training.schedule import Row
from landscope.training.spec import TrainingSpec
from landscope.training.task import Task, built_model
from landscope.training.task_data import DataLike

# The folder of a pool: a folder of a run for each member, and checkpoints of those that are stacked.
#
# pool.json                the strategy of the pool, which is kept when it is resumed
# member-000/ …            what `train` writes for that member's spec (see `result`)
# chunk-000/ …             the checkpoint of stacked members, named by the first of them


class PoolFolder:
    """Where the members of a pool are kept, or nowhere; a folder with runs of other specs is refused."""

    def __init__(
        self,
        folder: str | os.PathLike[str] | None,
        specs: Sequence[TrainingSpec],
        given: Mapping[str, str],
        *,
        resume: bool,
    ) -> None:
        self._root = None if folder is None else Path(folder)
        self._specs, self.given = specs, given
        self.members: dict[int, Path] = {}
        if self._root is None:
            return
        if not resume:
            for old in self._root.glob("chunk-*"):
                shutil.rmtree(old)
            (self._root / "pool.json").unlink(missing_ok=True)
        for number, spec in enumerate(specs):
            home = self._root / f"member-{number:03d}"
            self.members[number] = prepare_folder(home, spec, resume=resume, writes=rank() == 0)

    def strategy(self) -> Strategy | None:
        """How the pool in this folder was trained so far; version 0.1 had other words for it."""
        path = None if self._root is None else self._root / "pool.json"
        if path is None or not path.is_file():
            return None
        try:
            content = checked(parse_json(read_regular(path, LARGEST_DOCUMENT)), "a pool", {})
            key = "strategy" if "strategy" in content else "way"
            word = checked(content, "a pool", {key: TEXT})[key]
            return cast(Strategy, {"together": "stacked", "one by one": "sequential"}.get(word, word))
        except (OSError, ValueError) as error:
            raise SpecError(
                f"{path} is damaged: {error}. Choose another folder, or discard its contents with resume=False"
            ) from error

    def keep(self, strategy: Strategy) -> None:
        if self._root is not None and rank() == 0:
            write_json(self._root / "pool.json", {"strategy": strategy})

    def finished(self, number: int, model: nn.Module) -> TrainingResult | None:
        """The result of a member that is done or has failed."""
        if number not in self.members:
            return None
        result = load_result(self.members[number], self._specs[number], model, self.given)
        if result is None:
            return None
        return replace(result, finished=not result.stopped.startswith(FAILED))

    def chunk(self, first: int) -> Path | None:
        """The place for the checkpoint of a chunk, by its first member."""
        if self._root is None:
            return None
        path = self._root / f"chunk-{first:03d}"
        path.mkdir(exist_ok=True)
        return path

    def forget(self, first: int) -> None:
        if self._root is not None:
            shutil.rmtree(self._root / f"chunk-{first:03d}", ignore_errors=True)

    def begun(self, missing: Collection[int]) -> dict[int, Checkpoint]:
        """The checkpoints of chunks that have missing members, by their first member.

        A member that left after the checkpoint was written trains again from there, so that the others draw the same noise.
        """
        found: dict[int, Checkpoint] = {}
        for path in sorted(self._root.glob("chunk-*")) if self._root is not None else ():
            state = load_state(path)
            if state is None:
                continue
            tensors, plain = state[0], cast(dict[str, Any], state[1])
            if any(number in missing for number in plain["numbers"]):
                self._require_given(path, plain)
                found[int(path.name.removeprefix("chunk-"))] = self._own(tensors, plain)
        return found

    def _own(self, tensors: dict[str, Tensor], plain: dict[str, Any]) -> Checkpoint:
        """A checkpoint without the members of a larger pool."""
        places = [at for at, number in enumerate(plain["numbers"]) if number < len(self._specs)]
        lists = {key: [plain[key][at] for at in places] for key in ("numbers", "history")}
        return some(tensors, places), {**plain, **lists}

    def _require_given(self, path: Path, plain: Mapping[str, Any]) -> None:
        if "given" in plain:
            check_same_inputs(path, plain["given"], self.given)
        elif self.given:
            resumed = "was written by an older version, which did not note its data: it is resumed with the given data"
            warnings.warn(f"{path} {resumed}. If that is not its own, start over with resume=False", stacklevel=2)


Results = dict[int, TrainingResult]
Checkpoint = tuple[dict[str, Tensor], dict[str, Any]]


@dataclass(frozen=True, kw_only=True)
class PoolRun:
    """The conditions under which a pool is trained."""

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
        model = built_model(self.specs[number], self.task.data, self.task.loss)
        return model.to(self.task.train.y.device, next(self.task.model.parameters()).dtype)

    def unfinished(
        self, number: int, reason: str, model: nn.Module | None = None, history: Sequence[Row] = ()
    ) -> TrainingResult:
        """A member that has ended before its time."""
        return TrainingResult(
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
            rows=self.task.data.name,
        )


def train_stacked(pool: PoolRun, missing: Sequence[int], at_once: int) -> Results:
    """Members in chunks of at most `at_once`, each one program; chunks that do not fit into memory are halved."""
    device = pool.task.train.y.device
    results: Results = {}
    started = pool.folder.begun(missing) if pool.resume else {}
    busy = {number for _, plain in started.values() for number in plain["numbers"]}
    fresh = [number for number in missing if number not in busy]
    queue: deque[tuple[int, list[int]]] = deque((first, plain["numbers"]) for first, (_, plain) in started.items())
    queue.extend((fresh[at], fresh[at : at + at_once]) for at in range(0, len(fresh), at_once))
    while queue:
        first, numbers = queue.popleft()
        if reason := pool.interruption.reason():
            results |= {number: pool.unfinished(number, reason) for number in numbers if number in missing}
            continue
        try:
            results |= _chunk(pool, first, numbers, missing, started.pop(first, None))
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if len(numbers) == 1:
                raise OutOfMemoryError(
                    f"one member does not fit into the memory of {device}. Choose a smaller batch_size or `accumulate`."
                ) from error
            pool.folder.forget(first)
            gc.collect()
            rest = [number for number in numbers if number in missing]
            half = (len(rest) + 1) // 2
            queue.extendleft((part[0], part) for part in (rest[half:], rest[:half]) if part)
    return results


def _chunk(
    pool: PoolRun, first: int, numbers: Sequence[int], missing: Collection[int], start: Checkpoint | None
) -> Results:
    """One chunk from its start, or from its checkpoint, to the results of its missing members."""
    task, device = pool.task, pool.task.train.y.device
    capture = device.type == "cuda" and pool.graphs is not False
    members = {number: path for number, path in pool.folder.members.items() if number in missing}
    with own_stream(device, capture):
        specs = [pool.specs[number] for number in numbers]
        if start is None:
            program = StackedProgram.fresh(task, specs, [pool.initial(number) for number in numbers], capture=capture)
            state = State.fresh(numbers, device)
        else:
            program = StackedProgram.restored(task, specs, start[0], capture=capture)
            state = State.restored(*start, device)
        run = Run(task, program, state, Places(pool.folder.chunk(first), members, pool.folder.given))
        with training_display(pool.progress, task.steps, task.spec.epochs, state.step) as display:
            reason = run.until_over(pool.interruption, display, pool.checkpoint_every)
    if reason is None:
        pool.folder.forget(first)
    return {number: result for number, result in run.results.items() if number in missing}


class _LastGood(Callback):
    """Keeps the history and the weights at its last row."""

    def on_start(self, spec: TrainingSpec, model: nn.Module) -> None:
        self.model, self.history = model, list[Row]()
        self.weights: dict[str, Tensor] = weights_of(model)

    def on_epoch(self, row: Row, model: nn.Module) -> None:
        self.history.append(row)
        self.weights = weights_of(model)


def train_sequentially(pool: PoolRun, missing: Sequence[int]) -> Results:
    """Members with `train`, one after another; one that fails keeps the weights at the last row of its history."""
    results: Results = {}
    halted: str | None = None
    for number in missing:
        halted = halted or pool.interruption.reason()
        if halted is not None:
            results[number] = pool.unfinished(number, halted)
            continue
        kept, where = _LastGood(), pool.folder.members.get(number)
        try:
            result = train(
                pool.specs[number],
                data=pool.data,
                folder=where,
                resume=pool.resume,
                device=pool.task.train.y.device,
                time_limit=None if pool.deadline is None else max(0.0, pool.deadline - time.monotonic()),
                should_stop=pool.should_stop,
                checkpoint_every=pool.checkpoint_every,
                callbacks=(kept,),
                progress=pool.progress,
                graphs=pool.graphs,
            )
            halted = None if result.finished else result.stopped
        except NonFiniteTrainingError as error:
            model = with_weights(kept.model, kept.weights)
            result = pool.unfinished(number, FAILED + str(error), model, kept.history)
            if where is not None:
                save_result(where, result, pool.folder.given)
        results[number] = result
    return results
