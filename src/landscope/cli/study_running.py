"""Have the runs of a study done, telling what happens; Ctrl-C and a time limit leave it resumable."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from landscope.cli.failures import StoppedError
from landscope.cli.output import note
from landscope.cli.text import duration
from landscope.core.words import counted

if TYPE_CHECKING:
    from landscope.studies.executors.base import Event, Executor, Job, Summary
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

    from landscope.core.ledger import checked_seconds
    from landscope.studies.choosing import chosen
    from landscope.studies.executors.base import Resources
    from landscope.studies.pooling import members_of

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
    from landscope.studies.pooling import members_of

    sizes = {job.key: len(members_of(job.spec)) for job in pools}

    def tell(event: Event) -> None:
        about = f": {event.detail}" if event.detail else ""
        if event.kind != "skipped":
            note(f"{event.kind} training {sizes[event.key]} runs together ({event.key}){about}")

    return tell


def _say_where(made: Study, folder: Path) -> None:
    progress = made.progress()
    note(f"{progress.done} of {progress.total} runs are done; the rest goes on from its checkpoints ({folder})")
