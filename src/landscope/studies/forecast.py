"""About how long a study takes, from finished runs, from those finishing now, or from a slice of each kind of run.

Runs are of one kind where they differ in seeds and numbers only (learning rates, decays). A slice is real work on this machine,
with the threads that a worker will have: a few optimizer steps; and, if seconds are given for it, the training's evaluations and
everything that is measured, until they run out. What a slice does not finish, or does not try, is not counted, and the forecast
then says that it is a lower bound.

Nothing that the spec names as `package.module:function` is called: how long such runs take is known once one of them is done.
"""

from __future__ import annotations

import heapq
import signal
import threading
import time
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from statistics import mean, median

import torch
from torch import Tensor, nn

from landscope.core.errors import LandscopeError
from landscope.core.text import counted, duration
from landscope.probe.loss.losses import LOSSES
from landscope.specs.canonical import canonical_json
from landscope.specs.names import is_import
from landscope.specs.schema import to_plain
from landscope.studies.executors.base import usable_cores
from landscope.studies.grid import RunSpec
from landscope.studies.orphans import held_by_orphans
from landscope.studies.spec import MeasuringSpec
from landscope.studies.store import RunState, RunStatus
from landscope.studies.study import Study
from landscope.studies.work.measure import FIGURES, ModelMeter, WeightsAtTemperatures, figures_of, measure_model
from landscope.studies.work.pools import without_numbers
from landscope.training.callbacks import Callback
from landscope.training.loop.train import train
from landscope.training.schedule import Row
from landscope.training.task import Task, built_model, make_task
from landscope.training.task_data import SPLITS, TaskData, load_task_data

MOMENT = 0.4
"""Seconds for the gradients of every kind of training together."""
TRIALS = 3
"""Of a gradient; the fastest counts."""
PATIENCE = 4 * MOMENT
"""Seconds after which no further kind of training is timed, for trainings that take long to build."""
MOST_WEIGHTS = 2**26
"""Networks with more weights than this are not timed: weights, gradients and momentum of this many take 1 GiB."""
TIMED_RUNS = 64
"""About this many finished runs are read."""
START = min(time.process_time(), 10.0)
"""Seconds that a worker takes to start: what this process took to get here, unless it did other work before."""
FORWARD = 1 / 3
"""The cost of a forward pass, in steps, for evaluations that no slice has reached."""


@dataclass(frozen=True)
class Expected:
    """Seconds of a run: its training, and what is measured on it; `whole` if the slice was completed."""

    training: float
    measuring: float
    whole: bool = True

    @property
    def seconds(self) -> float:
        """Of both."""
        return self.training + self.measuring


def kind_of(run: RunSpec) -> str:
    """What runs have in common that take equally long: all but seeds and numbers, and whether figures are made of them."""
    training, measuring = run.plain.get("training"), run.plain["measuring"]
    about = without_numbers(training) if isinstance(training, dict) else "taken"
    drawn = bool(run.plain["figures"]) and isinstance(measuring, dict) and any(measuring.get(name) for name in FIGURES)
    return canonical_json([about, drawn])


def schedule(seconds: Iterable[float], workers: int) -> float:
    """When the last of some runs ends, if workers take them one after another.

    >>> schedule([3, 2, 2], 2), schedule([], 2)
    (4.0, 0.0)
    """
    free = [0.0] * max(1, workers)
    for each in seconds:
        heapq.heapreplace(free, free[0] + each)
    return max(free)


def expected_from_records(study: Study, statuses: Mapping[str, RunStatus]) -> dict[str, float]:
    """Seconds of the runs that are not done, from finished ones of the same kind; nothing for kinds without one."""
    left = {key: kind_of(study.runs[key]) for key, status in statuses.items() if status.state is not RunState.DONE}
    wanted = set(left.values())
    done: dict[str, list[str]] = {}
    for key, status in statuses.items():
        if status.state is RunState.DONE and wanted and (kind := kind_of(study.runs[key])) in wanted:
            done.setdefault(kind, []).append(key)
    each = max(1, TIMED_RUNS // max(1, len(done)))
    found: dict[str, float] = {}
    for kind, keys in done.items():
        times = [record.get("seconds") for _, record in study.store.records(keys[-each:])]
        if seconds := [float(one) for one in times if isinstance(one, int | float)]:
            found[kind] = median(seconds)
    return {key: found[kind] for key, kind in left.items() if kind in found}


class Pace:
    """The time left while a study runs, from the runs that have ended, on as many workers as have worked at once.

    >>> pace = Pace({"a": "k", "b": "k", "c": "k"}, {})
    >>> pace.started("a", at=0.0), pace.left(at=1.0)
    (None, None)
    >>> pace.ended("a", 4.0), pace.started("b", at=5.0), pace.left(at=6.0)
    (None, None, 7.0)
    """

    def __init__(self, kinds: Mapping[str, str], known: Mapping[str, float]) -> None:
        """`kinds` of the runs to be done by key, `known` seconds of some of them."""
        self._waiting = dict(kinds)
        self._known: dict[str, list[float]] = {}
        for key, seconds in known.items():
            self._known.setdefault(kinds[key], [seconds])
        self._begun: dict[str, tuple[str, float]] = {}
        self._workers = 1

    def started(self, key: str, at: float | None = None) -> None:
        """A run was begun, now or at a time."""
        if key in self._waiting:
            self._begun[key] = self._waiting.pop(key), time.monotonic() if at is None else at
            self._workers = max(self._workers, len(self._begun))

    def ended(self, key: str, seconds: float | None = None) -> None:
        """A run has ended, after some seconds of work; one that has not finished says nothing about the others."""
        kind, _ = self._begun.pop(key, ("", 0.0))
        if kind and seconds is not None:
            self._known.setdefault(kind, []).append(seconds)
        self._waiting.pop(key, None)

    def left(self, at: float | None = None) -> float | None:
        """Seconds until all are done; None before anything is known."""
        if not self._known:
            return None
        usual = {kind: mean(seconds[-TIMED_RUNS:]) for kind, seconds in self._known.items()}
        every = mean(usual.values())
        now = time.monotonic() if at is None else at
        begun = [max(0.0, usual.get(kind, every) - (now - since)) for kind, since in self._begun.values()]
        return schedule([*sorted(begun), *(usual.get(kind, every) for kind in self._waiting.values())], self._workers)


@dataclass(frozen=True)
class Forecast:
    """How long what is left of a study takes on this machine."""

    left: Collection[str]
    """Runs that are not done."""
    expected: Mapping[str, Expected]
    """Seconds of those about which anything is known."""
    workers: int
    source: str
    """What the forecast is based on, in words."""

    @property
    def whole(self) -> bool:
        """Whether every run is covered, none by a lower bound only."""
        return all(key in self.expected and self.expected[key].whole for key in self.left)

    @property
    def seconds(self) -> float:
        """Seconds until the last run with a known time is done; workers take as long to start as this process did."""
        known = [self.expected[key].seconds for key in self.left if key in self.expected]
        return schedule(known, self.workers) + (START if known else 0.0)

    def sentence(self) -> str:
        """The forecast in words."""
        if not self.left:
            return "every run is done"
        runs, known = counted(len(self.left), "run"), len(self.expected)
        if not known:
            return f"{runs} to do; how long they take is known when one is done"
        some = "" if known == len(self.left) else f" for the {known} that could be timed"
        more = "about" if all(one.whole for one in self.expected.values()) else "more than"
        at_once = f"{self.workers} at a time" if self.workers > 1 else "one at a time"
        return f"{runs} to do: {more} {duration(self.seconds)}{some}, {at_once} on this machine ({self.source})"


def forecast(study: Study, statuses: Mapping[str, RunStatus], seconds: float | None = None) -> Forecast:
    """How long the rest takes, from finished runs, and from slices for kinds that have none.

    Slices take a moment, in which the training is timed, or this many `seconds`, in which the measuring is timed as well.
    """
    left = [key for key, status in statuses.items() if status.state not in (RunState.DONE, RunState.FAILED)]
    cores = torch.cuda.device_count() or usable_cores()
    workers = max(1, min(cores, len(left)))
    expected = {key: Expected(0.0, seconds) for key, seconds in expected_from_records(study, statuses).items()}
    expected = {key: one for key, one in expected.items() if key in left}
    unknown = [key for key in left if key not in expected]
    source = "as long as those that are done took"
    if unknown:
        sliced = _expected_from_slices(study, unknown, max(1, usable_cores() // workers), seconds)
        held = held_by_orphans(study, sliced)
        expected |= {key: replace(one, training=0.0) if key in held else one for key, one in sliced.items()}
        timed = "training was timed, measuring was not" if _budget(study) is None else "a few gradients were timed"
        source = timed if seconds is None else "some of each was timed"
    return Forecast(left, expected, workers, source)


# A slice of each kind.


def _budget(study: Study) -> float | None:
    """Seconds for which a run is measured at most, where the spec says so."""
    spec = study.spec.measuring
    if spec.seconds is None:
        return None
    return spec.seconds * len(spec.splits) * len(spec.checkpoints) * len(spec.temperature_fits)


def _expected_from_slices(
    study: Study, keys: Collection[str], threads: int, given: float | None
) -> dict[str, Expected]:
    """Seconds of some runs, from a slice of each kind.

    Runs that call the user's own functions, networks too large to build here, and kinds for which no time is left are omitted.
    """
    kinds: dict[str, RunSpec] = {}
    for key in keys:
        kinds.setdefault(kind_of(study.runs[key]), study.runs[key])
    share = (MOMENT if given is None else given) / max(1, len(kinds))
    over = time.monotonic() + (PATIENCE if given is None else given)
    budget = _budget(study)
    found: dict[str, Expected] = {}
    data: dict[str, TaskData] = {}
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for kind, run in kinds.items():
            if (left := over - time.monotonic()) <= 0:
                break
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # the run itself will say so
                if (task := _task(run, data)) is None:
                    continue
                if given is not None:
                    found[kind] = _slice(run, task, study.spec.measuring, min(share, left))
                else:
                    found[kind] = Expected(_training_seconds(task, share), budget or 0.0, whole=budget is not None)
    finally:
        torch.set_num_threads(before)
    return {key: found[kind] for key in keys if (kind := kind_of(study.runs[key])) in found}


def _task(run: RunSpec, loaded: dict[str, TaskData]) -> Task | None:
    """What a run trains; None if that calls the user's own functions, is too large, or cannot be made. Data is loaded once."""
    spec = run.training
    if spec is None or is_import(spec.data.name) or is_import(spec.model.name):
        return None
    name = canonical_json(to_plain(spec.data))
    try:
        rows = loaded[name] = loaded.get(name) or load_task_data(spec.data)
        with torch.device("meta"):  # shapes without memory
            network = built_model(spec, rows, LOSSES[spec.loss or "cross_entropy"])
        small = sum(weight.numel() for weight in network.parameters()) <= MOST_WEIGHTS
        return make_task(spec, data=rows) if small else None
    except (LandscopeError, RuntimeError, NotImplementedError):
        return None


class _Steps(Callback):
    """When the first and the last step ended, and how many there were; how many evaluations."""

    def __init__(self) -> None:
        self.first = self.last = 0.0
        self.count = self.evaluations = 0

    def on_step(self, step: int, loss: torch.Tensor, lr: float) -> None:
        """Note the time."""
        del step, loss, lr
        self.last = time.monotonic()
        self.first = self.first or self.last
        self.count += 1

    def on_epoch(self, row: Row, model: nn.Module) -> None:
        """Count the evaluation."""
        del row, model
        self.evaluations += 1


class _TimeOver(BaseException):
    """The time of a slice is over."""


def _training_seconds(task: Task, limit: float) -> float:
    """Seconds of a training by gradients of one batch; of some of its rows where a whole one takes longer than the limit."""
    spec = task.spec
    size = len(task.train.y) if spec.batch_size == "full" else min(spec.batch_size, len(task.train.y))
    rows, spent, taken = 1, 0.0, 0.0
    while spent < limit and (rows < size or spent == 0.0):
        rows = min(size, 4 * rows)
        taken = min(_gradient_seconds(task, rows) for _ in range(TRIALS))
        spent += TRIALS * taken
    per_step = taken * size / rows
    passes = 2.0 if spec.sam is not None and spec.sam.rho > 0 else 1.0
    return (per_step * passes * task.steps_per_epoch + _evaluation(task, per_step)) * spec.epochs


def _gradient_seconds(task: Task, rows: int) -> float:
    x, y = task.train.x[:rows], task.train.y[:rows]
    start = time.perf_counter()
    task.objective.sum(task.forward(task.model, x), y, len(y)).backward()
    return time.perf_counter() - start


def _evaluation(task: Task, per_step: float) -> float:
    """Seconds per epoch in which a training is evaluated, by those of a step."""
    rows = sum(len(getattr(task.data, split).y) for split in SPLITS) / len(task.train.y)
    return FORWARD * per_step * task.steps_per_epoch * rows / task.spec.evaluate_every


def _slice(run: RunSpec, task: Task, measuring: MeasuringSpec, limit: float) -> Expected:
    """Train for a third of the time, two steps at least, then measure what there is."""
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    start = time.monotonic()
    trained = measured = 0.0
    try:
        with _at_most(limit):
            trained, weights = _train_slice(task, start, limit / 3)
            since = time.monotonic()
            meter = ModelMeter(task.to(device), measuring, device)
            point = WeightsAtTemperatures(meter, weights, {0: None})
            try:
                measure_model(point, "final")
                measured = (time.monotonic() - since) * len(measuring.checkpoints) * len(measuring.temperature_fits)
                for make in figures_of(meter, meter.model(weights), 1.0).values() if run.plain["figures"] else ():
                    begun = time.monotonic()
                    make()
                    measured += time.monotonic() - begun
            except _TimeOver:
                return Expected(trained, max(measured, time.monotonic() - since), whole=False)
    except _TimeOver:
        return Expected(max(trained, time.monotonic() - start), 0.0, whole=False)
    return Expected(trained, measured)


def _train_slice(task: Task, start: float, limit: float) -> tuple[float, Mapping[str, Tensor]]:
    """Seconds of the whole training from `start` on, and the weights that the slice has."""
    steps, begun = _Steps(), time.monotonic()
    over = begun + limit
    result = train(
        task.spec, progress=False, callbacks=[steps], should_stop=lambda: steps.count > 1 and time.monotonic() > over
    )
    weights = result.model.state_dict()
    if result.finished:
        return time.monotonic() - start, weights
    per_step = (steps.last - steps.first) / max(1, steps.count - 1)
    seconds = steps.first - start + per_step * (task.steps - 1)
    if not steps.evaluations:
        seconds += _evaluation(task, per_step) * task.spec.epochs
    return seconds, weights


@contextmanager
def _at_most(seconds: float) -> Iterator[None]:
    """Raise `_TimeOver` inside after this many seconds; never where this thread or system cannot take signals."""
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "setitimer"):
        yield
        return

    def over(*_: object) -> None:
        raise _TimeOver

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
