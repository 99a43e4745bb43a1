"""Where the numbers come from: spec, environments, commits, times, seeds, and what could not be measured."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence

import yaml

from landscope.core.schema import Plain
from landscope.report.cohorts import Study
from landscope.report.columns import label
from landscope.report.embedding import finite
from landscope.report.numerals import bytes_text, duration
from landscope.report.section import Block, Cell, Head, Section, Source, Table
from landscope.studies.record import Failure

__all__ = ["provenance_section"]

REASONS = 60
SEEDS = 12


def provenance_section(study: Study, spec: Mapping[str, Plain] | None, failed: Sequence[Failure] = ()) -> Section:
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


def _facts(study: Study) -> Table:
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
        facts.append(("largest memory of a run", bytes_text(peak)))
    for key in dict.fromkeys(name for record in records for name in record.environment):
        found = Counter(_shown(record.environment[key]) for record in records if key in record.environment)
        some = [value if len(found) == 1 else f"{value} ({count} runs)" for value, count in found.most_common(4)]
        facts.append((key.replace("_", " "), "; ".join(some) + ("; …" if len(found) > 4 else "")))
    rows = [[Cell(name), Cell(value)] for name, value in facts]
    return Table([Head("", numeric=False), Head("", numeric=False)], rows, "What was run, and on what.", key="facts")


def _failures(failed: Sequence[Failure]) -> Table:
    heads = [Head("condition", numeric=False), Head("seed"), Head("why", numeric=False)]
    rows = [[Cell(f.condition), Cell(str(f.seed)), Cell(f.reason)] for f in failed]
    return Table(heads, rows, "Runs that failed: they are in no number of this page.", key="failures")


def _shown(value: Plain) -> str:
    return value if isinstance(value, str) else json.dumps(finite(value), ensure_ascii=False)


def _statuses(study: Study) -> Table:
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
        [
            Head("measure", numeric=False),
            Head("status", numeric=False),
            Head("estimates"),
            Head("most common reason", numeric=False),
        ],
        rows,
        "Estimates that are neither exact nor converged. Those without a value are missing from tables and figures.",
        key="statuses",
    )
