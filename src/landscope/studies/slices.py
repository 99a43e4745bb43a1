"""A slice of a run: a little of its training and of what is measured, timed on this machine, to forecast the rest.

Runs are of one kind where they differ in seeds and numbers only (learning rates, decays). A slice is real work with the threads
that a worker will have: some gradients of each kind of training, in a moment, or optimizer steps and evaluations if seconds are
given for it; and everything that is measured, once for each network and data set. What a slice does not finish is not counted,
and its result is then a lower bound.

Nothing that the spec names as `package.module:function` is called: how long such data, networks and measures take is known once
a run is done.
"""

from __future__ import annotations

import signal
import threading
import time
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from landscope.core.errors import LandscopeError
from landscope.probe.loss.losses import LOSSES
from landscope.specs.canonical import canonical_json
from landscope.specs.names import is_import
from landscope.specs.schema import to_plain
from landscope.studies.grid import RunSpec
from landscope.studies.spec import MeasuringSpec
from landscope.studies.study import Study
from landscope.studies.work.measure import FIGURES, figures_of, measure_model
from landscope.studies.work.meter import ModelMeter, WeightsAtTemperatures
from landscope.studies.work.pools import without_numbers
from landscope.training.callbacks import Callback
from landscope.training.loop.train import train
from landscope.training.schedule import Row
from landscope.training.task import Task, built_model, make_task
from landscope.training.task_data import SPLITS, TaskData, load_task_data

MOMENT = 0.4
"""Seconds for the gradients of every kind of training together."""
TRIALS = 3
"""How often a gradient is timed; the fastest counts."""
MEASURING = 20.0
"""Seconds in which everything is measured once, where none are given."""
PATIENCE = 4 * MOMENT
"""Seconds after which no further kind of training is timed, for trainings that take long to build."""
MOST_WEIGHTS = 2**26
"""Networks with more weights than this are not timed: weights, gradients and momentum of this many take 1 GiB."""
FORWARD = 1 / 3
"""The cost of a forward pass, in steps, for evaluations that no slice has reached."""


@dataclass(frozen=True)
class Expected:
    """Seconds of a run: its training, and what is measured on it; `whole` if the slice was completed; or why it cannot start."""

    training: float
    measuring: float
    whole: bool = True
    trouble: str = ""

    @property
    def seconds(self) -> float:
        return self.training + self.measuring


def kind_of(run: RunSpec) -> str:
    """What runs have in common that take equally long: all but seeds and numbers, and whether figures are made of them."""
    training = run.plain.get("training")
    about = without_numbers(training) if isinstance(training, dict) else "taken"
    return canonical_json([about, _drawn(run)])


def _drawn(run: RunSpec) -> bool:
    measuring = run.plain["measuring"]
    return bool(run.plain["figures"]) and isinstance(measuring, dict) and any(measuring.get(name) for name in FIGURES)


def budget_of(study: Study) -> float | None:
    """Seconds for which a run is measured at most, where the spec says so."""
    spec = study.spec.measuring
    if spec.seconds is None:
        return None
    return spec.seconds * len(spec.splits) * len(spec.checkpoints) * len(spec.temperature_fits)


def expected_from_slices(study: Study, keys: Collection[str], threads: int, given: float | None) -> dict[str, Expected]:
    """Seconds of some runs, from a slice of each kind.

    Runs that call the user's own functions, networks too large to build here, and kinds for which no time is left are omitted.
    """
    kinds: dict[str, RunSpec] = {}
    for key in keys:
        kinds.setdefault(kind_of(study.runs[key]), study.runs[key])
    quick = given is None
    training, measuring, patience = (
        (MOMENT, MEASURING, PATIENCE) if given is None else (given / 3, 2 / 3 * given, given)
    )
    share, over = training / max(1, len(kinds)), time.monotonic() + patience
    measurings, budget = _Measurings(study.spec.measuring, measuring), budget_of(study)
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
                try:
                    task = _task(run, data)
                except LandscopeError as error:
                    found[kind] = Expected(0.0, 0.0, trouble=str(error))
                    continue
                if task is None:
                    continue
                trained = _by_gradients(task, share) if quick else _by_steps(task, min(share, left))
                begun = time.monotonic()
                measured = Expected(0.0, budget) if quick and budget is not None else measurings.of(run, task)
                if quick:
                    over += time.monotonic() - begun  # which is not the patience with trainings
                found[kind] = replace(measured, training=trained.training, whole=trained.whole and measured.whole)
    finally:
        torch.set_num_threads(before)
    return {key: found[kind] for key in keys if (kind := kind_of(study.runs[key])) in found}


def _task(run: RunSpec, loaded: dict[str, TaskData]) -> Task | None:
    """What a run trains; None if that calls the user's own functions or is too large. Data is loaded once."""
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
    except LandscopeError:
        raise
    except (RuntimeError, NotImplementedError, TypeError):  # the last of sizes beyond any integer of torch
        return None


class _Steps(Callback):
    """When the first and the last step ended, and how many there were; how many evaluations."""

    def __init__(self) -> None:
        self.first = self.last = 0.0
        self.count = self.evaluations = 0

    def on_step(self, step: int, loss: torch.Tensor, lr: float) -> None:
        self.last = time.monotonic()
        self.first = self.first or self.last
        self.count += 1

    def on_epoch(self, row: Row, model: nn.Module) -> None:
        self.evaluations += 1


class _TimeOver(BaseException):
    """The time of a slice is over."""


def _by_gradients(task: Task, limit: float) -> Expected:
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
    return Expected((per_step * passes * task.steps_per_epoch + _evaluation(task, per_step)) * spec.epochs, 0.0)


def _gradient_seconds(task: Task, rows: int) -> float:
    x, y = task.train.x[:rows], task.train.y[:rows]
    start = time.perf_counter()
    task.objective.sum(task.forward(task.model, x), y, len(y)).backward()
    return time.perf_counter() - start


def _evaluation(task: Task, per_step: float) -> float:
    """Seconds per epoch in which a training is evaluated, by those of a step."""
    rows = sum(len(getattr(task.data, split).y) for split in SPLITS) / len(task.train.y)
    return FORWARD * per_step * task.steps_per_epoch * rows / task.spec.evaluate_every


class _Measurings:
    """Seconds that it takes to measure a network on its data, each once, within a time for all of them."""

    def __init__(self, spec: MeasuringSpec, limit: float) -> None:
        self.spec, self.left = spec, limit
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._found: dict[str, Expected] = {}

    def of(self, run: RunSpec, task: Task) -> Expected:
        """What is measured of a run; a lower bound where the time was over before, or measures are the user's own."""
        if any(split.own() for split in self.spec.splits.values()):
            return Expected(0.0, 0.0, whole=False)
        name = canonical_json([to_plain(task.spec.model), to_plain(task.spec.data)])
        if name not in self._found:
            self._found[name] = self._timed(task, lambda meter, point: measure_model(point, "final"))
        found = self._found[name]
        times = len(self.spec.checkpoints) * len(self.spec.temperature_fits)
        found = replace(found, measuring=found.measuring * times)
        if not _drawn(run):
            return found
        drawing = f"{name} drawn"
        if drawing not in self._found:
            self._found[drawing] = self._timed(task, lambda meter, point: _draw(meter, point.weights))
        drawn = self._found[drawing]
        return Expected(0.0, found.measuring + drawn.measuring, found.whole and drawn.whole)

    def _timed(self, task: Task, work: Callable[[ModelMeter, WeightsAtTemperatures], object]) -> Expected:
        if self.left <= 0:
            return Expected(0.0, 0.0, whole=False)
        start, whole = time.monotonic(), True
        try:
            with _at_most(self.left):
                meter = ModelMeter(task.to(self.device), self.spec, self.device)
                work(meter, WeightsAtTemperatures(meter, task.model.state_dict(), {0: None}))
        except _TimeOver:
            whole = False
        except LandscopeError:  # of a network that has not learnt anything yet
            whole = False
        taken = time.monotonic() - start
        self.left -= taken
        return Expected(0.0, taken, whole)


def _draw(meter: ModelMeter, weights: Mapping[str, Tensor]) -> None:
    for make in figures_of(meter, meter.model(weights), 1.0).values():
        make()


def _by_steps(task: Task, limit: float) -> Expected:
    """Seconds of a whole training from those of some steps, two at least."""
    steps, begun = _Steps(), time.monotonic()
    try:
        with _at_most(3 * limit):
            result = train(
                task.spec,
                progress=False,
                callbacks=[steps],
                should_stop=lambda: steps.count > 1 and time.monotonic() > begun + limit,
            )
    except _TimeOver:
        return Expected(time.monotonic() - begun, 0.0, whole=False)
    if result.finished:
        return Expected(time.monotonic() - begun, 0.0)
    per_step = (steps.last - steps.first) / max(1, steps.count - 1)
    seconds = steps.first - begun + per_step * (task.steps - 1)
    unseen = _evaluation(task, per_step) * task.spec.epochs if not steps.evaluations else 0.0
    return Expected(seconds + unseen, 0.0)


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
