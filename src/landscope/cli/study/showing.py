"""Showing a study: its runs, their states and why they changed, how long they take, its report and its answer."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from landscope.cli.failures import CommandError
from landscope.cli.output import console, note, print_json, table
from landscope.core.text import counted, duration

if TYPE_CHECKING:
    from rich.table import Table
    from rich.text import Text

    from landscope.cli.study.running import StudyOutcome
    from landscope.studies.store import RunStatus
    from landscope.studies.study import KeptStudy, Study

MOST_ROWS = 60
"""The most rows of a table."""


def reports_without_script() -> bool:
    """Whether reports are static because Plotly is missing; noted before hours of work, not after them."""
    if find_spec("plotly") is not None:
        return False
    note(
        "plotly is not installed: reports are written without script. For interactive ones: pip install 'landscope[report]'"
    )
    return True


def opened(folder: Path) -> Study:
    """The study in a folder; a shared store that is not mounted must not look like an empty one."""
    from landscope.studies.study import Study

    if folder.is_file():
        raise CommandError(f"{folder} is a file; expected the folder of a study, such as studies/NAME")
    study = Study.open(folder)
    if not study.store.root.is_dir():
        raise CommandError(
            f"{study.store.root}, where the runs of {folder} are, is not there. Mount it or put it back, or run the study again"
        )
    return study


def kept_study(folder: Path) -> KeptStudy | None:
    """The study that a folder holds so far; None if there is none, or it cannot be read."""
    from landscope.core.errors import SpecError
    from landscope.studies.study import KeptStudy

    with suppress(SpecError):
        return KeptStudy.read(folder)
    return None


def show_changes(study: Study, folder: Path) -> None:
    """Say which runs of a folder's study have changed, and why."""
    from landscope.core.errors import LandscopeError
    from landscope.studies.orphans import why_changed
    from landscope.studies.study import Study

    kept = kept_study(folder)
    if kept is None or kept.is_of(study):
        return
    with suppress(LandscopeError):  # a spec that this version does not take any more
        for reason, keys in why_changed(Study.open(folder), study).items():
            note(f"{counted(len(keys), 'run')} changed since the study last ran: {reason}")


def show_outcome(
    study: Study, folder: Path, outcome: StudyOutcome, *, with_report: bool, as_json: bool, light: bool
) -> None:
    """Show how the runs ended, and write the report unless it is up to date; raise if a run failed."""
    from landscope.studies.store import RunState
    from landscope.studies.study import has_mark, kept_answer, report_mark

    summary, statuses = outcome.summary, outcome.statuses
    page, drawn = None, list[Path]()
    if with_report and any(status.state is RunState.DONE for status in statuses.values()):
        page = folder / "report.html"
        if study.spec.figures or not has_mark(page, report_mark(study, statuses, light=light)):
            page, drawn = write_report(study, page, study.spec.figures, statuses, light=light)
    said = "" if page is None else kept_answer(page)
    if as_json:
        found = {"finished": summary.finished, "skipped": summary.skipped, "failed": summary.failed}
        made = {"report": page, "figures": drawn, "answer": said}
        print_json({"study": study.spec.name, "folder": folder, **found, **made})
    else:
        console().print(status_table(study, statuses, done=False))
        if page is not None:
            typer.echo(f"report: {page}")
        if drawn:
            typer.echo(f"figures: {folder / 'figures'}")
        if said and not summary.failed:
            typer.echo(f"answer: {said}")
    summary.check()


def show_forecast(study: Study, seconds: float | None, as_json: bool) -> None:
    """Show the runs with an estimate of time, and what was not checked: nothing that the spec names is imported or called.

    Up to `seconds` are spent on the estimate; by default only a moment, in which no measuring is timed.
    """
    from landscope.studies.forecast import forecast, functions_of

    unchecked = functions_of(study)
    if unchecked:
        note(
            f"a dry run neither imports nor calls {', '.join(f'{name} ({what})' for name, what in unchecked.items())}; running "
            "the study does. Not checked: whether they exist, take these options and return what is needed, and how long "
            "their runs take. The keys of their runs, and so their states, are right if each is defined in the module named"
        )
    statuses = study.statuses()
    if seconds is not None:
        note(f"timing a slice of each kind of run, for {duration(seconds)} at most")
    found = forecast(study, statuses, seconds)
    if as_json:
        rows = [
            {
                "run": key,
                "condition": run.condition,
                "seed": run.seed,
                "state": statuses[key].state.value,
                "training_seconds": None if (one := found.expected.get(key)) is None else one.training,
                "measuring_seconds": None if one is None else one.measuring,
                "at_least": one is not None and not one.whole,
                "trouble": "" if one is None else one.trouble,
            }
            for key, run in study.runs.items()
        ]
        times = {"workers": found.workers, "total_seconds": found.seconds, "at_least": not found.whole}
        print_json({"runs": rows, **times, "not_checked": list(unchecked)})
        return
    shown = table("run", "condition", "seed", "state", "expected", right=["seed", "expected"])
    for key, run in islice(study.runs.items(), MOST_ROWS):
        one = found.expected.get(key)
        more = "> " if one is not None and not one.whole else ""
        takes = "not known" if one is None else "cannot start" if one.trouble else more + duration(one.seconds)
        shown.add_row(key, run.condition, str(run.seed), statuses[key].state.value, takes if key in found.left else "")
    _cut(shown, len(study.runs))
    console().print(shown)
    typer.echo(found.sentence())
    if found.expected and not found.whole and seconds is None:
        typer.echo("Not all of it could be timed so quickly; to take a minute for it, add --time-limit 60")


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


def status_table(study: Study, statuses: Mapping[str, RunStatus], *, done: bool = True) -> Table | Text:
    """The state of each run, those that are not done first, or only those; where there is none to show, how many are done."""
    from rich.text import Text

    from landscope.studies.store import RunState

    progress = study.progress(statuses)
    counts = ", ".join(f"{count} {state.value}" for state, count in progress.by_state.items())
    left = f"; about {duration(progress.seconds_left)} of work left" if progress.seconds_left else ""
    title = f"{study.spec.name}: {counts}{left}"
    columns = ("run", "condition", "seed", "state", "since", "by", "error")
    shown = table(*columns, right=["seed"], title=title)
    styles = {RunState.DONE: "green", RunState.FAILED: "red", RunState.RUNNING: "bold", RunState.DAMAGED: "red"}
    order = sorted(statuses.items(), key=lambda item: item[1].state is RunState.DONE)
    order = order if done else [item for item in order if item[1].state is not RunState.DONE]
    if not order:
        return Text(title)
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
    from landscope.report.of_study import write_study_figures, write_study_report

    records = study.records()
    page = write_study_report(study, path, records, statuses, static=light)
    drawn = write_study_figures(study, page.parent / "figures", formats, records) if formats else []
    return page, drawn
