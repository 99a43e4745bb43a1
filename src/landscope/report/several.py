"""Several studies on one page: how each condition differs from its study's baseline, what each study answers, and its report."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import takewhile
from pathlib import Path

from landscope.core.files import write_whole
from landscope.core.text import counted
from landscope.report.data.columns import label
from landscope.report.data.contrasts import Contrasts, contrasts
from landscope.report.page.blocks import Block, Cell, Head, Prose, Section, Table
from landscope.report.page.html import Masthead, rendered
from landscope.report.sections.against_baseline import contrast_cell, way
from landscope.report.sections.models import terms_of
from landscope.report.write import StudyReport, without_script

COLUMNS = 8
"""Of the table: those that most studies have."""


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
    heads = [
        Head("study", numeric=False),
        Head("condition", numeric=False),
        *(Head(label(column)) for column in columns),
    ]
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
