"""Every model: its estimates where there are few, a table to sort and search, and all numbers as files."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from landscope.core.estimate import Estimate
from landscope.core.schema import Plain
from landscope.report.associations import Associations
from landscope.report.cohorts import Cohort, Study
from landscope.report.columns import label, value_columns
from landscope.report.conditions import summary_of
from landscope.report.embedding import packed_csv, rounded
from landscope.report.numerals import duration
from landscope.report.section import Block, Cell, Downloads, Head, Mark, Section, Table
from landscope.studies.table import long_table, wide_table

__all__ = ["data_section", "estimate_section", "files", "plain_study"]

FEW = 3
"""Runs up to which every estimate is printed."""
FILES = {
    "estimates.csv": "One row per estimate: who, value, both errors, status, reason, cost",
    "models.csv": "One row per model, one column per measure",
    "conditions.csv": "Mean, standard deviation and n of every condition and column",
    "correlations.csv": "Every measure against every outcome",
    "histories.csv": "One row per run and epoch",
}


def estimate_section(study: Study) -> Section:
    """A table for each split of each model, where there are few of them."""
    blocks: list[Block] = []
    if len(study.records) <= FEW:
        for cohort in study.cohorts:
            for run, subject in cohort.members.items():
                for split, report in subject.reports.items():
                    about = " · ".join(
                        str(report.about[k]) for k in ("model", "parameters", "samples") if k in report.about
                    )
                    caption = f"{study.run_name(run)}, {cohort.name}, {split} rows" + (f": {about}." if about else ".")
                    rows = [_estimate(f"{split}.{name}", e) for name, e in report.items()]
                    heads = ("value", "± data", "passes", "time")
                    head = [Head("measure", numeric=False), *map(Head, heads), Head("status", numeric=False)]
                    blocks.append(Table(head, rows, caption))
    return Section("estimates", "What was measured", blocks)


def _estimate(column: str, e: Estimate) -> list[Cell]:
    value, _, error = (str(e) if e.status.has_value else "–").replace("-", "−").partition(" ± ")
    marks: dict[str, Mark] = {"failed": "bad", "not applicable": "muted"}
    return [
        Cell(label(column), title=column),
        Cell(value, error, mark="" if e.status.has_value else "muted"),
        Cell("" if e.data_stderr is None else f"{e.data_stderr:.2g}".replace("-", "−")),
        Cell(f"{e.cost.passes:.1f}"),
        Cell(duration(e.cost.seconds)),
        Cell(e.status.value, title=e.reason, mark=marks.get(e.status.value, "")),
    ]


def data_section(offered: Sequence[str]) -> Section:
    """The table that the script fills, and the files."""
    table = Table(
        (),
        (),
        "Every model with its numbers; a click on a column's head sorts, one on a row lights the model up.",
        key="model-table",
    )
    files = Downloads({name: FILES[name] for name in offered})
    return Section("every-model", "Every model, every number", [table, files])


def files(study: Study, every: Sequence[Associations]) -> dict[str, str]:
    """The CSV files, packed; those without a row are left out."""
    summaries = [summary_of(study, cohort).to_frame().assign(models=cohort.name) for cohort in study.cohorts]
    correlations = [found.table.to_frame().assign(models=found.cohort.name) for found in every]
    history = [
        {"run": record.run, "condition": record.condition, "seed": record.seed, **row}
        for record in study.records
        for row in record.history
    ]
    frames = {
        "estimates.csv": long_table(study.records),
        "models.csv": wide_table(study.records),
        "conditions.csv": pd.concat(summaries, ignore_index=True),
        "correlations.csv": pd.concat(correlations, ignore_index=True) if correlations else pd.DataFrame(),
        "histories.csv": pd.DataFrame(history),
    }
    return {name: packed_csv(frame) for name, frame in frames.items() if not frame.empty}


def plain_study(study: Study) -> dict[str, Plain]:
    """What the script draws scatter plots and the table of models from."""
    columns = list(
        dict.fromkeys([*study.outcomes, *study.measures, *(c for k in study.cohorts for c in value_columns(k.frame))])
    )
    return {
        "conditions": list(study.conditions),
        "runs": [
            {"condition": study.condition_of[run], "seed": record.seed, "id": record.run}
            for run, record in enumerate(study.records)
        ],
        "labels": {c: label(c) for c in columns},
        "columns": [*columns],
        "cohorts": [_plain_cohort(cohort) for cohort in study.cohorts],
    }


def _plain_cohort(cohort: Cohort) -> dict[str, Plain]:
    columns = value_columns(cohort.frame)
    return {
        "name": cohort.name,
        "runs": list(cohort.members),
        "values": {c: rounded(cohort.frame[c], 5) for c in columns},
        "errors": {c: rounded(cohort.errors[c], 3) for c in columns},
    }
