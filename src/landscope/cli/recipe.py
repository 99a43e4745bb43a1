"""`landscope recipe`: the papers' experiments, run for real, beside the papers' own numbers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from landscope.cli.failures import CommandError, StoppedError
from landscope.cli.options import Json
from landscope.cli.output import command_group, console, note, print_json, table, target, writable_folder
from landscope.cli.study_runs import (
    ExecutorOption,
    ExecutorOptions,
    Gpus,
    Only,
    Pool,
    RetryFailed,
    TimeLimit,
    do_runs,
    reports_are_light,
)
from landscope.core.text import duration, examples

if TYPE_CHECKING:
    from landscope.core.errors import LandscopeError
    from landscope.recipes import Kept, Part, Recipe
    from landscope.studies.executors.base import Summary
    from landscope.studies.spec import StudySpec
    from landscope.studies.study import Study

__all__ = ["app", "part_studies"]


# The studies of a recipe's parts, ready to run: with what is among kept records, and nothing missing for the rest.


def part_studies(
    wanted: Mapping[str, Part], folder: Path, records: Mapping[str, Kept], size: str, only: Sequence[str]
) -> tuple[dict[str, Study], dict[str, LandscopeError]]:
    """The studies of some parts, with what is among kept records; and of those that cannot be run, why not.

    That is for want of data, of a package, or of any run that `only` asks for.
    """
    from landscope.core.errors import DataFileError, MissingExtraError, UnknownNameError
    from landscope.studies.grid import chosen
    from landscope.studies.preflight import check_inputs

    studies: dict[str, Study] = {}
    lacking: dict[str, LandscopeError] = {}
    asked: set[tuple[str, str]] = set()
    for label, entry in wanted.items():
        if records and label not in records:
            note(f"{label}: there are no kept records of this part")
        try:
            study = _study(entry.study, folder / label, records.get(label), size)
            check_inputs(study, chosen(study.runs, only), asked)
            studies[label] = study
        except (DataFileError, MissingExtraError, UnknownNameError) as error:
            lacking[label] = type(error)(f"the part {label} cannot be run: {error}".rstrip("."))
    return studies, lacking


def _study(spec: StudySpec, folder: Path, kept: Kept | None, size: str) -> Study:
    """The study of a part; one whose runs are all among kept records needs no data."""
    from landscope.core.errors import DataFileError
    from landscope.recipes import study_as_kept, take_over
    from landscope.studies.study import Study

    missing: DataFileError | None = None
    try:
        study = Study(spec, folder)
    except DataFileError as error:
        if kept is None:
            raise
        missing, study = error, study_as_kept(spec, folder, kept.bundle)
    if kept is not None:
        taken = take_over(study, kept.bundle)
        failed = f", and {taken.failed} that failed (--retry-failed tries them again)" if taken.failed else ""
        other = "" if kept.bundle.size == size else f"; the records are of size {kept.bundle.size}, not {size}"
        note(f"{kept.path}: {taken.done} of {len(study.runs)} runs taken over{failed}{other}")
    if missing is not None and study.progress().left:
        raise missing
    return study


RecipeName = Annotated[
    str, typer.Argument(metavar="NAME", help="A name from `landscope recipe list`.", show_default=False)
]
SizeOption = Annotated[
    Literal["tiny", "small", "paper"],
    typer.Option(
        help="tiny: seconds; small: up to an hour and a half a part on two cores; paper: what the paper did, on a GPU."
    ),
]

app = command_group(
    "Run the papers' experiments, and set their numbers beside ours.",
    "landscope recipe list",
    "landscope recipe run adaptive-sharpness --size small",
    "landscope recipe run explicit-regularisation --size paper --time-limit 1500",
    "landscope recipe results results/",
)


@app.command("list", epilog=examples("landscope recipe list", "landscope recipe list --json"))
def list_recipes(as_json: Json = False) -> None:
    """Show the recipes, their parts and how many models each size trains."""
    from landscope.recipes import RECIPES

    if as_json:
        print_json([_plain(RECIPES[name]) for name in RECIPES])
        return
    shown = table("recipe", "paper", "parts", "tiny", "small", "paper", right=["tiny", "small"])
    for name in RECIPES:
        one = RECIPES[name]
        counts = [str(sum(_models(one, size).values())) for size in ("tiny", "small", "paper")]
        shown.add_row(name, one.title, ", ".join(one.parts("paper")), *counts)
    console().print(shown)


def _models(one: Recipe, size: Literal["tiny", "small", "paper"]) -> dict[str, int]:
    from landscope.studies.grid import runs_of

    return {part: len(runs_of(entry.study)) for part, entry in one.parts(size).items()}


def _plain(one: Recipe) -> dict[str, object]:
    sizes: tuple[Literal["tiny", "small", "paper"], ...] = ("tiny", "small", "paper")
    return {
        "name": one.name,
        "title": one.title,
        "paper": one.paper,
        "differences": one.differences,
        "remarks": one.remarks,
        "models": {size: _models(one, size) for size in sizes},
    }


@app.command(
    "run",
    epilog=examples(
        "landscope recipe run adaptive-sharpness --size tiny",
        "landscope recipe run false-friend --size small --part softmax-regression",
        "landscope recipe run explicit-regularisation --size paper --time-limit 1500   # again: it goes on",
        "landscope recipe run fam --size paper --part skulls --from results   # only what is not among these records",
        "landscope recipe run fam --size paper --part cifar10 --only method=sam --only seed=2",
        "landscope recipe run false-friend --size paper --cifar100   # where it is at hand: landscope data get cifar100",
    ),
)
def run(
    name: RecipeName,
    size: SizeOption = "small",
    part: Annotated[
        list[str] | None, typer.Option(help="Only this part; may be repeated.  [default: all]", show_default=False)
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Where it goes.  [default: recipes/NAME-SIZE]", show_default=False),
    ] = None,
    kept: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FOLDER",
            help="Kept records, as RECIPE/PART.json.gz: runs that stand there are not made again. An error where there are none.",
            show_default=False,
        ),
    ] = None,
    executor: ExecutorOption = "local",
    executor_option: ExecutorOptions = None,
    gpus: Gpus = None,
    pool: Pool = None,
    only: Only = None,
    cifar100: Annotated[
        bool,
        typer.Option(
            "--cifar100", help="Only the parts of a hundred classes, on CIFAR-100 itself in place of its stand-in."
        ),
    ] = False,
    retry_failed: RetryFailed = False,
    time_limit: TimeLimit = None,
    as_json: Json = False,
) -> None:
    """Run a recipe, part by part: what is done is skipped, what is half done goes on.

    Each part is a study with a report of its own; its records are kept in one small file beside it. A run that fails stops
    nothing: the report names it, and the command ends with an error. Parts that lack data or a package are told of before any
    run, and left out unless they were asked for by name; stopped by a time limit or Ctrl-C, it writes the records and the
    report of what is done.
    """
    from landscope.core.errors import SpecError, UnknownNameError
    from landscope.recipes import RECIPES, finish_part, kept_records, on_cifar100

    recipe = RECIPES[name]
    parts = recipe.parts(size)
    for label in part or ():
        if label not in parts:
            raise UnknownNameError.among(f"part of {name}", label, parts)
    wanted = {label: entry for label, entry in parts.items() if not part or label in part}
    if cifar100:
        wanted = {label: moved for label, entry in wanted.items() if (moved := on_cifar100(entry))}
        if not wanted:
            raise SpecError(
                f"--cifar100: {name} has no {'such ' if part else ''}part of a hundred classes at size {size}"
            )
    folder = writable_folder(into or Path("recipes") / f"{name}-{size}")
    records = {} if kept is None else kept_records(_records_folder(kept), name, wanted, size)
    start = time.monotonic()
    light = reports_are_light()
    studies, lacking = part_studies(wanted, folder, records, size, only or ())
    for missing in lacking.values():
        if part or not studies:
            raise missing
        note(f"{missing}; the others are run")
    made: list[Path] = []
    summaries: list[Summary] = []
    stopped: BaseException | None = None
    try:
        for label, study in studies.items():
            left = None if time_limit is None else time_limit - (time.monotonic() - start)
            if stopped is None and left is not None and left <= 0:
                stopped = StoppedError(
                    f"the time limit of {duration(time_limit or 0)} was reached; the same command goes on"
                )
            if stopped is None:
                entry = wanted[label]
                note(f"{name}, {label}: {entry.note or entry.study.name}")
                pooled = entry.pool if pool is None else pool
                options = [*(["workers=1"] if entry.alone and executor == "local" else ()), *(executor_option or ())]
                try:
                    summary, _ = do_runs(
                        study, folder / label, executor, options, retry_failed, left, gpus, pooled, only
                    )
                    summaries.append(summary)
                except (StoppedError, KeyboardInterrupt) as error:
                    stopped = error
            if study.progress().done:  # also after a time limit: kept records may have made later parts whole
                made += finish_part(recipe, label, size, study, folder, light=light)
            if isinstance(stopped, KeyboardInterrupt):
                break
    finally:
        _tell(made, as_json)
    if stopped is not None:
        raise stopped
    for summary in summaries:
        summary.check()
    for missing in lacking.values():
        if not isinstance(missing, UnknownNameError):
            raise missing


def _records_folder(folder: Path) -> Path:
    from landscope.recipes import LAYOUT

    if not folder.is_dir():
        raise CommandError(f"{folder}: no such folder; records were expected there as {LAYOUT}")
    return folder


def _tell(made: Sequence[Path], as_json: bool) -> None:
    """Which files were written."""
    if as_json:
        print_json([str(path) for path in made])
    else:
        for path in made:
            typer.echo(f"written: {path}")


@app.command("results", epilog=examples("landscope recipe results results --page RESULTS.md --reports light"))
def results(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="Records, as RECIPE/PART.json.gz, or what `landscope recipe run` left.",
            show_default=False,
        ),
    ],
    page: Annotated[Path, typer.Option(metavar="FILE.md", help="Where the page goes.")] = Path("RESULTS.md"),
    reports: Annotated[
        Literal["none", "light", "full"],
        typer.Option(help="Write the HTML reports, too: small ones, or those with everything that a script can do."),
    ] = "none",
    as_json: Json = False,
) -> None:
    """Make the page of results, and the reports, again from kept records."""
    from landscope.recipes import write_results

    target(page)
    _tell(write_results(_records_folder(folder), page, reports=reports), as_json)
