"""The papers' table: a row for each condition, mean ± standard deviation over its models, best and worst marked.

Conditions whose models learn from different data are not ranked: their errors are of different tasks, in units of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast

from landscope.analysis import SummaryTable, summary_table
from landscope.report.baselines import baseline_table
from landscope.report.cohorts import Cohort, Study
from landscope.report.columns import better, label
from landscope.report.section import Block, Cell, Head, Mark, Prose, Section, Table

__all__ = ["condition_section", "summary_of"]

COHORTS = 4


def summary_of(study: Study, cohort: Cohort) -> SummaryTable:
    """Outcomes first, then measures; the columns that this cohort has."""
    columns = [c for c in (*study.outcomes, *study.measures) if c in cohort.frame and cohort.frame[c].notna().any()]
    directions: dict[str, Literal["higher", "lower"]] = {
        c: "higher" if better(c) > 0 else "lower" for c in columns if better(c) and _of_one_task(study)
    }
    return summary_table(
        cohort.frame, rows="condition", columns={c: _title(c, columns) for c in columns}, better=directions
    )


def condition_section(study: Study, baseline: str | None = None) -> Section:
    """A table for each cohort, and the tests against a baseline."""
    blocks: list[Block] = []
    if len(study.records) < 2:  # its estimates are shown one by one
        return Section("conditions", "Condition by condition", blocks)
    for cohort in study.cohorts[:COHORTS]:
        summary = summary_of(study, cohort)
        if summary.columns:
            blocks.append(_table(study, cohort, summary, named=len(study.cohorts) > 1))
    against = None if baseline is None else baseline_table(study, baseline)
    if against is not None:
        blocks.append(against)
    if len(study.cohorts) > COHORTS:
        left = ", ".join(cohort.name for cohort in study.cohorts[COHORTS:])
        blocks.append(Prose(f"Not shown here: {left}.", tone="note"))
        blocks.append(Prose("The CSV files at the end of the page have them.", tone="note", scripted=True))
    return Section("conditions", "Condition by condition", blocks)


def _of_one_task(study: Study) -> bool:
    """Whether all conditions were trained on the same data."""
    data: dict[str, set[str]] = {}
    for record in study.records:
        training = record.spec.get("training")
        own = training.get("data") if isinstance(training, Mapping) else None
        data.setdefault(record.condition, set()).add(repr(own))
    first, *others = data.values()
    return all(other == first for other in others)


def _title(column: str, columns: list[str]) -> str:
    """The label, or the column's own name where two would be called the same."""
    shown = label(column)
    return column if sum(label(other) == shown for other in columns) > 1 else shown


def _table(study: Study, cohort: Cohort, summary: SummaryTable, named: bool) -> Table:
    place = {name: number for number, name in enumerate(study.conditions)}
    rows = []
    for (condition,), cells in zip(summary.rows, summary.cells, strict=True):
        most = max((cell.n for cell in cells), default=0)
        row = [Cell(condition, condition=place.get(condition)), Cell(str(most))]
        for cell in cells:
            mean, _, spread = cell.text.replace("-", "−").partition(" ± ")
            fewer = f"n = {cell.n}" + (f", {cell.missing} without a value" if cell.missing else "")
            row.append(Cell(mean, spread, cast(Mark, cell.mark), title=fewer))
        rows.append(row)
    arrows = {"higher": "↑", "lower": "↓"}
    heads = [Head(name, unit=arrows.get(summary.better.get(name, ""), "")) for name in summary.columns]
    which = f"{cohort.name[:1].upper()}{cohort.name[1:]}. " if named else ""
    marks = (
        "Shaded blue and bold: best; shaded orange and italic: worst, where it is known which way is better (arrows). For "
        "measures of sharpness that is the question."
        if _of_one_task(study)
        else "None is marked as best or worst: the conditions were trained on different data."
    )
    return Table([Head("condition", numeric=False), Head("n"), *heads], rows, f"{which}{summary.caption} {marks}")
