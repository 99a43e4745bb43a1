"""`landscope compare-studies`: several studies on one page, with their reports."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from landscope.cli.failures import CommandError
from landscope.cli.options import Json
from landscope.cli.output import print_json, target
from landscope.cli.study.showing import opened, reports_without_script, write_report
from landscope.core.text import examples

EXAMPLES = examples(
    "landscope compare-studies studies/digits studies/cifar10 --output index.html",
    "landscope compare-studies studies/*",
)


def compare_studies(
    folders: Annotated[list[Path], typer.Argument(metavar="STUDY OTHER…", help="The folders of two studies or more.")],
    output: Annotated[Path, typer.Option(metavar="FILE.html", help="Where to write the page.")] = Path("studies.html"),
    as_json: Json = False,
) -> None:
    """Write one page of several studies: what each answers, and how its conditions differ from its baseline.

    The report of each is written again, and the page leads there.
    """
    from landscope.report.of_study import options_of
    from landscope.report.several import write_landing_page
    from landscope.report.write import StudyReport

    if len({folder.resolve() for folder in folders}) < 2:
        raise CommandError("expected two studies or more to compare; for one: landscope report STUDY")
    target(output)
    light = reports_without_script()
    reports = {}
    for folder in folders:
        study = opened(folder)
        records = study.records()
        if not records:
            raise CommandError(f"no run of {folder} is done yet; see: landscope study status {folder}")
        page, _ = write_report(study, folder / "report.html", (), study.statuses(), light=light)
        address = Path(os.path.relpath(page, output.parent)).as_posix()
        reports[address] = StudyReport.of(records, options_of(study.spec, records))
    written = write_landing_page(reports, output)
    if as_json:
        print_json({"page": written, "reports": [str(folder / "report.html") for folder in folders]})
    else:
        typer.echo(f"page: {written}")
