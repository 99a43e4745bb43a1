"""Every model: its estimates where there are few, a table to sort and search, and all numbers as files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

import pandas as pd
import yaml

from landscope.core.estimate import Estimate
from landscope.core.json import Plain
from landscope.core.text import decimal, duration, size
from landscope.report.data.associations import Associations
from landscope.report.data.cohorts import Cohort, Cohorts
from landscope.report.data.columns import label, value_columns
from landscope.report.page.blocks import Block, Cell, Downloads, Heading, Mark, Section, Source, Table, words
from landscope.report.page.glossary import STATISTICS, meanings
from landscope.report.page.html import finite, rounded
from landscope.report.sections.conditions import summary_of
from landscope.studies.record import Failure, long_table, wide_table

FEW = 3
"""Runs up to which every estimate is printed."""
FILES = {
    "estimates.csv": "One row per estimate: who, value, both errors, status, reason, cost",
    "models.csv": "One row per model, one column per measure",
    "conditions.csv": "Mean, standard deviation and n of every condition and column",
    "correlations.csv": "Every measure against every outcome",
    "histories.csv": "One row per run and epoch",
}


def estimate_section(study: Cohorts) -> Section:
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
                    numbers = map(Heading, ("value", "± data", "passes", "time"))
                    blocks.append(Table([*words("measure"), *numbers, *words("status")], rows, caption))
    return Section("estimates", "What was measured", blocks)


def _estimate(column: str, e: Estimate) -> list[Cell]:
    value, _, error = (str(e) if e.status.has_value else "–").replace("-", "−").partition(" ± ")
    marks: dict[str, Mark] = {"failed": "bad", "not applicable": "muted"}
    return [
        Cell(label(column), title=column),
        Cell(value, error, mark="" if e.status.has_value else "muted"),
        Cell("" if e.data_stderr is None else decimal(e.data_stderr, ".2g")),
        Cell(f"{e.cost.passes:.1f}"),
        Cell(duration(e.cost.seconds)),
        Cell(e.status.value, title=e.reason, mark=marks.get(e.status.value, "")),
    ]


def data_section(offered: Iterable[str]) -> Section:
    """The table that the script fills, and the files."""
    table = Table(
        (),
        (),
        "Every model with its numbers; click a column's head to sort, a row to highlight the model.",
        key="model-table",
    )
    files = Downloads({name: FILES[name] for name in offered})
    return Section("every-model", "Every model, every number", [table, files])


def terms_of(study: Cohorts) -> dict[str, str]:
    """The words that a page of this study explains."""
    columns = dict.fromkeys(column for cohort in study.cohorts for column in value_columns(cohort.frame))
    return {**meanings(columns), **STATISTICS}


def term_section(terms: Mapping[str, str]) -> Section:
    """What the words of the page mean, for readers without a pointer and for paper."""
    rows = [[Cell(term), Cell(meaning)] for term, meaning in terms.items()]
    table = Table(words("", ""), rows, "Measures first, then statistics.", key="terms-table")
    return Section("terms", "What the words mean", [table])


def files(study: Cohorts, every: Sequence[Associations]) -> dict[str, pd.DataFrame]:
    """The tables that can be downloaded as CSV; those without a row are left out."""
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
    return {name: frame for name, frame in frames.items() if not frame.empty}


def plain_study(study: Cohorts) -> dict[str, Plain]:
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


# Where the numbers come from: spec, environments, commits, times, seeds, and what could not be measured.


REASONS = 60
SEEDS = 12


def provenance_section(study: Cohorts, spec: Mapping[str, Plain] | None, failed: Sequence[Failure] = ()) -> Section:
    """Tables, and the spec as it was written."""
    blocks: list[Block] = [_facts(study)]
    if failed:
        blocks.append(_failures(failed))
    statuses = _statuses(study)
    if statuses.rows:
        blocks.append(statuses)
    if spec is not None:
        blocks.append(Source("The study's spec", yaml.safe_dump(finite(spec), sort_keys=False, allow_unicode=True)))
    first = study.records[0]
    if first.spec:
        whose = f"The spec of one run ({study.run_name(0)}, {first.run})"
        blocks.append(Source(whose, yaml.safe_dump(finite(first.spec), sort_keys=False, allow_unicode=True)))
    return Section("provenance", "Where these numbers come from", blocks)


def _facts(study: Cohorts) -> Table:
    records = study.records
    seeds = sorted({record.seed for record in records})
    shown = ", ".join(map(str, seeds[:SEEDS])) + (f", … ({len(seeds)} in all)" if len(seeds) > SEEDS else "")
    seconds = [record.seconds for record in records]
    facts = [
        ("runs", f"{len(records):,}"),
        ("models measured", f"{sum(len(record.subjects) for record in records):,}"),
        ("conditions", f"{len(study.conditions):,}"),
        ("seeds", shown),
        ("axes", ", ".join(dict.fromkeys(axis for record in records for axis in record.axes)) or "–"),
    ]
    if sum(seconds) > 0:
        facts.append(("time of all runs", f"{duration(sum(seconds))}; the longest took {duration(max(seconds))}"))
    peak = max(record.peak_memory for record in records)
    if peak > 0:
        facts.append(("largest memory of a run", size(int(peak))))
    for key in dict.fromkeys(name for record in records for name in record.environment):
        found = Counter(_shown(record.environment[key]) for record in records if key in record.environment)
        some = [value if len(found) == 1 else f"{value} ({count} runs)" for value, count in found.most_common(4)]
        facts.append((key.replace("_", " "), "; ".join(some) + ("; …" if len(found) > 4 else "")))
    rows = [[Cell(name), Cell(value)] for name, value in facts]
    return Table(words("", ""), rows, "What was run, and on what.", key="facts")


def _failures(failed: Sequence[Failure]) -> Table:
    heads = [*words("condition"), Heading("seed"), *words("why")]
    rows = [[Cell(f.condition), Cell(str(f.seed)), Cell(f.reason)] for f in failed]
    return Table(heads, rows, "Runs that failed: they are in no number of this page.", key="failures")


def _shown(value: Plain) -> str:
    return value if isinstance(value, str) else json.dumps(finite(value), ensure_ascii=False)


def _statuses(study: Cohorts) -> Table:
    """Estimates that are neither exact nor converged, by measure."""
    held: dict[tuple[str, str], list[str]] = {}
    total: Counter[str] = Counter()
    for record in study.records:
        for subject in record.subjects:
            for split, report in subject.reports.items():
                for name, estimate in report.items():
                    column = f"{split}.{name}"
                    total[column] += 1
                    if estimate.status.value not in ("exact", "converged"):
                        held.setdefault((column, estimate.status.value), []).append(estimate.reason)
    rows = []
    for (column, status), reasons in list(held.items())[:REASONS]:
        common, _ = Counter(reasons).most_common(1)[0]
        rows.append(
            [Cell(label(column), title=column), Cell(status), Cell(f"{len(reasons)} of {total[column]}"), Cell(common)]
        )
    return Table(
        [*words("measure", "status"), Heading("estimates"), *words("most common reason")],
        rows,
        "Estimates that are neither exact nor converged. Those without a value are missing from tables and figures.",
        key="statuses",
    )
