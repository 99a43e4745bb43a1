"""The papers' table: a row for each condition, mean ± standard deviation over its models, best and worst marked.

Conditions whose models learn from different data are not ranked: their errors are of different tasks, in units of their own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, cast

import pandas as pd

from landscope.analysis import RankTest, SummaryTable, benjamini_yekutieli, summary_table, wilcoxon
from landscope.core.errors import UnknownNameError
from landscope.core.text import p_value
from landscope.report.data.cohorts import Cohort, Cohorts
from landscope.report.data.columns import better, label
from landscope.report.page.blocks import Block, Cell, Head, Mark, Prose, Section, Table

__all__ = ["baseline_table", "condition_section", "summary_of"]


# Is a condition better than the baseline: Wilcoxon's one-sided test for every outcome, with its effect size.


LEVEL = 0.05


def baseline_table(study: Cohorts, baseline: str) -> Table | None:
    """Effect and adjusted p of every other condition and outcome; `None` where there is nothing to compare."""
    if baseline not in study.conditions:
        raise UnknownNameError.among("condition to be the baseline", baseline, study.conditions)
    outcomes = [outcome for outcome in study.outcomes if better(outcome)]
    others = [name for name in study.conditions if name != baseline]
    tests = {(name, outcome): _test(study, name, baseline, outcome) for name in others for outcome in outcomes}
    if not tests:
        return None
    adjusted = dict(zip(tests, benjamini_yekutieli([t.p_value for t in tests.values()]), strict=True))
    rows = []
    for name in others:
        cells = [Cell(name, condition=study.conditions.index(name))]
        for outcome in outcomes:
            cells += _cells(tests[name, outcome], adjusted[name, outcome])
        rows.append(cells)
    heads = [head for outcome in outcomes for head in (Head(label(outcome)), Head("adjusted p"))]
    smallest = min((t.smallest_p for t in tests.values() if t.smallest_p is not None), default=None)
    limit = "" if smallest is None else f" With this few runs no p can be below {smallest:.2g} before adjustment."
    kind = "signed-rank, pairs of equal seeds" if next(iter(tests.values())).test == "signed-rank" else "rank-sum"
    return Table(
        [Head(f"better than {baseline}?", numeric=False), *heads],
        rows,
        f"Rank-biserial effect and one-sided p of Wilcoxon's test ({kind}): +1 where every run is better than the baseline's, −1 "
        f"where every one is worse; adjusted for {len(tests)} tests.{limit if (smallest or 0) > LEVEL / len(tests) else ''}",
    )


def _test(study: Cohorts, name: str, baseline: str, outcome: str) -> RankTest:
    """Paired by seed where both conditions have the same ones, each once."""
    frame = study.main.frame
    one, other = (
        pd.Series(
            frame.loc[frame["condition"] == c, outcome].to_numpy(), index=frame.loc[frame["condition"] == c, "seed"]
        )
        for c in (name, baseline)
    )
    paired = one.index.is_unique and other.index.is_unique and set(one.index) == set(other.index)
    return wilcoxon(one, other, "greater" if better(outcome) > 0 else "less", paired=paired)


def _cells(test: RankTest, adjusted: float | None) -> list[Cell]:
    if test.effect is None:
        return [Cell("–", mark="muted", title=test.reason), Cell("–", mark="muted")]
    towards = test.effect if test.alternative == "greater" else -test.effect
    sure = adjusted is not None and adjusted <= LEVEL
    shown = f"{towards:+.2f}".replace("-", "−")
    return [
        Cell(shown, mark="best" if sure else "", title=f"n = {test.n}, {test.p_method}"),
        Cell(p_value(adjusted).removeprefix("= ")),
    ]


COHORTS = 4


def summary_of(study: Cohorts, cohort: Cohort) -> SummaryTable:
    """Outcomes first, then measures; the columns that this cohort has."""
    columns = [c for c in (*study.outcomes, *study.measures) if c in cohort.frame and cohort.frame[c].notna().any()]
    directions: dict[str, Literal["higher", "lower"]] = {
        c: "higher" if better(c) > 0 else "lower" for c in columns if better(c) and _of_one_task(study)
    }
    return summary_table(
        cohort.frame, rows="condition", columns={c: _title(c, columns) for c in columns}, better=directions
    )


def condition_section(study: Cohorts, baseline: str | None = None) -> Section:
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


def _of_one_task(study: Cohorts) -> bool:
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


def _table(study: Cohorts, cohort: Cohort, summary: SummaryTable, named: bool) -> Table:
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
