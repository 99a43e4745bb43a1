"""Run a study and report progress; show its runs, their states, how long they will take, and its report."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from landscope.cli.failures import StoppedError
from landscope.cli.options import ExecutorName
from landscope.cli.output import console, note, print_json, table
from landscope.core.text import counted, duration

if TYPE_CHECKING:
    from rich.table import Table

    from landscope.studies.executors.base import Event, Executor, Job, Summary
    from landscope.studies.store import RunStatus
    from landscope.studies.study import Study

__all__ = [
    "HowToRun",
    "StudyOutcome",
    "plain_statuses",
    "reports_without_script",
    "run_study",
    "show_forecast",
    "show_outcome",
    "status_table",
    "time_limit_reached",
    "write_report",
]


@dataclass(frozen=True)
class HowToRun:
    """What the options of a command say about running: where, with what, which runs, and again those that failed."""

    executor: ExecutorName = "local"
    executor_options: Sequence[str] = ()
    gpus: int | None = None
    pool: bool | None = None
    only: Sequence[str] = ()
    retry_failed: bool = False


@dataclass(frozen=True)
class StudyOutcome:
    """What became of the runs that were asked for, and the state of every run of the study afterwards."""

    summary: Summary
    statuses: Mapping[str, RunStatus]


def run_study(study: Study, folder: Path, how: HowToRun, time_limit: float | None) -> StudyOutcome:
    """Run a study, or some of its runs, and report progress; Ctrl-C and a time limit leave it resumable."""
    import torch

    from landscope.probe.totals import checked_seconds
    from landscope.studies.executors.base import Resources, Summary
    from landscope.studies.grid import select_runs
    from landscope.studies.store import RunState
    from landscope.studies.work.pools import members_of

    time_limit = checked_seconds("--time-limit", time_limit)
    keys = select_runs(study.runs, how.only)
    needs = Resources(gpus=int(torch.cuda.is_available()) if how.gpus is None else how.gpus)
    executor = _executor(study, how)
    study.save(folder)
    start = time.monotonic()
    statuses = study.statuses()
    total, done = len(study.runs), sum(status.state is RunState.DONE for status in statuses.values())
    some = f", {len(keys)} asked for" if len(keys) < total else ""
    note(f"{study.spec.name}: {counted(total, 'run')}{some}, {done} done before; in {folder}")
    _warn_of_averages(study)
    settled = {key for key, status in statuses.items() if status.settled and key in keys}
    summary = Summary()
    limit = _Limit(time_limit)
    try:
        with limit:
            jobs = [job for job in study.jobs(needs) if job.key in keys - settled]
            if how.pool and jobs:
                pools = [job for job in study.pools(needs) if keys.issuperset(members_of(job.spec))]
                executor.run(pools, on_event=_pool_event_printer(pools))
            if jobs:
                summary = executor.run(jobs, on_event=_event_printer(study, len(settled)))
    except KeyboardInterrupt:
        progress = study.progress()
        note(f"{progress.done} of {progress.total} runs are done; the others resume from their checkpoints ({folder})")
        if limit.reached:
            raise time_limit_reached(time_limit) from None
        raise
    study.store.check_there()
    summary.skipped += [key for key in study.runs if key in settled]
    note(f"{counted(len(summary.finished), 'run')} finished in {duration(time.monotonic() - start)}")
    return StudyOutcome(summary, study.statuses() if jobs else statuses)


def time_limit_reached(seconds: float | None) -> StoppedError:
    """The error that ends a command whose time is over."""
    return StoppedError(f"the time limit of {duration(seconds or 0)} was reached; run the same command to resume")


def _warn_of_averages(study: Study) -> None:
    """Averaged weights that nobody asks for are not an error, and hardly ever meant."""
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


def _event_printer(study: Study, done: int) -> Callable[[Event], None]:
    """Print a line for each event of a run; `done` runs have none, because they were done before."""
    total = len(study.runs)

    def print_event(event: Event) -> None:
        nonlocal done
        done += event.kind in ("finished", "skipped")
        run = study.runs[event.key]
        about = f": {event.detail}" if event.detail else ""
        if event.kind != "skipped" or event.detail != "done before":
            note(f"[{done}/{total}] {event.kind} {run.condition} · seed {run.seed} ({event.key}){about}")

    return print_event


def _pool_event_printer(pools: Sequence[Job]) -> Callable[[Event], None]:
    """Print a line for each pool that starts or ends; members of one that fails train by themselves."""
    from landscope.studies.work.pools import members_of

    sizes = {job.key: len(members_of(job.spec)) for job in pools}

    def print_event(event: Event) -> None:
        about = f": {event.detail}" if event.detail else ""
        if event.kind != "skipped":
            note(f"{event.kind} training {sizes[event.key]} runs together ({event.key}){about}")

    return print_event


# What there is to see of a study.


MOST_ROWS = 60


def reports_without_script() -> bool:
    """Whether reports are static because Plotly is missing; noted before hours of work, not after them."""
    if find_spec("plotly") is not None:
        return False
    note(
        "plotly is not installed: reports are written without script. For interactive ones: pip install 'landscope[report]'"
    )
    return True


def show_outcome(
    study: Study, folder: Path, outcome: StudyOutcome, *, with_report: bool, as_json: bool, light: bool
) -> None:
    """Show what became of the runs, and write the report unless it is up to date; raise where a run failed."""
    from landscope.studies.store import RunState
    from landscope.studies.study import has_mark, report_mark

    summary, statuses = outcome.summary, outcome.statuses
    page, drawn = None, list[Path]()
    if with_report and any(status.state is RunState.DONE for status in statuses.values()):
        page = folder / "report.html"
        if study.spec.figures or not has_mark(page, report_mark(study, statuses, light=light)):
            page, drawn = write_report(study, page, study.spec.figures, statuses, light=light)
    if as_json:
        found = {"finished": summary.finished, "skipped": summary.skipped, "failed": summary.failed}
        print_json({"study": study.spec.name, "folder": folder, **found, "report": page, "figures": drawn})
    else:
        console().print(status_table(study, statuses))
        if page is not None:
            typer.echo(f"report: {page}")
        if drawn:
            typer.echo(f"figures: {folder / 'figures'}")
    summary.check()


def show_forecast(study: Study, as_json: bool) -> None:
    """Show the runs with an estimate of time, and what was not checked: nothing that the spec names is imported or called."""
    from landscope.studies.preflight import forecast, functions_of

    statuses = study.statuses()
    expected = forecast(study, statuses)
    unchecked = functions_of(study)
    if unchecked:
        note(
            f"a dry run neither imports nor calls {', '.join(f'{name} ({what})' for name, what in unchecked.items())}; running "
            "the study does. Not checked: whether they exist, take these options and return what is needed, and how long "
            "their runs take. The keys of their runs, and so their states, are right if each is defined in the module named"
        )
    if as_json:
        rows = [
            {
                "run": key,
                "condition": run.condition,
                "seed": run.seed,
                "state": statuses[key].state.value,
                "training_seconds": expected.training[key],
            }
            for key, run in study.runs.items()
        ]
        times = {"measuring_seconds": expected.measuring, "total_seconds": expected.total}
        print_json({"runs": rows, **times, "not_checked": list(unchecked)})
        return
    shown = table("run", "condition", "seed", "state", "training", right=["seed", "training"])
    for key, run in islice(study.runs.items(), MOST_ROWS):
        seconds = expected.training[key]
        training = "not known" if seconds is None else duration(seconds)
        shown.add_row(key, run.condition, str(run.seed), statuses[key].state.value, training)
    _cut(shown, len(study.runs))
    console().print(shown)
    each = (
        "not known before a run is done (or set measuring.seconds)"
        if expected.measuring is None
        else f"about {duration(expected.measuring)} per run"
    )
    timed = len(expected.known)
    some = "" if timed == len(study.runs) else f" for the {timed} whose training could be timed"
    total = f"one at a time about {duration(expected.total)}{some}" if timed else "training not timed"
    typer.echo(f"{counted(len(study.runs), 'run')}, {total}; measuring {each}.")


def plain_statuses(study: Study) -> list[dict[str, object]]:
    """The state of each run, in the types of JSON."""
    return [
        {
            "run": key,
            "condition": study.runs[key].condition,
            "seed": study.runs[key].seed,
            "state": found.state.value,
            "attempts": found.attempts,
            "error": found.error,
        }
        for key, found in study.statuses().items()
    ]


def status_table(study: Study, statuses: Mapping[str, RunStatus]) -> Table:
    """The state of each run, those that are not done first."""
    from landscope.studies.store import RunState

    progress = study.progress(statuses)
    counts = ", ".join(f"{count} {state.value}" for state, count in progress.by_state.items())
    left = f"; about {duration(progress.seconds_left)} of work left" if progress.seconds_left else ""
    columns = ("run", "condition", "seed", "state", "since", "by", "error")
    shown = table(*columns, right=["seed"], title=f"{study.spec.name}: {counts}{left}")
    styles = {RunState.DONE: "green", RunState.FAILED: "red", RunState.RUNNING: "bold", RunState.DAMAGED: "red"}
    order = sorted(statuses.items(), key=lambda item: item[1].state is RunState.DONE)
    for key, found in order[:MOST_ROWS]:
        run = study.runs[key]
        running = found.state is RunState.RUNNING
        since = duration(time.time() - found.since) if found.since and running else ""
        owner = str(found.owner) if found.owner and running else ""
        cells = (key, run.condition, str(run.seed), found.state.value, since, owner, found.error)
        shown.add_row(*cells, style=styles.get(found.state, ""))
    _cut(shown, len(order))
    return shown


def _cut(shown: Table, count: int) -> None:
    """The last row of a table that shows some of many runs."""
    if count > MOST_ROWS:
        shown.add_row("…", f"and {count - MOST_ROWS:,} more (--json shows all)")


def write_report(
    study: Study, path: Path, formats: Sequence[str], statuses: Mapping[str, RunStatus], *, light: bool
) -> tuple[Path, list[Path]]:
    """Write the report of what is done so far, and figures in some formats to a folder beside it."""
    from landscope.report.write import write_study_figures, write_study_report

    records = study.records()
    page = write_study_report(study, path, records, statuses, static=light)
    drawn = write_study_figures(study, page.parent / "figures", formats, records) if formats else []
    return page, drawn
