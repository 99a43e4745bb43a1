"""`landscope study`: run a study, see how far it is, measure models that exist, write the report."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from landscope.cli.failures import CommandError
from landscope.cli.options import DataName, DataOptions, Json, Model, ModelOptions, PixelScale, Root, named_measures
from landscope.cli.output import command_group, console, print_json, target, target_folder, writable_folder
from landscope.cli.study_runs import (
    ExecutorOption,
    ExecutorOptions,
    Gpus,
    Only,
    Pool,
    RetryFailed,
    TimeLimit,
    do_runs,
    foretell,
    plain_statuses,
    reports_are_light,
    show,
    status_table,
    write,
)
from landscope.core.text import examples

if TYPE_CHECKING:
    from landscope.studies.study import Study

__all__ = ["REPORT_EXAMPLES", "app", "report"]

Into = Annotated[
    Path | None,
    typer.Option(
        "--into", metavar="FOLDER", help="Where runs and report go.  [default: studies/NAME]", show_default=False
    ),
]
StudyFolder = Annotated[Path, typer.Argument(metavar="STUDY", help="The folder of a study.", show_default=False)]

app = command_group(
    "Train or take a pool of models, measure them all, and report what goes with what.",
    "landscope study run study.yaml --dry-run",
    "landscope study run study.yaml",
    "landscope study status studies/regularisers",
    "landscope study measure nets/*.safetensors --model resnet20 --data cifar10",
    "landscope study report studies/regularisers --open",
)


@app.command(
    "run",
    epilog=examples(
        "landscope study run study.yaml --dry-run            # which runs, and about how long",
        "landscope study run study.yaml                      # stopped or killed: the same command goes on",
        "landscope study run study.yaml --executor ray -e address=auto",
        "landscope study run study.yaml --executor slurm -e minutes=120",
        "landscope study run study.yaml --time-limit 3600 --only seed=0   # one seed of every condition first",
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
    gpus: Gpus = None,
    pool: Pool = None,
    only: Only = None,
    retry_failed: RetryFailed = False,
    time_limit: TimeLimit = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="List the runs with an estimate of time; do nothing, and call nothing that SPEC names."
        ),
    ] = False,
    with_report: Annotated[bool, typer.Option("--report/--no-report", help="Write the report at the end.")] = True,
    as_json: Json = False,
) -> None:
    """Run a study: what is done is skipped, what is half done goes on.

    The whole spec is checked before anything starts. Stop it with Ctrl-C, kill it, pull the plug: the same command goes on.
    """
    from landscope.specs.documents import read_document
    from landscope.specs.schema import build
    from landscope.studies.grid import chosen
    from landscope.studies.preflight import check_inputs
    from landscope.studies.spec import StudySpec
    from landscope.studies.study import Study

    document = read_document(spec)
    checked = build(StudySpec, document.content, document.place)
    folder = target_folder(into or Path("studies") / checked.name)
    made = Study(checked, target_folder(store or folder), document.place, imports=not dry_run)
    asked = chosen(made.runs, only or ())
    if dry_run:
        made.runs = {key: one for key, one in made.runs.items() if key in asked}
        foretell(made, as_json)
        return
    writable_folder(folder)
    writable_folder(store or folder)
    light = with_report and reports_are_light()
    check_inputs(made, asked, set())
    summary, statuses = do_runs(made, folder, executor, executor_option, retry_failed, time_limit, gpus, pool, only)
    show(made, folder, summary, statuses, with_report, as_json, light=light)


def _opened(folder: Path) -> Study:
    """The study in a folder; a shared store that is not mounted must not look like one in which nothing was done."""
    from landscope.studies.study import Study

    made = Study.open(folder)
    if not made.store.root.is_dir():
        raise CommandError(
            f"{made.store.root}, where the runs of {folder} are, is not there. Mount it or put it back, or run the study again"
        )
    return made


@app.command(
    "status", epilog=examples("landscope study status studies/regularisers", "landscope study status FOLDER --watch")
)
def status(
    folder: StudyFolder,
    watch: Annotated[bool, typer.Option("--watch", help="Show it again every two seconds until all is done.")] = False,
    as_json: Json = False,
) -> None:
    """Show which runs are done, running, interrupted, failed or waiting."""
    made = _opened(folder)
    if as_json:
        print_json(plain_statuses(made))
        return
    if not watch:
        console().print(status_table(made, made.statuses()))
        return
    from rich.live import Live

    from landscope.studies.store import RunState

    made.store.check_there()
    statuses = made.statuses()
    with Live(status_table(made, statuses), console=console(), refresh_per_second=1) as live:
        while any(status.state is not RunState.DONE for status in statuses.values()):
            time.sleep(2)
            made.store.check_there()
            statuses = made.statuses()
            live.update(status_table(made, statuses))


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
    gpus: Gpus = None,
    retry_failed: RetryFailed = False,
    time_limit: TimeLimit = None,
    as_json: Json = False,
) -> None:
    """Measure models that you already have, and report on them like on any study."""
    from landscope.cli.sources import parsed_options
    from landscope.specs.names import is_import
    from landscope.studies.preflight import check_inputs
    from landscope.studies.study import Study

    for file in checkpoints:
        if not file.is_file():
            raise CommandError(f"{file}: no such file; a checkpoint was expected (safetensors or torch.save)")
    wanted: object = "all" if measures == "all" else named_measures(measures)
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
    folder = writable_folder(into or Path("studies") / name)
    made = Study.of(written, folder)
    light = reports_are_light()
    check_inputs(made, made.runs, set())
    summary, statuses = do_runs(made, folder, executor, executor_option, retry_failed, time_limit, gpus, pool=False)
    show(made, folder, summary, statuses, True, as_json, light=light)


REPORT_EXAMPLES = examples(
    "landscope report studies/regularisers --open",
    "landscope report studies/regularisers --output page.html --figures png,pdf",
    "landscope report studies/regularisers --light --output small.html",
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
    light: Annotated[
        bool, typer.Option("--light", help="Without script: figures as they stand, a tenth of the size, no Plotly.")
    ] = False,
    figures: Annotated[
        str | None,
        typer.Option(
            metavar="png,svg,pdf",
            help="Write figures for papers beside it, too.  [default: those that the study asks for]",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the report of a study: one HTML file that needs no network."""
    from landscope.studies.store import RunState

    made = _opened(folder)
    statuses = made.statuses()
    if all(status.state is not RunState.DONE for status in statuses.values()):
        raise CommandError(f"no run of {folder} is done yet; see: landscope study status {folder}")
    formats = figures.split(",") if figures else made.spec.figures
    output = output or folder / "report.html"
    target(output)
    page, drawn = write(made, output, formats, statuses, light=light)
    if as_json:
        print_json({"report": page, "figures": drawn})
    else:
        typer.echo(f"report: {page}")
        for path in drawn:
            typer.echo(f"figure: {path}")
    if show:
        typer.launch(str(page))


app.command("report", epilog=REPORT_EXAMPLES)(report)
