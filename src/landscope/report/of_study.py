"""The report of a study in a store and its figures, and one page for several studies."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import cast

from landscope.core.errors import SpecError, UnknownNameError
from landscope.core.files import write_whole
from landscope.core.json import Plain
from landscope.core.text import counted
from landscope.report.data.columns import label
from landscope.report.data.contrasts import Contrasts, contrasts
from landscope.report.page.blocks import Block, Cell, Heading, Prose, Section, Table, words
from landscope.report.page.html import Masthead, rendered
from landscope.report.page.matplotlib import FORMATS
from landscope.report.sections.against_baseline import contrast_cell, way
from landscope.report.sections.models import terms_of
from landscope.report.write import ReportOptions, StudyReport, figures, without_script, write_report
from landscope.specs.schema import to_plain
from landscope.studies.record import Record, wide_table
from landscope.studies.spec import AnalysisSpec, StudySpec
from landscope.studies.store import RunStatus
from landscope.studies.study import Study, report_mark


def write_study_report(
    study: Study,
    path: str | os.PathLike[str],
    records: Sequence[Record],
    statuses: Mapping[str, RunStatus],
    *,
    static: bool = False,
) -> Path:
    """The report of what is done so far: of the study's records and of the statuses of its runs."""
    options = replace(
        options_of(study.spec, records),
        failed=study.failures(statuses),
        static=static,
        mark=report_mark(study, statuses, light=static),
    )
    return write_report(records, path, options)


def write_study_figures(
    study: Study, folder: str | os.PathLike[str], formats: Sequence[str], records: Sequence[Record]
) -> list[Path]:
    """Figures for papers, of the same columns as the report."""
    for word in formats:
        if word not in FORMATS:
            raise SpecError(f"expected png, svg or pdf as the format of figures, got {word!r}")
    return figures(records, folder, formats, options_of(study.spec, records))


def options_of(spec: StudySpec, records: Sequence[Record]) -> ReportOptions:
    """What a study's spec asks, as far as it was measured.

    Columns that no record has are left out with a sentence that says so; where that leaves no outcome or measure, it is an error.
    Outcomes of classifiers that a study did not name and does not have (its network predicts numbers, or shapes) give way to
    those that it has.
    """
    analysis = spec.analysis
    known = set(wide_table(records).columns)
    others = not _outcomes_are_named(analysis) and analysis.outcomes[0] not in known
    return ReportOptions(
        title=spec.name,
        question=spec.question or None,
        spec=cast(Mapping[str, Plain], to_plain(spec)),
        measures=None if analysis.measures is None else _measured("measure", analysis.measures, known),
        outcomes=None if others else _measured("outcome", analysis.outcomes, known) or None,
        method=analysis.method,
        given=analysis.given if analysis.given in known else None,
        baseline=analysis.baseline if _is_there(analysis.baseline, records) else None,
        checkpoint=analysis.checkpoint,
        notes=[*_left_out(analysis, known), *_not_there(analysis.baseline, records)],
    )


def _is_there(baseline: str | None, records: Sequence[Record]) -> bool:
    return any(record.condition == baseline for record in records)


def _not_there(baseline: str | None, records: Sequence[Record]) -> list[str]:
    """Of a study that is not finished: the baseline may come last."""
    if baseline is None or _is_there(baseline, records):
        return []
    return [
        f"The baseline, {baseline}, has no runs yet; what stands against the first condition here will stand against it."
    ]


def _outcomes_are_named(analysis: AnalysisSpec) -> bool:
    return analysis.outcomes != AnalysisSpec().outcomes


def _measured(kind: str, names: Sequence[str], known: Collection[str]) -> list[str]:
    """Those that some record has; where there is none, there is nothing to report."""
    found = [name for name in names if name in known]
    if names and not found:
        raise UnknownNameError.among(f"{kind} of the analysis", names[0], known)
    return found


def _left_out(analysis: AnalysisSpec, known: Collection[str]) -> list[str]:
    """A sentence for every name of the analysis that no record has."""
    named = [("measure", name) for name in analysis.measures or ()]
    named += [("outcome", name) for name in analysis.outcomes if _outcomes_are_named(analysis)]
    if analysis.given not in (None, AnalysisSpec().given):
        named.append(("column to account for", str(analysis.given)))
    errors = [UnknownNameError.among(kind, name, known) for kind, name in named if name not in known]
    return [f"Left out, because no record has it: {str(error).partition(' Choices: ')[0]}" for error in errors]


# Several studies on one page: how each condition differs from its baseline, what each study answers, and a link to its report.


COLUMNS = 8
"""Columns of the table: those that most studies have."""


def write_landing_page(studies: Mapping[str, StudyReport], path: str | os.PathLike[str]) -> Path:
    """Write the page of several studies, each under the address of its own report, and return where it is.

    Studies differ in data, networks and training, so nothing is pooled: a reader sees which signs agree. No script; a second
    for each study.
    """
    found = {address: contrasts(report.study, report.options.baseline) for address, report in studies.items()}
    titles = _titles(studies)
    sections = [_overview({titles[address]: against for address, against in found.items() if against is not None})]
    terms: dict[str, str] = {}
    for place, (address, report) in enumerate(studies.items()):
        sections += without_script(
            [_study(report, f"study-{place}", titles[address], address)], report.study.conditions
        )
        terms |= terms_of(report.study)
    runs = sum(len(report.study.records) for report in studies.values())
    head = Masthead("Studies side by side", None, f"{len(studies)} studies · {counted(runs, 'run')}")
    target = Path(path)
    write_whole(target, rendered(head, [each for each in sections if each.blocks], terms).encode(errors="replace"))
    return target


def _titles(studies: Mapping[str, StudyReport]) -> dict[str, str]:
    """The names of the studies, with their addresses where two are called the same."""
    counts = Counter(report.options.title for report in studies.values())
    return {
        address: report.options.title if counts[report.options.title] == 1 else f"{report.options.title} ({address})"
        for address, report in studies.items()
    }


def _overview(found: Mapping[str, Contrasts]) -> Section:
    """A row for each condition of each study, a column for each measure and outcome that most of them have."""
    held = Counter(
        c for each in found.values() for c in dict.fromkeys(e.column for e in (*each.sharpness, *each.outcomes))
    )
    columns = [column for column, _ in held.most_common(COLUMNS)]
    rows = []
    for title, each in found.items():
        for place, condition in enumerate(each.conditions):
            own = {c.column: c for c in (*each.sharpness, *each.outcomes) if c.condition == condition}
            against = f"{condition} against {each.baseline}"
            cells = [contrast_cell(own[column]) if column in own else Cell("–", mark="muted") for column in columns]
            rows.append([Cell(title if not place else ""), Cell(against), *cells])
    heads = [*words("study", "condition"), *(Heading(label(column)) for column in columns)]
    caption = (
        "Change against the baseline of the same study, with its 95% interval. Shaded where it is shown after adjusting for "
        "the tests of its study (Holm): blue is flatter or better, orange sharper or worse. Studies differ in data, "
        "networks and training: compare signs, not sizes."
    )
    blocks: list[Block] = [Table(heads, rows, caption, key="studies-table")] if rows else []
    return Section("overview", "Every condition of every study", blocks, _agreement(list(found.values())))


def _agreement(found: Sequence[Contrasts]) -> str:
    """For conditions that several studies have: in how many of these they are flatter by most measures that are shown."""
    said = []
    shared = Counter(condition for each in found for condition in each.conditions)
    for condition, times in shared.items():
        if times > 1:
            ways = [way(each, condition) for each in found if condition in each.conditions]
            said.append(f"{condition} is flatter in {ways.count(1)} and sharper in {ways.count(-1)} of {times} studies")
    return f"By most of the measures that are shown to differ, {'; '.join(said)}." if said else ""


def _study(report: StudyReport, key: str, title: str, address: str) -> Section:
    """Its question, and its answer up to the correlations."""
    answer = next((section.blocks for section in report.sections if section.key == "answer"), ())
    first = takewhile(lambda block: not (isinstance(block, Prose) and block.tone == "heading"), answer)
    question = [Prose(report.options.question, tone="note")] if report.options.question else []
    return Section(key, title, [*question, *first], link=address)
