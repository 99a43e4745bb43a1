"""What there is to see of a study: its runs and where they stand, how long they will take, what became of them, its report."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from landscope.cli.output import console, note, print_json, table
from landscope.cli.text import duration
from landscope.core.words import counted

if TYPE_CHECKING:
    from rich.table import Table

    from landscope.studies.executors.base import Summary
    from landscope.studies.store import RunStatus
    from landscope.studies.study import Study

__all__ = ["foretell", "plain_statuses", "reports_are_light", "show", "status_table", "write"]

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
    from landscope.studies.forecast import forecast
    from landscope.studies.inputs import functions_of

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
    from landscope.report.study import write_study_figures, write_study_report

    records = made.records()
    page = write_study_report(made, path, records, statuses, light=light)
    drawn = write_study_figures(made, page.parent / "figures", formats, records) if formats else []
    return page, drawn
