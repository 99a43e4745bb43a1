"""`landscope study`: run a study, see how far it is, measure models that exist, write the report."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from landscope.cli.failures import CommandError, StoppedError
from landscope.cli.output import console, note, print_json, table
from landscope.cli.parameters import DataName, DataOptions, Json, Model, ModelOptions, PixelScale, Root
from landscope.cli.text import duration, examples

if TYPE_CHECKING:
    from rich.table import Table

    from landscope.studies.executors.base import Event, Executor, Summary
    from landscope.studies.study import Study

__all__ = ["REPORT_EXAMPLES", "app", "do_runs", "report"]

ExecutorName = Literal["local", "ray", "slurm"]
Into = Annotated[
    Path | None,
    typer.Option(
        "--into", metavar="FOLDER", help="Where runs and report go.  [default: studies/NAME]", show_default=False
    ),
]
ExecutorOption = Annotated[ExecutorName, typer.Option("--executor", help="Who does the runs.")]
ExecutorOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--executor-option",
        "-e",
        metavar="KEY=VALUE",
        help="A setting of the executor: workers=4 (local), address=auto (ray), minutes=120 (slurm); may be repeated.",
        show_default=False,
    ),
]
RetryFailed = Annotated[bool, typer.Option("--retry-failed", help="Try runs that failed again.")]
TimeLimit = Annotated[
    float | None,
    typer.Option(metavar="SECONDS", help="Stop in order after so long; the same command goes on.", show_default=False),
]
StudyFolder = Annotated[Path, typer.Argument(metavar="STUDY", help="The folder of a study.", show_default=False)]

app = typer.Typer(
    help="Train or take a pool of models, measure them all, and report what goes with what.",
    rich_markup_mode=None,
    epilog=examples(
        "landscope study run study.yaml --dry-run",
        "landscope study run study.yaml",
        "landscope study status studies/regularisers",
        "landscope study measure nets/*.safetensors --model resnet20 --data cifar10",
        "landscope study report studies/regularisers --open",
    ),
)


@app.callback(invoke_without_command=True)
def study(context: typer.Context) -> None:
    """Show the help where no command is given."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@app.command(
    "run",
    epilog=examples(
        "landscope study run study.yaml --dry-run            # which runs, and about how long",
        "landscope study run study.yaml                      # stopped or killed: the same command goes on",
        "landscope study run study.yaml --executor ray -e address=auto",
        "landscope study run study.yaml --executor slurm -e minutes=120",
        "landscope study run study.yaml --time-limit 3600",
    ),
)
def run(
    spec: Annotated[Path, typer.Argument(metavar="SPEC", help="A study in YAML, TOML or JSON.", show_default=False)],
    into: Into = None,
    store: Annotated[
        Path | None,
        typer.Option(
            help="A folder of runs shared with other studies.  [default: the study's own]", show_default=False
        ),
    ] = None,
    executor: ExecutorOption = "local",
    executor_option: ExecutorOptions = None,
    retry_failed: RetryFailed = False,
    time_limit: TimeLimit = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="List the runs with an estimate of time; do nothing.")
    ] = False,
    with_report: Annotated[bool, typer.Option("--report/--no-report", help="Write the report at the end.")] = True,
    as_json: Json = False,
) -> None:
    """Run a study: what is done is skipped, what is half done goes on.

    The whole spec is checked before anything starts. Stop it with Ctrl-C, kill it, pull the plug: the same command goes on.
    """
    from landscope.core.documents import read_document
    from landscope.core.schema import build
    from landscope.studies.spec import StudySpec
    from landscope.studies.study import Study

    document = read_document(spec)
    checked = build(StudySpec, document.content, document.place)
    folder = into or Path("studies") / checked.name
    made = Study(checked, store or folder, document.place)
    if dry_run:
        _foretell(made, as_json)
        return
    summary = do_runs(made, folder, executor, executor_option, retry_failed, time_limit)
    show(made, folder, summary, with_report, as_json)


def do_runs(
    made: Study,
    folder: Path,
    executor: ExecutorName,
    executor_options: Sequence[str] | None,
    retry_failed: bool,
    time_limit: float | None,
) -> Summary:
    """Do the runs of a study, telling what happens; Ctrl-C and a time limit leave it resumable."""
    from landscope.studies.executors.base import Resources

    worker = _executor(made, executor, retry_failed, executor_options)
    made.save(folder)
    start = time.monotonic()
    before = made.progress()
    note(f"{made.spec.name}: {before.total} runs, {before.done} done before; in {folder}")
    with _Limit(time_limit) as limit:
        try:
            summary = worker.run(made.jobs(Resources()), on_event=_tell(made))
        except KeyboardInterrupt:
            _say_where(made, folder)
            if limit.reached:
                raise StoppedError(
                    f"the time limit of {duration(time_limit or 0)} was reached; the same command goes on"
                ) from None
            raise
    note(f"{len(summary.finished)} runs finished in {duration(time.monotonic() - start)}")
    return summary


def show(made: Study, folder: Path, summary: Summary, with_report: bool, as_json: bool) -> None:
    """What became of the runs, and the report; an error where a run failed."""
    page = write(made, folder / "report.html") if with_report and made.progress().done else None
    if as_json:
        print_json(_summary(made, summary, folder, page))
    else:
        console().print(_status_table(made))
        if page is not None:
            typer.echo(f"report: {page}")
    summary.check()


class _Limit:
    """After so many seconds this process is asked to stop, as by SIGTERM."""

    def __init__(self, seconds: float | None) -> None:
        self.reached = False
        self._timer = None if seconds is None else threading.Timer(seconds, self._end)

    def _end(self) -> None:
        self.reached = True
        os.kill(os.getpid(), signal.SIGTERM)

    def __enter__(self) -> _Limit:
        if self._timer:
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer:
            self._timer.cancel()


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


def _say_where(made: Study, folder: Path) -> None:
    progress = made.progress()
    note(f"{progress.done} of {progress.total} runs are done; the rest goes on from its checkpoints ({folder})")


def _summary(made: Study, summary: Summary, folder: Path, page: Path | None) -> dict[str, object]:
    return {
        "study": made.spec.name,
        "folder": folder,
        "finished": summary.finished,
        "skipped": summary.skipped,
        "failed": summary.failed,
        "report": page,
    }


def _foretell(made: Study, as_json: bool) -> None:
    from landscope.studies.forecast import forecast

    told = forecast(made)
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
        print_json({"runs": rows, "measuring_seconds": told.measuring, "total_seconds": told.total})
        return
    shown = table("run", "condition", "seed", "state", "training", right=["seed", "training"])
    for key, r in made.runs.items():
        shown.add_row(key, r.condition, str(r.seed), states[key].state.value, duration(told.training[key]))
    console().print(shown)
    each = (
        "not known before a run is done (or set measuring.seconds)"
        if told.measuring is None
        else f"about {duration(told.measuring)} per run"
    )
    typer.echo(f"{len(made.runs)} runs, one at a time about {duration(told.total)}; measuring {each}.")


@app.command(
    "status", epilog=examples("landscope study status studies/regularisers", "landscope study status FOLDER --watch")
)
def status(
    folder: StudyFolder,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every two seconds until all is done.")] = False,
    as_json: Json = False,
) -> None:
    """Show which runs are done, running, interrupted, failed or waiting."""
    from landscope.studies.study import Study

    made = Study.open(folder)
    if as_json:
        print_json([_plain_status(made, key) for key in made.runs])
        return
    if not watch:
        console().print(_status_table(made))
        return
    from rich.live import Live

    with Live(_status_table(made), console=console(), refresh_per_second=1) as live:
        while made.progress().done < len(made.runs):
            time.sleep(2)
            live.update(_status_table(made))


def _plain_status(made: Study, key: str) -> dict[str, object]:
    found, r = made.statuses()[key], made.runs[key]
    return {
        "run": key,
        "condition": r.condition,
        "seed": r.seed,
        "state": found.state.value,
        "attempts": found.attempts,
        "error": found.error,
    }


MOST_ROWS = 60


def _status_table(made: Study) -> Table:
    from landscope.studies.store import RunState

    progress = made.progress()
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
    order = sorted(made.statuses().items(), key=lambda item: item[1].state is RunState.DONE)
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


@app.command(
    "measure",
    epilog=examples(
        "landscope study measure nets/*.safetensors --model resnet20 --data cifar10 --samples 2000",
        "landscope study measure a.pt b.pt --model my_package.nets:build -o width=32 --data mnist --into mine",
    ),
)
def measure(
    checkpoints: Annotated[
        list[Path], typer.Argument(metavar="FILES…", help="Weights: safetensors or state dicts.", show_default=False)
    ],
    model: Model,
    data: DataName,
    option: ModelOptions = None,
    data_option: DataOptions = None,
    pixels: PixelScale = "unit",
    root: Root = None,
    measures: Annotated[str, typer.Option(metavar="A,B,C", help="Names from `landscope measures`, or all.")] = "all",
    samples: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="So many training rows, drawn by class.", show_default=False)
    ] = None,
    seconds: Annotated[float | None, typer.Option(help="A budget for each model.", show_default=False)] = None,
    name: Annotated[str, typer.Option(help="Of the study.")] = "checkpoints",
    into: Into = None,
    executor: ExecutorOption = "local",
    executor_option: ExecutorOptions = None,
    retry_failed: RetryFailed = False,
    time_limit: TimeLimit = None,
    as_json: Json = False,
) -> None:
    """Measure models that you already have, and report on them like on any study."""
    from landscope.cli.sources import parsed_options
    from landscope.core.importing import is_import
    from landscope.studies.study import Study

    for file in checkpoints:
        if not file.is_file():
            raise CommandError(f"{file}: no such file; a checkpoint was expected (safetensors or torch.save)")
    wanted: object = "all" if measures == "all" else [word.strip() for word in measures.split(",") if word.strip()]
    given: dict[str, object] = parsed_options(data_option)
    if not is_import(data):
        given |= {"pixels": pixels} | ({"root": str(root)} if root else {})
    written = {
        "name": name,
        "checkpoints": {
            "files": [str(file.resolve()) for file in checkpoints],
            "model": {"name": model, **parsed_options(option)},
            "data": {"name": data, **given},
        },
        "measuring": {
            "splits": {
                "train": {"measures": wanted, "samples": samples},
                "test": {"measures": ["loss", "error", "accuracy", "ece"]},
            },
            "seconds": seconds,
        },
    }
    folder = into or Path("studies") / name
    made = Study.of(written, folder)
    summary = do_runs(made, folder, executor, executor_option, retry_failed, time_limit)
    show(made, folder, summary, True, as_json)


def write(made: Study, path: Path) -> Path:
    """The report of what is done so far."""
    from landscope.report.study import write_study_report

    return write_study_report(made, path)


REPORT_EXAMPLES = examples(
    "landscope report studies/regularisers --open",
    "landscope report studies/regularisers --output page.html --figures png,pdf",
)


def report(
    folder: StudyFolder,
    output: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html", help="Where to write it.  [default: report.html in the study]", show_default=False
        ),
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    figures: Annotated[
        str | None,
        typer.Option(metavar="png,svg,pdf", help="Write static figures for papers beside it, too.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the report of a study: one HTML file that needs no network."""
    from landscope.report.study import write_study_figures
    from landscope.studies.study import Study

    made = Study.open(folder)
    if not made.progress().done:
        raise CommandError(f"no run of {folder} is done yet; see: landscope study status {folder}")
    page = write(made, output or folder / "report.html")
    drawn = write_study_figures(made, page.parent / "figures", figures.split(",")) if figures else []
    if as_json:
        print_json({"report": page, "figures": drawn})
    else:
        typer.echo(f"report: {page}")
        for path in drawn:
            typer.echo(f"figure: {path}")
    if show:
        typer.launch(str(page))


app.command("report", epilog=REPORT_EXAMPLES)(report)
