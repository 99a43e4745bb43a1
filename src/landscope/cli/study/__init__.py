"""`landscope study`: run a study, show its progress, measure models that exist, write the report."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

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
    optional,
)
from landscope.cli.output import command_group, console, print_json, table, target, target_folder, writable_folder
from landscope.cli.study.running import HowToRun, run_study
from landscope.cli.study.showing import (
    kept_study,
    opened,
    plain_statuses,
    reports_without_script,
    show_changes,
    show_forecast,
    show_outcome,
    status_table,
    write_report,
)
from landscope.core import text
from landscope.core.files import not_there
from landscope.core.text import counted, examples

__all__ = ["REPORT_EXAMPLES", "app", "report"]

Into = Annotated[
    Path | None, optional("--into", metavar="FOLDER", help="Folder for runs and report.  [default: studies/NAME]")
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
        "landscope study run study.yaml --dry-run --time-limit 60   # the same with a minute to time it",
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
        Path | None, optional(help="A folder of runs shared with other studies.  [default: the study's own]")
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
    from landscope.probe.totals import checked_seconds
    from landscope.specs.documents import read_document
    from landscope.specs.names import search_also
    from landscope.specs.schema import parse
    from landscope.studies.forecast import check_inputs
    from landscope.studies.grid import select_runs
    from landscope.studies.spec import StudySpec
    from landscope.studies.study import Study

    if spec.is_dir():
        raise CommandError(f"{spec} is a folder; expected the file of a study, such as study.yaml")
    document = read_document(spec)
    keys = document.content.keys() if isinstance(document.content, dict) else set()
    if "model" in keys and keys.isdisjoint(("training", "checkpoints")):
        raise CommandError(f"{spec} describes one training; run it with: landscope train {spec}")
    search_also(spec.absolute().parent)
    checked = parse(StudySpec, document.content, document.place)
    folder = target_folder(into or Path("studies") / checked.name)
    study = Study(
        checked, target_folder(store or folder), document.place, before=kept_study(folder), imports=not dry_run
    )
    asked = select_runs(study.runs, only or ())
    if dry_run:
        show_changes(study, folder)
        study.runs = {key: one for key, one in study.runs.items() if key in asked}
        show_forecast(study, checked_seconds("--time-limit", time_limit), as_json)
        return
    writable_folder(folder)
    writable_folder(store or folder)
    light = with_report and reports_without_script()
    check_inputs(study, asked, set())
    how = HowToRun(executor, executor_option or (), gpus, pool, only or (), retry_failed)
    outcome = run_study(study, folder, how, time_limit)
    show_outcome(study, folder, outcome, with_report=with_report, as_json=as_json, light=light)


@app.command(
    "status", epilog=examples("landscope study status studies/regularisers", "landscope study status FOLDER --watch")
)
def status(
    folder: StudyFolder,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh every two seconds until every run is done.")] = False,
    as_json: Json = False,
) -> None:
    """Show which runs are done, running, interrupted, failed or waiting."""
    study = opened(folder)
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
    "prune",
    epilog=examples(
        "landscope study prune studies/regularisers --dry-run",
        "landscope study prune studies/regularisers",
        "landscope study prune studies/a studies/b --shared   # two studies that share one folder of runs",
    ),
)
def prune(
    folders: Annotated[
        list[Path], typer.Argument(metavar="STUDY…", help="Folders of studies that share a store.", show_default=False)
    ],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="List the runs; remove nothing.")] = False,
    shared: Annotated[
        bool, typer.Option("--shared", help="Also where the runs lie outside the study: no other study needs them.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Remove the runs that no condition of a study names any more.

    They are left when a spec, or the code that it names, has changed. Runs that another process works on are kept.
    """
    from landscope.studies.orphans import orphans_of, remove

    studies = [opened(folder) for folder in folders]
    root = studies[0].store.root
    if others := [str(study.store.root) for study in studies if study.store.root != root]:
        raise CommandError(f"expected studies with one folder of runs, got {root} and {others[0]}")
    if root not in [folder.resolve() for folder in folders] and not shared:
        raise CommandError(
            f"the runs lie in {root}, which other studies may use. Name all of those that do, and add --shared"
        )
    rows = []
    for orphan in orphans_of(*studies):
        what, size = orphan.title, orphan.size  # before it is removed
        rows.append((orphan.folder.key, what, size, not dry_run and remove(orphan)))
    gone = [size for *_, size, removed in rows if removed]
    if as_json:
        names = ("run", "what", "bytes", "removed")
        print_json([dict(zip(names, row, strict=True)) for row in rows])
    elif not rows:
        typer.echo("every run is one that the study names; nothing to remove")
    else:
        shown = table("run", "what", "size", right=["size"])
        for key, what, size, _ in rows:
            shown.add_row(key, what, text.size(size))
        console().print(shown)
        if dry_run:
            typer.echo(
                f"{counted(len(rows), 'run')}, {text.size(sum(size for *_, size, _ in rows))}; nothing was removed"
            )
        else:
            kept = len(rows) - len(gone)
            also = f"; {counted(kept, 'run')} kept, which another process works on" if kept else ""
            typer.echo(f"removed {counted(len(gone), 'run')}, {text.size(sum(gone))}{also}")


@app.command(
    "measure",
    epilog=examples(
        "landscope study measure nets/*.safetensors --model resnet20 --data cifar10 --samples 2000",
        "landscope study measure runs/*                       # what `landscope train` left there",
        "landscope study measure a.pt b.pt --model my_package.nets:build -o width=32 --data mnist --into mine",
    ),
)
def measure(
    checkpoints: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES…", help="Weights: safetensors or state dicts; or folders of trainings.", show_default=False
        ),
    ],
    model: Model = None,
    data: DataName = None,
    option: ModelOptions = None,
    data_option: DataOptions = None,
    pixels: PixelScale = None,
    root: Root = None,
    measures: Annotated[str, typer.Option(metavar="A,B,C", help="Names from `landscope measures`, or all.")] = "all",
    samples: Annotated[
        int | None, optional(min=1, metavar="N", help="Use this many training rows, stratified by class.")
    ] = None,
    seconds: Annotated[float | None, optional(help="Budget in seconds for each model and split.")] = None,
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
    from landscope.cli.sources import Given, saved_networks
    from landscope.specs.schema import parse
    from landscope.studies.forecast import check_inputs
    from landscope.studies.spec import StudySpec
    from landscope.studies.study import Study

    for file in checkpoints:
        if not file.exists():
            raise CommandError(not_there(file))
    taken = saved_networks(checkpoints, Given(model, option, data, data_option, pixels, root))
    first = taken[0]
    wanted: object = "all" if measures == "all" else named_measures(measures)
    written = {
        "name": name,
        "checkpoints": {
            "files": [str(one.file.resolve()) for one in taken],
            "model": {"name": first.model.name, **first.model.options},
            "data": {"name": first.data.name, **first.data.options},
            "loss": first.loss,
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
    study = Study(parse(StudySpec, written), folder, before=kept_study(folder))
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
        Path | None, optional(metavar="FILE.html", help="Where to write it.  [default: report.html in the study]")
    ] = None,
    show: Annotated[bool, typer.Option("--open", help="Open it in the browser.")] = False,
    light: Annotated[
        bool, typer.Option("--light", help="Write a static page: no script, no Plotly, a tenth of the size.")
    ] = False,
    figures: Annotated[
        str | None,
        optional(
            metavar="png,svg,pdf",
            help="Also write figures for papers beside it.  [default: those that the study asks for]",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the report of a study: one HTML file that needs no network."""
    from landscope.studies.store import RunState

    study = opened(folder)
    light = light or reports_without_script()
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
