"""Before a study runs: what it would call, whether its inputs are here, and about how long it takes."""

from __future__ import annotations

import sys
import time
import warnings
from collections.abc import Collection, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass

import torch

from landscope.core.errors import DataFileError, MissingExtraError
from landscope.models import MODELS
from landscope.probe.loss.losses import LOSSES
from landscope.specs.canonical import canonical_json
from landscope.specs.names import is_import
from landscope.specs.schema import to_plain
from landscope.studies.grid import RunSpec
from landscope.studies.store import RunState, RunStatus
from landscope.studies.study import Study
from landscope.training.spec import TrainingSpec
from landscope.training.task import Task, built_model, make_task
from landscope.training.task_data import load_task_data

__all__ = ["Forecast", "check_inputs", "forecast", "functions_of"]


def functions_of(study: Study) -> dict[str, str]:
    """Every function that running the study imports and calls because its spec names it, and what it is for; nothing is run.

    >>> from landscope.studies.spec import StudySpec
    >>> spec = StudySpec(name="own", training={"data": {"name": "os:system", "command": "true"}, "model": "mlp"})
    >>> functions_of(Study(spec, "no/such/folder", imports=False))
    {'os:system': 'data'}
    """
    taken = study.spec.checkpoints
    given = [(run.training.data.name, run.training.model.name) for run in study.runs.values() if run.training]
    given += [(taken.data.name, taken.model.name)] if taken is not None else []
    named = [(name, what) for pair in given for name, what in zip(pair, ("data", "model"), strict=True)]
    named += [(name, "measure") for split in study.spec.measuring.splits.values() for name in split.own()]
    return {name: what for name, what in named if is_import(name)}


# Whether the inputs are here.
#
# A data set by name is looked for when its study is made. Whether a function that gives rows finds its files, or a network the
# package that it needs, shows only when it is called: here once for all runs, which costs what each of them pays at its start.


def check_inputs(study: Study, keys: Collection[str], asked: set[tuple[str, str]]) -> None:
    """Raise the `DataFileError` or `MissingExtraError` that runs with these keys would end in; other errors are left to them.

    Those that are done need nothing. `asked` remembers, over several studies, which data and which network on them were here.
    """
    for training in _left(study, keys):
        data, network = training.data, training.model.name
        rows = (canonical_json(to_plain(data)), "")
        task = (rows[0], network) if _may_lack_a_package(network) else rows
        if task in asked or (task == rows and not is_import(data.name)):
            continue
        asked |= {rows, task}
        try:
            with redirect_stdout(sys.stderr):  # standard output is for results
                load_task_data(data) if task == rows else make_task(training)
        except (DataFileError, MissingExtraError):
            raise
        except Exception:  # of the user's own, or of settings: it stops those runs that it concerns, not the others
            continue


def _left(study: Study, keys: Collection[str]) -> Iterator[TrainingSpec]:
    """What those of the runs train, or take as it was trained, that are not done and have something to ask for."""
    taken = study.spec.checkpoints
    given = None if taken is None else TrainingSpec(model=taken.model, data=taken.data, loss=taken.loss)
    trainings = {key: run.training or given for key, run in study.runs.items() if key in keys}
    asked = {key: training for key, training in trainings.items() if training is not None and _is_asked(training)}
    for key, status in study.statuses(asked).items():
        if status.state is not RunState.DONE:
            yield asked[key]


def _is_asked(training: TrainingSpec) -> bool:
    """Whether there is anything to ask: most studies name data sets and networks that are known to be here."""
    return is_import(training.data.name) or _may_lack_a_package(training.model.name)


def _may_lack_a_package(network: str) -> bool:
    """Whether only building it shows that: a function, or a network that needs an extra."""
    return is_import(network) or MODELS[network].extra is not None


# About how long a study will take: one gradient is timed for each kind of training, and multiplied out.
#
# Nothing that the spec names as `package.module:function` is called: how long such trainings take is not known.


TRIALS = 3
MOST_WEIGHTS = 2**28
"""Networks with more weights than this are not timed: weights and gradients of this many take 2 GiB."""


@dataclass(frozen=True)
class Forecast:
    """Seconds of each run by key, one run at a time on this machine; measuring is counted where it has a budget."""

    training: dict[str, float | None]
    """`None` where rows or network are functions that the spec names, which are not called here, and for very large networks."""
    measuring: float | None
    """Per run; `None` where the spec sets no `seconds` and no run is done yet."""

    @property
    def total(self) -> float:
        """Seconds of all runs, as far as they are known."""
        return sum(self.known) + len(self.training) * (self.measuring or 0.0)

    @property
    def known(self) -> list[float]:
        """Seconds of the trainings that could be timed."""
        return [seconds for seconds in self.training.values() if seconds is not None]


def forecast(study: Study, statuses: Mapping[str, RunStatus] | None = None) -> Forecast:
    """Time one gradient for every network and batch size of the study; the runs that are done show how long measuring takes.

    `statuses`, where they have just been read, are not read again.
    """
    timed: dict[tuple[object, ...], float | None] = {}
    training = {key: _training_seconds(run, timed) for key, run in study.runs.items()}
    known = sorted(seconds for seconds in training.values() if seconds is not None)
    progress = study.progress(statuses)
    spec = study.spec.measuring
    measuring = None
    if progress.seconds_per_run is not None and known:
        usual = known[len(known) // 2]
        measuring = max(0.0, progress.seconds_per_run - usual)
    elif spec.seconds is not None:
        subjects = len(spec.checkpoints) * spec.temperatures
        measuring = spec.seconds * len(spec.splits) * subjects
    return Forecast(training, measuring)


def _training_seconds(run: RunSpec, timed: dict[tuple[object, ...], float | None]) -> float | None:
    spec = run.training
    if spec is None:
        return 0.0
    if is_import(spec.data.name) or is_import(spec.model.name):
        return None
    kind = (spec.model.name, repr(sorted(spec.model.options.items())), repr(spec.data), spec.batch_size)
    if kind not in timed:
        timed[kind] = _epoch_seconds(spec)
    effort = 2.0 if spec.sam is not None and spec.sam.rho > 0 else 1.0
    epoch = timed[kind]
    return None if epoch is None else epoch * spec.epochs * effort


def _epoch_seconds(spec: TrainingSpec) -> float | None:
    """Seconds of one epoch by the time of one gradient; `None` for a network too large to build for that."""
    rows = load_task_data(spec.data)
    with torch.device("meta"), warnings.catch_warnings():  # shapes without memory
        warnings.simplefilter("ignore")  # pretrained weights are not loaded, which torch warns of
        network = built_model(spec, rows, LOSSES[spec.loss or "cross_entropy"])
    if sum(weight.numel() for weight in network.parameters()) > MOST_WEIGHTS:
        return None
    task = make_task(spec)
    return _gradient_seconds(task) * task.steps_per_epoch


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
