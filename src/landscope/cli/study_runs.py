"""Have the runs of a study done, telling what happens; Ctrl-C and a time limit leave it resumable."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from landscope.cli.failures import StoppedError
from landscope.cli.output import console, note, print_json, table
from landscope.core.text import counted, duration

if TYPE_CHECKING:
    from rich.table import Table

    from landscope.studies.executors.base import Event, Executor, Job, Summary
    from landscope.studies.store import RunStatus
    from landscope.studies.study import Study

__all__ = [
    "ExecutorName",
    "ExecutorOption",
    "ExecutorOptions",
    "Gpus",
    "Only",
    "Pool",
    "RetryFailed",
    "TimeLimit",
    "do_runs",
    "foretell",
    "plain_statuses",
    "reports_are_light",
    "show",
    "status_table",
    "write",
]


ExecutorName = Literal["local", "ray", "slurm"]
ExecutorOption = Annotated[ExecutorName, typer.Option("--executor", help="Who does the runs.")]
ExecutorOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--executor-option",
        "-e",
        metavar="KEY=VALUE",
        help="A setting of the executor: workers=4, per_gpu=2, mps=true (local), address=auto (ray), minutes=120 (slurm); may be "
        "repeated.",
        show_default=False,
    ),
]
Gpus = Annotated[
    int | None,
    typer.Option(
        min=0,
        metavar="N",
        help="Graphics cards of each run.  [default: 1 where this machine has one, otherwise 0]",
        show_default=False,
    ),
]
Pool = Annotated[
    bool | None,
    typer.Option(
        "--pool/--no-pool",
        help="Train runs that differ in seeds and numbers together, as one program, where that is faster; each is then "
        "measured alone.",
        show_default=False,
    ),
]
Only = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=VALUE",
        help="Only runs with this level of an axis, this seed or this condition; may be repeated.",
        show_default=False,
    ),
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Try runs that failed again.")]
TimeLimit = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS", min=0, help="Stop in order after so long; the same command goes on.", show_default=False
    ),
]


def do_runs(
    made: Study,
    folder: Path,
    executor: ExecutorName,
    executor_options: Sequence[str] | None,
    retry_failed: bool,
    time_limit: float | None,
    gpus: int | None,
    pool: bool | None,
    only: Sequence[str] | None = None,
) -> Summary:
    """Do the runs of a study, or some of them, telling what happens; Ctrl-C and a time limit leave it resumable."""
    import torch

    from landscope.probe.totals import checked_seconds
    from landscope.studies.executors.base import Resources
    from landscope.studies.grid import chosen
    from landscope.studies.work.pools import members_of

    time_limit = checked_seconds("--time-limit", time_limit)
    keys = chosen(made.runs, only or ())
    needs = Resources(gpus=int(torch.cuda.is_available()) if gpus is None else gpus)
    worker = _executor(made, executor, retry_failed, executor_options)
    made.save(folder)
    start = time.monotonic()
    before = made.progress()
    some = f", {len(keys)} asked for" if len(keys) < before.total else ""
    note(f"{made.spec.name}: {counted(before.total, 'run')}{some}, {before.done} done before; in {folder}")
    _warn_of_averages(made)
    limit = _Limit(time_limit)
    try:
        with limit:
            if pool and (pools := [job for job in made.pools(needs) if keys.issuperset(members_of(job.spec))]):
                worker.run(pools, on_event=_tell_of_pools(pools))
            summary = worker.run([job for job in made.jobs(needs) if job.key in keys], on_event=_tell(made))
    except KeyboardInterrupt:
        _say_where(made, folder)
        if limit.reached:
            raise StoppedError(
                f"the time limit of {duration(time_limit or 0)} was reached; the same command goes on"
            ) from None
        raise
    made.store.check_there()
    note(f"{counted(len(summary.finished), 'run')} finished in {duration(time.monotonic() - start)}")
    return summary


def _warn_of_averages(made: Study) -> None:
    """Averaged weights that nobody asks for are no error, and hardly ever meant."""
    if "average" in made.spec.measuring.checkpoints:
        return
    averaging = {run.condition: None for run in made.runs.values() if run.training and run.training.averaging}
    if averaging:
        note(
            f"{', '.join(averaging)}: iterates are averaged, but measured are {', '.join(made.spec.measuring.checkpoints)}; "
            "say `checkpoints: [average]` under `measuring`"
        )


class _Limit:
    """After so many seconds this process is asked to stop, as by SIGTERM; where no executor hears it, as by Ctrl-C."""

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


def _executor(made: Study, name: ExecutorName, retry_failed: bool, options: Sequence[str] | None) -> Executor:
    from dataclasses import fields

    from landscope.cli.sources import parsed_options
    from landscope.core.errors import UnknownNameError
    from landscope.studies.executors import EXECUTORS
    from landscope.studies.study import WORK

    kind = EXECUTORS[name]
    known = [field.name for field in fields(kind) if field.name not in ("store", "work", "retry_failed")]
    given = parsed_options(options)
    for key in given:
        if key not in known:
            raise UnknownNameError.among(f"option of the executor {name}", key, known)
    return kind(made.store, WORK, retry_failed=retry_failed, **given)  # type: ignore[arg-type]


def _tell(made: Study) -> Callable[[Event], None]:
    """A line for each thing that happens to a run."""
    total, done = len(made.runs), 0

    def tell(event: Event) -> None:
        nonlocal done
        done += event.kind in ("finished", "skipped")
        run = made.runs[event.key]
        about = f": {event.detail}" if event.detail else ""
        if event.kind != "skipped" or event.detail != "done before":
            note(f"[{done}/{total}] {event.kind} {run.condition} · seed {run.seed} ({event.key}){about}")

    return tell


def _tell_of_pools(pools: Sequence[Job]) -> Callable[[Event], None]:
    """A line for each pool that begins or ends; members of one that fails train by themselves."""
    from landscope.studies.work.pools import members_of

    sizes = {job.key: len(members_of(job.spec)) for job in pools}

    def tell(event: Event) -> None:
        about = f": {event.detail}" if event.detail else ""
        if event.kind != "skipped":
            note(f"{event.kind} training {sizes[event.key]} runs together ({event.key}){about}")

    return tell


def _say_where(made: Study, folder: Path) -> None:
    progress = made.progress()
    note(f"{progress.done} of {progress.total} runs are done; the rest goes on from its checkpoints ({folder})")


# What there is to see of a study: its runs and where they stand, how long they will take, what became of them, its report.


MOST_ROWS = 60


def reports_are_light() -> bool:
    """Whether reports are written without script, for want of Plotly; told before hours of work, not after them."""
    if find_spec("plotly") is not None:
        return False
    note(
        "plotly is not installed: reports are written without script. For all of it run: pip install 'landscope[report]'"
    )
    return True


def show(made: Study, folder: Path, summary: Summary, with_report: bool, as_json: bool, *, light: bool = False) -> None:
    """What became of the runs, and the report; an error where a run failed."""
    from landscope.studies.report_mark import has_mark, report_mark
    from landscope.studies.store import RunState

    statuses = made.statuses() if with_report or not as_json else {}
    page, drawn = None, list[Path]()
    if with_report and any(status.state is RunState.DONE for status in statuses.values()):
        page = folder / "report.html"
        if made.spec.figures or not has_mark(page, report_mark(made, statuses, light=light)):
            page, drawn = write(made, page, made.spec.figures, statuses, light=light)
    if as_json:
        print_json(_summary(made, summary, folder, page) | {"figures": drawn})
    else:
        console().print(status_table(made, statuses))
        if page is not None:
            typer.echo(f"report: {page}")
        if drawn:
            typer.echo(f"figures: {folder / 'figures'}")
    summary.check()


def _summary(made: Study, summary: Summary, folder: Path, page: Path | None) -> dict[str, object]:
    return {
        "study": made.spec.name,
        "folder": folder,
        "finished": summary.finished,
        "skipped": summary.skipped,
        "failed": summary.failed,
        "report": page,
    }


def foretell(made: Study, as_json: bool) -> None:
    """The runs, with an estimate of time, and what was left unchecked: nothing that the spec names is imported or called."""
    from landscope.studies.inputs import functions_of
    from landscope.studies.study import forecast

    told = forecast(made)
    unchecked = functions_of(made)
    if unchecked:
        note(
            f"a dry run neither imports nor calls {', '.join(f'{name} ({what})' for name, what in unchecked.items())}; running "
            "the study does. Not checked: whether they are there, take these options and return what is needed, and how long "
            "their runs take. The keys of their runs, and so their states, are right if each is written in the module named"
        )
    states = made.statuses()
    if as_json:
        rows = [
            {
                "run": key,
                "condition": r.condition,
                "seed": r.seed,
                "state": states[key].state.value,
                "training_seconds": told.training[key],
            }
            for key, r in made.runs.items()
        ]
        times = {"measuring_seconds": told.measuring, "total_seconds": told.total}
        print_json({"runs": rows, **times, "not_checked": list(unchecked)})
        return
    shown = table("run", "condition", "seed", "state", "training", right=["seed", "training"])
    for key, r in made.runs.items():
        seconds = told.training[key]
        time_told = "not known" if seconds is None else duration(seconds)
        shown.add_row(key, r.condition, str(r.seed), states[key].state.value, time_told)
    console().print(shown)
    each = (
        "not known before a run is done (or set measuring.seconds)"
        if told.measuring is None
        else f"about {duration(told.measuring)} per run"
    )
    timed = len(told.known)
    some = "" if timed == len(made.runs) else f" for the {timed} whose training could be timed"
    total = f"one at a time about {duration(told.total)}{some}" if timed else "training not timed"
    typer.echo(f"{counted(len(made.runs), 'run')}, {total}; measuring {each}.")


def plain_statuses(made: Study) -> list[dict[str, object]]:
    """Where each run stands, in the types of JSON."""
    return [
        {
            "run": key,
            "condition": made.runs[key].condition,
            "seed": made.runs[key].seed,
            "state": found.state.value,
            "attempts": found.attempts,
            "error": found.error,
        }
        for key, found in made.statuses().items()
    ]


def status_table(made: Study, statuses: Mapping[str, RunStatus]) -> Table:
    """Where each run stands, those that are not done first."""
    from landscope.studies.store import RunState

    progress = made.progress(statuses)
    counts = ", ".join(f"{count} {state.value}" for state, count in progress.by_state.items())
    left = f"; about {duration(progress.seconds_left)} of work left" if progress.seconds_left else ""
    shown = table(
        "run",
        "condition",
        "seed",
        "state",
        "since",
        "by",
        "error",
        right=["seed"],
        title=f"{made.spec.name}: {counts}{left}",
    )
    styles = {RunState.DONE: "green", RunState.FAILED: "red", RunState.RUNNING: "bold", RunState.DAMAGED: "red"}
    order = sorted(statuses.items(), key=lambda item: item[1].state is RunState.DONE)
    for key, found in order[:MOST_ROWS]:
        r = made.runs[key]
        since = duration(time.time() - found.since) if found.since and found.state is RunState.RUNNING else ""
        owner = str(found.owner) if found.owner and found.state is RunState.RUNNING else ""
        shown.add_row(
            key,
            r.condition,
            str(r.seed),
            found.state.value,
            since,
            owner,
            found.error,
            style=styles.get(found.state, ""),
        )
    if len(order) > MOST_ROWS:
        shown.add_row("…", f"and {len(order) - MOST_ROWS} more (--json shows all)", "", "", "", "", "")
    return shown


def write(
    made: Study, path: Path, formats: Sequence[str], statuses: Mapping[str, RunStatus], *, light: bool = False
) -> tuple[Path, list[Path]]:
    """The report of what is done so far, and figures in some formats in a folder beside it."""
    from landscope.report.write import write_study_figures, write_study_report

    records = made.records()
    page = write_study_report(made, path, records, statuses, static=light)
    drawn = write_study_figures(made, page.parent / "figures", formats, records) if formats else []
    return page, drawn
