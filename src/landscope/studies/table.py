"""Records as tables: one row per estimate (long), or one row per measured model (wide)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from landscope.core.schema import Plain
from landscope.studies.record import Record, Subject

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["long_table", "wide_table"]


def _identity(record: Record, subject: Subject) -> dict[str, Plain]:
    return {
        "run": record.run,
        "condition": record.condition,
        "seed": record.seed,
        "checkpoint": subject.checkpoint,
        "temperature": subject.temperature,
        **{f"axis.{axis}": level for axis, level in record.axes.items()},
    }


def _subjects(records: Iterable[Record]) -> Iterator[tuple[Mapping[str, Plain], Subject]]:
    for record in records:
        for subject in record.subjects:
            yield _identity(record, subject), subject


def long_table(records: Iterable[Record]) -> pd.DataFrame:
    """One row per estimate: who (run, condition, seed, checkpoint, temperature, axes), split, measure, value, errors, status."""
    import pandas as pd

    rows = [
        {
            **identity,
            "split": split,
            "measure": name,
            "value": e.value if e.status.has_value else math.nan,
            "stderr": math.nan if e.stderr is None or not e.status.has_value else e.stderr,
            "data_stderr": math.nan if e.data_stderr is None else e.data_stderr,
            "status": e.status.value,
            "reason": e.reason,
            "passes": e.cost.passes,
            "seconds": e.cost.seconds,
        }
        for identity, subject in _subjects(records)
        for split, report in subject.reports.items()
        for name, e in report.items()
    ]
    return pd.DataFrame(rows)


def wide_table(records: Iterable[Record]) -> pd.DataFrame:
    """One row per measured model: a column `split.measure` for each value, and gaps between the test and training splits."""
    import pandas as pd

    rows: list[dict[str, object]] = []
    for identity, subject in _subjects(records):
        row: dict[str, object] = dict(identity)
        for split, report in subject.reports.items():
            row |= {f"{split}.{name}": e.value if e.status.has_value else math.nan for name, e in report.items()}
        for name in ("loss", "error"):
            if f"test.{name}" in row and f"train.{name}" in row:
                row[f"gap.{name}"] = float(row[f"test.{name}"]) - float(row[f"train.{name}"])  # type: ignore[arg-type]
        rows.append(row)
    return pd.DataFrame(rows)
