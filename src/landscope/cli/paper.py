"""`landscope paper`: the papers' experiments, run for real, beside the papers' own numbers."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from landscope.cli.failures import CommandError, StoppedError
from landscope.cli.options import (
    ExecutorOption,
    ExecutorOptions,
    Gpus,
    Json,
    Only,
    Pool,
    RetryFailed,
    TimeLimit,
    optional,
)
from landscope.cli.output import command_group, console, note, print_json, table, target, writable_folder
from landscope.cli.study.running import HowToRun, run_study, time_limit_reached
from landscope.cli.study.showing import reports_without_script
from landscope.core.text import examples

if TYPE_CHECKING:
    from landscope.core.errors import LandscopeError
    from landscope.papers import Kept, Paper, Part
    from landscope.studies.executors.base import Summary
    from landscope.studies.spec import StudySpec
    from landscope.studies.study import Study

# The studies of a paper's parts, ready to run: with the runs found among kept records, and the inputs of the others checked.


def part_studies(
    wanted: Mapping[str, Part], folder: Path, records: Mapping[str, Kept], size: str, only: Sequence[str]
) -> tuple[dict[str, Study], dict[str, LandscopeError]]:
    """The studies of some parts, with the runs found among kept records; and for those that cannot be run, the error.

    Data or a package is missing there, or `only` asks for no run of the part.
    """
    from landscope.core.errors import DataFileError, MissingExtraError, UnknownNameError
    from landscope.studies.forecast import check_inputs
    from landscope.studies.grid import select_runs

    studies: dict[str, Study] = {}
    lacking: dict[str, LandscopeError] = {}
    asked: set[tuple[str, str]] = set()
    for label, entry in wanted.items():
        if records and label not in records:
            note(f"{label}: there are no kept records of this part")
        try:
            study = _study(entry.study, folder / label, records.get(label), size)
            check_inputs(study, select_runs(study.runs, only), asked)
            studies[label] = study
        except (DataFileError, MissingExtraError, UnknownNameError) as error:
            lacking[label] = type(error)(f"the part {label} cannot be run: {error}".rstrip("."))
    return studies, lacking


def _study(spec: StudySpec, folder: Path, kept: Kept | None, size: str) -> Study:
    """The study of a part; it needs no data if all its runs are among kept records."""
    from landscope.core.errors import DataFileError
    from landscope.papers import study_as_kept, take_over
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


PaperName = Annotated[
    str, typer.Argument(metavar="NAME", help="A name from `landscope paper list`.", show_default=False)
]
Size = Literal["tiny", "small", "paper"]
SIZES: tuple[Size, ...] = ("tiny", "small", "paper")
SizeOption = Annotated[
    Size,
    typer.Option(
        help="tiny: seconds; small: up to an hour and a half per part on two cores; paper: what the paper did, on a GPU."
    ),
]

app = command_group(
    "Run the papers' experiments, and compare their numbers with ours.",
    "landscope paper list",
    "landscope paper run adaptive-sharpness --size small",
    "landscope paper run explicit-regularisation --size paper --time-limit 1500",
    "landscope paper results results/",
)


@app.command("list", epilog=examples("landscope paper list", "landscope paper list --json"))
def list_papers(as_json: Json = False) -> None:
    """Show the papers, their parts and how many models each size trains."""
    from landscope.papers import PAPERS

    if as_json:
        print_json([_plain(PAPERS[name]) for name in PAPERS])
        return
    shown = table("name", "paper", "parts", "tiny", "small", "paper", right=["tiny", "small"])
    for name in PAPERS:
        one = PAPERS[name]
        counts = [str(sum(_models(one, size).values())) for size in SIZES]
        shown.add_row(name, one.title, ", ".join(one.parts("paper")), *counts)
    console().print(shown)


def _models(one: Paper, size: Size) -> dict[str, int]:
    from landscope.studies.grid import runs_of

    return {part: len(runs_of(entry.study)) for part, entry in one.parts(size).items()}


def _plain(one: Paper) -> dict[str, object]:
    return {
        "name": one.name,
        "title": one.title,
        "paper": one.paper,
        "differences": one.differences,
        "remarks": one.remarks,
        "models": {size: _models(one, size) for size in SIZES},
    }


@app.command(
    "run",
    epilog=examples(
        "landscope paper run adaptive-sharpness --size tiny",
        "landscope paper run false-friend --size small --part softmax-regression",
        "landscope paper run explicit-regularisation --size paper --time-limit 1500   # run it again to resume",
        "landscope paper run fam --size paper --part skulls --from results   # only what these records lack",
        "landscope paper run fam --size paper --part cifar10 --only method=sam --only seed=2",
        "landscope paper run false-friend --size paper --cifar100   # after: landscope data get cifar100",
    ),
)
def run(
    name: PaperName,
    size: SizeOption = "small",
    part: Annotated[list[str] | None, optional(help="Only this part; may be repeated.  [default: all]")] = None,
    into: Annotated[
        Path | None, optional(metavar="FOLDER", help="Folder for the results.  [default: papers/NAME-SIZE]")
    ] = None,
    kept: Annotated[
        Path | None,
        optional(
            "--from",
            metavar="FOLDER",
            help="Kept records, as PAPER/PART.json.gz: their runs are not run again. An error if there are none.",
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
            "--cifar100", help="Only the parts with a hundred classes, on CIFAR-100 itself instead of its stand-in."
        ),
    ] = False,
    retry_failed: RetryFailed = False,
    time_limit: TimeLimit = None,
    as_json: Json = False,
) -> None:
    """Run a paper part by part, or resume it: finished runs are skipped, interrupted ones resume.

    Each part is a study with its own report; its records are kept in one small file beside it. A run that fails stops
    nothing: the report names it, and the command ends with an error. Parts that lack data or a package are named before any
    run, and left out unless they were asked for by name. Stopped by a time limit or Ctrl-C, the command writes the records and
    the report of what is done.
    """
    from landscope.core.errors import UnknownNameError
    from landscope.papers import PAPERS, kept_records

    paper = PAPERS[name]
    wanted = _wanted_parts(paper, size, part or (), cifar100)
    folder = writable_folder(into or Path("papers") / f"{name}-{size}")
    records = {} if kept is None else kept_records(_records_folder(kept), name, wanted, size)
    start = time.monotonic()
    light = reports_without_script()
    studies, lacking = part_studies(wanted, folder, records, size, only or ())
    for missing in lacking.values():
        if part or not studies:
            raise missing
        note(f"{missing}; the other parts are run")
    how = HowToRun(executor, executor_option or (), gpus, pool, only or (), retry_failed)
    runner = _PartRunner(paper, size, folder, how, light, time_limit, start)
    try:
        runner.run_parts(wanted, studies)
    finally:
        _print_written(runner.written, as_json)
    runner.check()
    for missing in lacking.values():
        if not isinstance(missing, UnknownNameError):
            raise missing


def _wanted_parts(paper: Paper, size: Size, asked: Sequence[str], cifar100: bool) -> dict[str, Part]:
    """The parts that are asked for, all by default; with `cifar100` those of a hundred classes, on CIFAR-100 itself."""
    from landscope.core.errors import SpecError, UnknownNameError
    from landscope.papers import on_cifar100

    parts = paper.parts(size)
    for label in asked:
        if label not in parts:
            raise UnknownNameError.among(f"part of {paper.name}", label, parts)
    wanted = {label: entry for label, entry in parts.items() if not asked or label in asked}
    if cifar100:
        wanted = {label: moved for label, entry in wanted.items() if (moved := on_cifar100(entry))}
        if not wanted:
            such = "such " if asked else ""
            raise SpecError(f"--cifar100: {paper.name} has no {such}part with a hundred classes at size {size}")
    return wanted


@dataclass
class _PartRunner:
    """Runs parts one after the other, and writes the records and the report of each, until the time is over."""

    paper: Paper
    size: Size
    folder: Path
    how: HowToRun
    light: bool
    time_limit: float | None
    start: float
    written: list[Path] = field(default_factory=list)
    summaries: list[Summary] = field(default_factory=list)
    stopped: BaseException | None = None

    def run_parts(self, wanted: Mapping[str, Part], studies: Mapping[str, Study]) -> None:
        """Run each part; after a time limit only write what is done, which kept records may have completed."""
        from landscope.papers import finish_part

        for label, study in studies.items():
            if self.stopped is None:
                self._run_part(label, wanted[label], study)
            if study.progress().done:
                self.written += finish_part(self.paper, label, self.size, study, self.folder, light=self.light)
            if isinstance(self.stopped, KeyboardInterrupt):
                return

    def _run_part(self, label: str, part: Part, study: Study) -> None:
        left = None if self.time_limit is None else self.time_limit - (time.monotonic() - self.start)
        if left is not None and left <= 0:
            self.stopped = time_limit_reached(self.time_limit)
            return
        note(f"{self.paper.name}, {label}: {part.note or part.study.name}")
        alone = ["workers=1"] if part.alone and self.how.executor == "local" else []
        pool = part.pool if self.how.pool is None else self.how.pool
        how = replace(self.how, pool=pool, executor_options=[*alone, *self.how.executor_options])
        try:
            self.summaries.append(run_study(study, self.folder / label, how, left).summary)
        except (StoppedError, KeyboardInterrupt) as error:
            self.stopped = error

    def check(self) -> None:
        """Raise what stopped the parts, or an error where a run failed."""
        if self.stopped is not None:
            raise self.stopped
        for summary in self.summaries:
            summary.check()


def _records_folder(folder: Path) -> Path:
    from landscope.papers import LAYOUT

    if not folder.is_dir():
        raise CommandError(f"{folder}: no such folder; expected records there, as {LAYOUT}")
    return folder


def _print_written(paths: Sequence[Path], as_json: bool) -> None:
    if as_json:
        print_json([str(path) for path in paths])
    else:
        for path in paths:
            typer.echo(f"written: {path}")


@app.command("results", epilog=examples("landscope paper results results --page RESULTS.md --reports light"))
def results(
    folder: Annotated[
        Path,
        typer.Argument(
            metavar="FOLDER",
            help="Records, as PAPER/PART.json.gz, or the results of `landscope paper run`.",
            show_default=False,
        ),
    ],
    page: Annotated[Path, typer.Option(metavar="FILE.md", help="File of the page.")] = Path("RESULTS.md"),
    reports: Annotated[
        Literal["none", "light", "full"],
        typer.Option(help="Also write the HTML reports: small static ones, or full interactive ones."),
    ] = "none",
    as_json: Json = False,
) -> None:
    """Write the page of results, and the HTML reports if wanted, from kept records."""
    from landscope.papers import write_results

    target(page)
    _print_written(write_results(_records_folder(folder), page, reports=reports), as_json)
