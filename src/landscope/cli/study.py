"""`landscope study`: run a study, show its progress, measure models that exist, write the report."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from landscope.cli.failures import CommandError
from landscope.cli.options import (
    DataName,
    DataOptions,
    ExecutorOption,
    ExecutorOptions,
    Gpus,
    Json,
    Model,
    ModelOptions,
    Only,
    PixelScale,
    Pool,
    RetryFailed,
    Root,
    TimeLimit,
    named_measures,
)
from landscope.cli.output import command_group, console, print_json, target, target_folder, writable_folder
from landscope.cli.study_runs import (
    HowToRun,
    plain_statuses,
    reports_without_script,
    run_study,
    show_forecast,
    show_outcome,
    status_table,
    write_report,
)
from landscope.core.text import examples

if TYPE_CHECKING:
    from landscope.studies.study import Study

__all__ = ["REPORT_EXAMPLES", "app", "report"]

Into = Annotated[
    Path | None,
    typer.Option(
        "--into", metavar="FOLDER", help="Folder for runs and report.  [default: studies/NAME]", show_default=False
    ),
]
StudyFolder = Annotated[Path, typer.Argument(metavar="STUDY", help="The folder of a study.", show_default=False)]

app = command_group(
    "Train a pool of models or take existing ones, measure them all, and report which measures correlate with which outcomes.",
    "landscope study run study.yaml --dry-run",
    "landscope study run study.yaml",
    "landscope study status studies/regularisers",
    "landscope study measure nets/*.safetensors --model resnet20 --data cifar10",
    "landscope study report studies/regularisers --open",
)


@app.command(
    "run",
    epilog=examples(
        "landscope study run study.yaml --dry-run            # list the runs and estimate the time",
        "landscope study run study.yaml                      # stopped or killed? Run it again to resume",
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
            "--dry-run",
            help="List the runs with an estimate of time; run nothing, and call no function that SPEC names.",
        ),
    ] = False,
    with_report: Annotated[bool, typer.Option("--report/--no-report", help="Write the report at the end.")] = True,
    as_json: Json = False,
) -> None:
    """Run a study, or resume it: finished runs are skipped, interrupted ones resume from their last checkpoint.

    The whole spec is checked before anything starts. If the command is stopped by Ctrl-C, killed, or the power fails, run it
    again to resume.
    """
    from landscope.specs.documents import read_document
    from landscope.specs.schema import parse
    from landscope.studies.grid import select_runs
    from landscope.studies.preflight import check_inputs
    from landscope.studies.spec import StudySpec
    from landscope.studies.study import Study

    document = read_document(spec)
    checked = parse(StudySpec, document.content, document.place)
    folder = target_folder(into or Path("studies") / checked.name)
    study = Study(checked, target_folder(store or folder), document.place, imports=not dry_run)
    asked = select_runs(study.runs, only or ())
    if dry_run:
        study.runs = {key: one for key, one in study.runs.items() if key in asked}
        show_forecast(study, as_json)
        return
    writable_folder(folder)
    writable_folder(store or folder)
    light = with_report and reports_without_script()
    check_inputs(study, asked, set())
    how = HowToRun(executor, executor_option or (), gpus, pool, only or (), retry_failed)
    outcome = run_study(study, folder, how, time_limit)
    show_outcome(study, folder, outcome, with_report=with_report, as_json=as_json, light=light)


def _opened(folder: Path) -> Study:
    """The study in a folder; a shared store that is not mounted must not look like an empty one."""
    from landscope.studies.study import Study

    study = Study.open(folder)
    if not study.store.root.is_dir():
        raise CommandError(
            f"{study.store.root}, where the runs of {folder} are, is not there. Mount it or put it back, or run the study again"
        )
    return study


@app.command(
    "status", epilog=examples("landscope study status studies/regularisers", "landscope study status FOLDER --watch")
)
def status(
    folder: StudyFolder,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every two seconds until every run is done.")] = False,
    as_json: Json = False,
) -> None:
    """Show which runs are done, running, interrupted, failed or waiting."""
    study = _opened(folder)
    if as_json:
        print_json(plain_statuses(study))
        return
    if not watch:
        console().print(status_table(study, study.statuses()))
        return
    from rich.live import Live

    from landscope.studies.store import RunState

    study.store.check_there()
    statuses = study.statuses()
    with Live(status_table(study, statuses), console=console(), refresh_per_second=1) as live:
        while any(status.state is not RunState.DONE for status in statuses.values()):
            time.sleep(2)
            study.store.check_there()
            statuses = study.statuses()
            live.update(status_table(study, statuses))


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
        int | None,
        typer.Option(min=1, metavar="N", help="Use this many training rows, stratified by class.", show_default=False),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Budget in seconds for each model and split.", show_default=False)
    ] = None,
    name: Annotated[str, typer.Option(help="Name of the study.")] = "checkpoints",
    into: Into = None,
    executor: ExecutorOption = "local",
    executor_option: ExecutorOptions = None,
    gpus: Gpus = None,
    retry_failed: RetryFailed = False,
    time_limit: TimeLimit = None,
    as_json: Json = False,
) -> None:
    """Measure models that you already have, and report on them as on any study."""
    from landscope.cli.sources import parsed_options
    from landscope.specs.names import is_import
    from landscope.studies.preflight import check_inputs
    from landscope.studies.study import Study

    for file in checkpoints:
        if not file.is_file():
            raise CommandError(f"{file}: no such file; expected a checkpoint (safetensors or torch.save)")
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
    study = Study.of(written, folder)
    light = reports_without_script()
    check_inputs(study, study.runs, set())
    how = HowToRun(executor, executor_option or (), gpus, pool=False, retry_failed=retry_failed)
    outcome = run_study(study, folder, how, time_limit)
    show_outcome(study, folder, outcome, with_report=True, as_json=as_json, light=light)


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
        bool, typer.Option("--light", help="Write a static page: no script, no Plotly, a tenth of the size.")
    ] = False,
    figures: Annotated[
        str | None,
        typer.Option(
            metavar="png,svg,pdf",
            help="Also write figures for papers beside it.  [default: those that the study asks for]",
            show_default=False,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the report of a study: one HTML file that needs no network."""
    from landscope.studies.store import RunState

    study = _opened(folder)
    statuses = study.statuses()
    if all(status.state is not RunState.DONE for status in statuses.values()):
        raise CommandError(f"no run of {folder} is done yet; see: landscope study status {folder}")
    formats = figures.split(",") if figures else study.spec.figures
    output = output or folder / "report.html"
    target(output)
    page, drawn = write_report(study, output, formats, statuses, light=light)
    if as_json:
        print_json({"report": page, "figures": drawn})
    else:
        typer.echo(f"report: {page}")
        for path in drawn:
            typer.echo(f"figure: {path}")
    if show:
        typer.launch(str(page))


app.command("report", epilog=REPORT_EXAMPLES)(report)
