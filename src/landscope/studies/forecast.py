"""Before a study runs: about how long it takes, what it would call, and whether its inputs are here.

Times come from finished runs, from those finishing now, or from a slice of each kind of run.
"""

from __future__ import annotations

import heapq
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass, replace
from statistics import mean, median
from typing import Any, cast

import torch

from landscope.core.errors import DataFileError, MissingExtraError
from landscope.core.json import Plain
from landscope.core.text import counted, duration
from landscope.models import MODELS
from landscope.specs.canonical import canonical_json
from landscope.specs.names import is_import
from landscope.specs.schema import to_plain
from landscope.studies.executors.base import usable_cores
from landscope.studies.grid import RunSpec
from landscope.studies.orphans import held_by_orphans
from landscope.studies.slices import Expected, expected_from_slices, kind_of
from landscope.studies.store import RunState, RunStatus
from landscope.studies.study import Study
from landscope.training.spec import TrainingSpec
from landscope.training.task import make_task
from landscope.training.task_data import load_task_data

TIMED_RUNS = 64
"""About this many finished runs are read."""
START = min(time.process_time(), 10.0)
"""Seconds that a worker takes to start: what this process took to get here, unless it did other work before."""


def kind_without_figures(run: RunSpec) -> str:
    """The kind of the runs that are like this one, with no figures."""
    return kind_of(replace(run, plain={**run.plain, "figures": False}))


def seconds_without_figures(record: Mapping[str, Plain]) -> float:
    """Of a run's record: its training and what was measured, so that those of its kind without figures are known from it."""
    history, subjects = cast("list[Any]", record.get("history") or []), cast("list[Any]", record.get("subjects") or [])
    costs = (
        estimate.get("cost", {}).get("seconds", 0.0)
        for subject in subjects
        for report in subject["reports"].values()
        for estimate in report["estimates"].values()
    )
    return sum(costs) + (history[-1].get("seconds", 0.0) if history else 0.0)


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
        self._expected: dict[str, float] = {}
        for key, seconds in known.items():
            self._known.setdefault(kinds[key], [seconds])
        self._begun: dict[str, tuple[str, float]] = {}
        self._workers = 1
        self.at_least = False
        """Whether what was last said to be left is a lower bound: a run takes longer than its kind did, or none was known."""

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

    def expect(self, kind: str, seconds: float) -> None:
        """What runs of a kind are likely to take, until one of them has ended."""
        self._expected[kind] = seconds

    def left(self, at: float | None = None) -> float | None:
        """Seconds until all are done; None before anything is known."""
        if not self._known:
            return None
        usual = self._expected | {kind: mean(seconds[-TIMED_RUNS:]) for kind, seconds in self._known.items()}
        every = mean(usual.values())
        now = time.monotonic() if at is None else at
        begun = [max(0.0, usual.get(kind, every) - (now - since)) for kind, since in self._begun.values()]
        self.at_least = any(kind not in usual or now - since > usual[kind] for kind, since in self._begun.values())
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
        if not self.left:
            return "every run is done"
        troubles = [one.trouble for one in self.expected.values() if one.trouble]
        cannot = f". {counted(len(troubles), 'run')} cannot start: {troubles[0]}" if troubles else ""
        runs, known = counted(len(self.left), "run"), len(self.expected) - len(troubles)
        if not known:
            return f"{runs} to do; the time is not known until one is done{cannot}"
        some = "" if known == len(self.left) else f" for the {known} that could be timed"
        more = "about" if all(one.whole for one in self.expected.values()) else "more than"
        at_once = f"{self.workers} at a time" if self.workers > 1 else "one at a time"
        return f"{runs} to do: {more} {duration(self.seconds)}{some}, {at_once} on this machine ({self.source}){cannot}"


def forecast(study: Study, statuses: Mapping[str, RunStatus], seconds: float | None = None) -> Forecast:
    """How long what is left takes: by the runs that are done; for kinds of which none is, by slices.

    Slices take a moment for the training and some seconds for the measuring, or this many `seconds` together.
    """
    left = [key for key, status in statuses.items() if status.state not in (RunState.DONE, RunState.FAILED)]
    cores = torch.cuda.device_count() or usable_cores()
    workers = max(1, min(cores, len(left)))
    expected = {key: Expected(0.0, seconds) for key, seconds in expected_from_records(study, statuses).items()}
    expected = {key: one for key, one in expected.items() if key in left}
    unknown = [key for key in left if key not in expected]
    source = "from the runs that are done"
    if unknown:
        sliced = expected_from_slices(study, unknown, max(1, usable_cores() // workers), seconds)
        held = held_by_orphans(study, sliced)
        expected |= {key: replace(one, training=0.0) if key in held else one for key, one in sliced.items()}
        source = "part of it timed"
    return Forecast(left, expected, workers, source)


def functions_of(study: Study) -> dict[str, str]:
    """Every function that the study would import and call because its spec names it, and what for; nothing is run.

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
# A named data set is looked for when its study is made. Whether a function finds its files, or a network its package, shows only
# when it is called: here once for all runs, at the cost that each of them has at its start.


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
    """What the unfinished runs train, or take as trained, for those that have something to ask for."""
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
    """Whether only building it would show a missing package: a function, or a network that needs an extra."""
    return is_import(network) or MODELS[network].extra is not None
