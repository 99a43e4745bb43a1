"""The papers' table: a row for each condition, mean ± standard deviation over its models, best and worst marked.

Conditions whose models learn from different data are not ranked: their errors are of different tasks, in units of their own.
A section of its own sets the numbers of a paper beside ours.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

from landscope.analysis import SummaryTable, summary_table
from landscope.analysis.tables import SummaryCell
from landscope.core.text import capital
from landscope.measures.reading.rows import FAMILIES
from landscope.report.data.cohorts import Cohort, Cohorts
from landscope.report.data.columns import Column, better, titles_of
from landscope.report.data.contrasts import Contrasts
from landscope.report.page.blocks import Block, Cell, Heading, Mark, Prose, Section, Table, words
from landscope.report.sections.against_baseline import baseline_table

COHORTS = 4
ACROSS, COLUMNS = 8, 8
"""Conditions up to which they stand side by side, and columns of a table where they do not."""
ARROWS = {"higher": "↑", "lower": "↓"}
OUTCOME = "outcome"
FAMILY_ORDER = (OUTCOME, *(family.value for family in FAMILIES), "others")


def summary_of(study: Cohorts, cohort: Cohort) -> SummaryTable:
    """Outcomes first, then measures."""
    columns = _columns(study, cohort)
    directions: dict[str, Literal["higher", "lower"]] = {
        c: "higher" if better(c) > 0 else "lower" for c in columns if better(c) and _of_one_task(study)
    }
    return summary_table(cohort.frame, rows="condition", columns=titles_of(columns), better=directions)


def _columns(study: Cohorts, cohort: Cohort) -> list[str]:
    return [c for c in (*study.outcomes, *study.measures) if c in cohort.frame and cohort.frame[c].notna().any()]


def condition_section(study: Cohorts, against: Contrasts | None = None) -> Section:
    """A table for each cohort, and the changes against a baseline."""
    blocks: list[Block] = []
    if len(study.records) < 2:  # its estimates are shown one by one
        return Section("conditions", "Condition by condition", blocks)
    for cohort in study.cohorts[:COHORTS]:
        summary = summary_of(study, cohort)
        if summary.columns:
            blocks += _tables(study, cohort, summary, named=len(study.cohorts) > 1)
    if against is not None:
        blocks.append(baseline_table(study, against))
    if len(study.cohorts) > COHORTS:
        left = ", ".join(cohort.name for cohort in study.cohorts[COHORTS:])
        blocks.append(Prose(f"Not shown here: {left}.", tone="note"))
        blocks.append(Prose("The CSV files at the end of the page have them.", tone="note", scripted=True))
    return Section(
        "conditions", "Condition by condition", blocks, _so_what(summary_of(study, study.main), against is not None)
    )


def _of_one_task(study: Cohorts) -> bool:
    """Whether all conditions were trained on the same data."""
    data: dict[str, set[str]] = {}
    for record in study.records:
        training = record.spec.get("training")
        own = training.get("data") if isinstance(training, Mapping) else None
        data.setdefault(record.condition, set()).add(repr(own))
    first, *others = data.values()
    return all(other == first for other in others)


def _tables(study: Cohorts, cohort: Cohort, summary: SummaryTable, named: bool) -> list[Table]:
    """Conditions across where they are few, so that the table is as wide as they are; otherwise down, a few columns at a time."""
    which = f"{capital(cohort.name)}. " if named else ""
    marks = (
        "Shaded blue and bold: best; shaded orange and italic: worst, where it is known which way is better (arrows). It "
        "is not for sharpness: whether flatter is better is what a study asks."
        if _of_one_task(study)
        else "None is marked as best or worst: the conditions were trained on different data."
    )
    caption = f"{which}{summary.caption} {marks}"
    columns = _columns(study, cohort)
    kept = [at for at, column in enumerate(columns) if column not in study.repeats]
    if len(kept) < len(summary.columns):
        caption += " A measure that equals another up to a constant factor is left out."
    if len(summary.rows) <= ACROSS:
        kinds = {at: _family(study, columns[at]) for at in kept}
        return [_across(study, summary, kinds, caption, f"condition-table-{study.cohorts.index(cohort)}")]
    parts = [kept[start : start + COLUMNS] for start in range(0, len(kept), COLUMNS)]
    return [_down(study, summary, part, caption if part is parts[-1] else "") for part in parts]


def _across(study: Cohorts, summary: SummaryTable, kinds: Mapping[int, str], caption: str, key: str) -> Table:
    """A row for each column of the study's table, those of one family (`kinds`) together."""
    names = [condition for (condition,) in summary.rows]
    places = {name: number for number, name in enumerate(study.conditions)}
    order = sorted(kinds, key=lambda at: FAMILY_ORDER.index(kinds[at]))
    rows = []
    before = ""
    for at in order:
        name = summary.columns[at]
        arrow = ARROWS.get(summary.better.get(name, ""), "")
        cells = [_value(cells[at]) for cells in summary.cells]
        rows.append([Cell(f"{name} {arrow}".strip()), Cell(kinds[at] if kinds[at] != before else ""), *cells])
        before = kinds[at]
    sizes = sorted({max((cell.n for cell in cells), default=0) for cells in summary.cells})
    runs = f"n = {sizes[0]}" if len(sizes) == 1 else f"n = {sizes[0]} to {sizes[-1]}"
    heads = [*words("", runs), *(Heading(name, condition=places.get(name)) for name in names)]
    return Table(heads, rows, caption, key=key)


def _family(study: Cohorts, column: str) -> str:
    facts = Column.of(column).facts
    family = facts.family.value if isinstance(facts, type) else ""
    return OUTCOME if column in study.outcomes else family if family in FAMILY_ORDER else FAMILY_ORDER[-1]


def _down(study: Cohorts, summary: SummaryTable, part: Sequence[int], caption: str) -> Table:
    place = {name: number for number, name in enumerate(study.conditions)}
    rows = []
    for (condition,), cells in zip(summary.rows, summary.cells, strict=True):
        most = max((cell.n for cell in cells), default=0)
        rows.append(
            [Cell(condition, condition=place.get(condition)), Cell(str(most)), *(_value(cells[at]) for at in part)]
        )
    names = [summary.columns[at] for at in part]
    heads = [Heading(name, unit=ARROWS.get(summary.better.get(name, ""), "")) for name in names]
    return Table([*words("condition"), Heading("n"), *heads], rows, caption)


def _value(cell: SummaryCell) -> Cell:
    mean, _, spread = cell.text.replace("-", "−").partition(" ± ")
    fewer = f"n = {cell.n}" + (f", {cell.missing} without a value" if cell.missing else "")
    return Cell(mean, spread, cast(Mark, cell.mark), title=fewer)


def _so_what(summary: SummaryTable, tested: bool) -> str:
    """Which condition is best on how many outcomes, and where it stands whether that is chance."""
    best: dict[str, list[str]] = {}
    for (condition,), cells in zip(summary.rows, summary.cells, strict=True):
        for name, cell in zip(summary.columns, cells, strict=True):
            if cell.mark == "best":
                best.setdefault(condition, []).append(name)
    if not best or len(summary.rows) < 2:
        return ""
    named = "; ".join(f"{name} in {', '.join(columns)}" for name, columns in best.items())
    sure = "is in the changes against the baseline" if tested else "is not shown by this table"
    return f"Best on average: {named}. Whether that is more than chance {sure}."


# A paper's numbers beside ours.


@dataclass(frozen=True)
class ComparedNumber:
    """A published number and ours, as its code computed it and corrected: texts ("14.9 ± 0.2"), a dash where there is none."""

    table: str
    condition: str
    metric: str
    paper: str
    published: str
    corrected: str
    n: int


def compared_section(study: Cohorts, compared: Sequence[ComparedNumber]) -> Section:
    """Published numbers and ours side by side, in the paper's order and units."""
    heads = [*words("table", "condition", "metric"), *map(Heading, ("paper", "as published", "corrected", "n"))]
    rows = [
        [
            Cell(number.table),
            Cell(number.condition, condition=_place(study, number.condition)),
            Cell(_shown(number.metric), title=number.metric),
            *(_printed(text) for text in (number.paper, number.published, number.corrected)),
            Cell(str(number.n)),
        ]
        for number in compared
    ]
    caption = "The paper's numbers, ours as its code computed them, and ours corrected; mean ± standard deviation over n models."
    table = Table(heads, rows, caption, key="published-table")
    return Section("published", "Beside the published numbers", [table] if rows else [])


def _printed(text: str) -> Cell:
    value, _, spread = text.replace("-", "−").partition(" ± ")
    return Cell(value, spread)


def _place(study: Cohorts, condition: str) -> int | None:
    """The number of a condition; "+temp" marks its temperature-scaled models, "; corrected: …" is another one's name."""
    base = condition.partition(";")[0].removesuffix("+temp").strip()
    return study.conditions.index(base) if base in study.conditions else None


def _shown(metric: str) -> str:
    """A metric's name with its unit.

    >>> _shown("test_error_pct"), _shown("train_loss_x100"), _shown("weight_norm")
    ('test error (%)', 'train loss (×100)', 'weight norm')
    """
    for suffix, unit in (("_pct", " (%)"), ("_x100", " (×100)")):
        if metric.endswith(suffix):
            return metric.removesuffix(suffix).replace("_", " ") + unit
    return metric.replace("_", " ")
