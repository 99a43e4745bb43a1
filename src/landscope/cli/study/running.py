"""Run a study and report progress: what is done, what is running, what is left."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from landscope.cli.failures import StoppedError
from landscope.cli.options import ExecutorName
from landscope.cli.output import note
from landscope.cli.study.showing import show_changes
from landscope.core.text import counted, duration

if TYPE_CHECKING:
    from landscope.studies.executors.base import Event, Executor, Job, Summary
    from landscope.studies.forecast import Pace
    from landscope.studies.store import RunStatus
    from landscope.studies.study import Study


@dataclass(frozen=True)
class HowToRun:
    """How to run: where, with what, which runs, and whether failed ones are retried."""

    executor: ExecutorName = "local"
    executor_options: Sequence[str] = ()
    gpus: int | None = None
    pool: bool | None = None
    only: Sequence[str] = ()
    retry_failed: bool = False


@dataclass(frozen=True)
class StudyOutcome:
    """How the requested runs ended, and the state of every run of the study afterwards."""

    summary: Summary
    statuses: Mapping[str, RunStatus]


def run_study(study: Study, folder: Path, how: HowToRun, time_limit: float | None) -> StudyOutcome:
    """Run a study, or some of its runs, and report progress; Ctrl-C and a time limit leave it resumable."""
    import torch

    from landscope.probe.totals import checked_seconds
    from landscope.studies.executors.base import Resources, Summary
    from landscope.studies.grid import select_runs
    from landscope.studies.store import RunState

    time_limit = checked_seconds("--time-limit", time_limit)
    keys = select_runs(study.runs, how.only)
    needs = Resources(gpus=int(torch.cuda.is_available()) if how.gpus is None else how.gpus)
    executor = _executor(study, how)
    show_changes(study, folder)
    study.save(folder)
    start = time.monotonic()
    statuses = study.statuses()
    total, done = len(study.runs), sum(status.state is RunState.DONE for status in statuses.values())
    some = f", {len(keys)} asked for" if len(keys) < total else ""
    note(f"{study.spec.name}: {counted(total, 'run')}{some}, {done} done before; in {folder}")
    _warn_of_averages(study)
    settled = {key for key, status in statuses.items() if status.settled and key in keys}
    if done < total:
        _take_over(study, keys - settled)
    summary = Summary()
    limit = _Limit(time_limit)
    try:
        with limit:
            jobs = [job for job in study.jobs(needs) if job.key in keys - settled]
            if how.pool and jobs:
                pools = study.pools(needs, keys)
                executor.run(pools, on_event=_pool_event_printer(pools))
            if jobs:
                printer = _event_printer(study, statuses, settled, _pace(study, statuses, jobs))
                summary = executor.run(jobs, on_event=printer)
    except KeyboardInterrupt:
        progress = study.progress()
        said = f"{progress.done} of {progress.total} runs are done and kept"
        if limit.reached:
            note(said)
            raise time_limit_reached(time_limit) from None
        note(f"{said}; run the same command to resume the others where they are")
        raise
    study.store.check_there()
    summary.skipped += [key for key in study.runs if key in settled]
    if summary.finished:
        note(f"{counted(len(summary.finished), 'run')} finished in {duration(time.monotonic() - start)}")
    return StudyOutcome(summary, study.statuses() if jobs else statuses)


def _take_over(study: Study, keys: Collection[str]) -> None:
    from landscope.studies.orphans import take_over

    taken = take_over(study, keys)
    if taken.runs:
        note(
            f"taken over from runs made before: {counted(taken.trainings, 'training')} and "
            f"{counted(taken.estimates, 'estimate')} for {counted(taken.runs, 'run')}"
        )


def time_limit_reached(seconds: float | None) -> StoppedError:
    """The error that ends a command whose time is over."""
    return StoppedError(f"the time limit of {duration(seconds or 0)} was reached; run the same command to resume")


def _warn_of_averages(study: Study) -> None:
    """Warn of averaged weights that are never measured: not an error, but hardly ever intended."""
    if "average" in study.spec.measuring.checkpoints:
        return
    averaging = {run.condition: None for run in study.runs.values() if run.training and run.training.averaging}
    if averaging:
        note(
            f"{', '.join(averaging)}: iterates are averaged, but only {', '.join(study.spec.measuring.checkpoints)} weights are "
            "measured; write `checkpoints: [average]` under `measuring`"
        )


class _Limit:
    """After this many seconds the process is asked to stop, as by SIGTERM; where no executor listens, as by Ctrl-C."""

    def __init__(self, seconds: float | None) -> None:
        self.reached = False
        self._timer = None if seconds is None else threading.Timer(seconds, self._end)

    def _end(self) -> None:
        self.reached = True
        os.kill(os.getpid(), signal.SIGTERM)

    def __enter__(self) -> _Limit:
        if self._timer:
            self._before = signal.signal(signal.SIGTERM, signal.default_int_handler)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer:
            self._timer.cancel()
            signal.signal(signal.SIGTERM, self._before)


def _executor(study: Study, how: HowToRun) -> Executor:
    from dataclasses import fields

    from landscope.cli.sources import parsed_options
    from landscope.core.errors import UnknownNameError
    from landscope.studies.executors import EXECUTORS
    from landscope.studies.work.run import run_in_folder

    kind = EXECUTORS[how.executor]
    known = [field.name for field in fields(kind) if field.name not in ("store", "work", "retry_failed")]
    given = parsed_options(how.executor_options)
    for key in given:
        if key not in known:
            raise UnknownNameError.among(f"option of the executor {how.executor}", key, known)
    return kind(study.store, run_in_folder, retry_failed=how.retry_failed, **given)  # type: ignore[arg-type]


def _pace(study: Study, statuses: Mapping[str, RunStatus], jobs: Sequence[Job]) -> Pace:
    """Estimates the time left while jobs run, from those that are done."""
    from landscope.studies.forecast import Pace, expected_from_records
    from landscope.studies.slices import kind_of

    kinds = {job.key: kind_of(study.runs[job.key]) for job in jobs}
    known = expected_from_records(study, statuses)
    return Pace(kinds, {key: seconds for key, seconds in known.items() if key in kinds})


def _expect_siblings(study: Study, key: str, pace: Pace) -> None:
    """Of a run with figures: how long those without will take, that would otherwise be expected to take as long."""
    from landscope.studies.forecast import kind_without_figures, seconds_without_figures
    from landscope.studies.slices import kind_of

    run = study.runs[key]
    if (plain := kind_without_figures(run)) != kind_of(run):
        for _, record in study.store.records([key]):
            pace.expect(plain, seconds_without_figures(record))


def _event_printer(
    study: Study, before: Mapping[str, RunStatus], settled: Collection[str], pace: Pace
) -> Callable[[Event], None]:
    """Print a line for each event of a run, with what is left; `settled` runs have none, because they were done before."""
    from landscope.studies.store import RunState

    total, done, stopping = len(study.runs), len(settled), False

    def print_event(event: Event) -> None:
        nonlocal done, stopping
        if event.kind == "stopping":
            if not stopping:
                note("stopping at the next checkpoint of each run; Ctrl-C again ends them at once")
            stopping = True
            return
        failed = before[event.key].state is RunState.FAILED  # and is left at that
        done += event.kind == "finished" or (event.kind == "skipped" and not failed)
        if event.kind == "started":
            pace.started(event.key)
        elif event.kind == "finished":
            attempt = study.store.run(event.key).latest()  # begins where its worker has started
            pace.ended(event.key, None if attempt is None else max(0.0, time.time() - attempt.since))
            _expect_siblings(study, event.key, pace)
        elif event.kind != "retried":
            pace.ended(event.key)
        run = study.runs[event.key]
        about = f": {event.detail}" if event.detail and event.kind != "stopped" else ""
        left = pace.left() if event.kind == "finished" else None
        about_so = "more than" if pace.at_least else "about"
        more = f"; {about_so} {duration(left)} left" if left and left >= 1 else ""
        kind = "interrupted" if event.kind == "stopped" else event.kind
        if event.kind != "skipped" or event.detail != "done before":
            note(f"[{done}/{total}] {kind} {run.condition} · seed {run.seed} ({event.key}){about}{more}")

    return print_event


def _pool_event_printer(pools: Sequence[Job]) -> Callable[[Event], None]:
    """Print a line for each pool that starts or ends; members of a pool that fails train separately."""
    from landscope.studies.work.pools import members_of

    sizes = {job.key: len(members_of(job.spec)) for job in pools}

    def print_event(event: Event) -> None:
        about = f": {event.detail}" if event.detail else ""
        if event.kind != "skipped":
            note(f"{event.kind} training {sizes[event.key]} runs together ({event.key}){about}")

    return print_event
