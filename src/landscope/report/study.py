"""The report of a study in a store, and its figures."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from landscope.core.errors import SpecError
from landscope.core.schema import Plain, to_plain
from landscope.report.page import write_report
from landscope.report.published import ComparedNumber
from landscope.report.section import Claim
from landscope.report.static import figures
from landscope.studies.record import Failure, Record
from landscope.studies.spec import StudySpec
from landscope.studies.study import Study
from landscope.studies.table import wide_table

__all__ = ["write_records_report", "write_study_figures", "write_study_report"]


def write_study_report(study: Study, path: str | os.PathLike[str], *, light: bool = False) -> Path:
    """The report of what is done so far."""
    return write_records_report(study.spec, study.records(), path, failed=study.failures(), light=light)


def write_records_report(
    spec: StudySpec,
    records: Sequence[Record],
    path: str | os.PathLike[str],
    *,
    compared: Sequence[ComparedNumber] = (),
    claims: Sequence[Claim] | None = None,
    failed: Sequence[Failure] = (),
    light: bool = False,
) -> Path:
    """The report of a study's records: its question and the columns that its analysis names, as far as they were measured."""
    known = set(wide_table(records).columns)
    outcomes = [column for column in spec.analysis.outcomes if column in known]
    measures = None if spec.analysis.measures is None else [c for c in spec.analysis.measures if c in known]
    return write_report(
        records,
        path,
        title=spec.name,
        question=spec.question or None,
        spec=cast(Mapping[str, Plain], to_plain(spec)),
        compared=compared,
        claims=claims,
        measures=measures,
        outcomes=outcomes or None,
        method=spec.analysis.method,
        given=spec.analysis.given if spec.analysis.given in known else None,
        baseline=spec.analysis.baseline,
        failed=failed,
        light=light,
    )


def write_study_figures(study: Study, folder: str | os.PathLike[str], formats: Sequence[str]) -> list[Path]:
    """Static figures for papers."""
    for word in formats:
        if word not in ("png", "svg", "pdf"):
            raise SpecError(f"figures are png, svg or pdf; {word!r} came")
    return list(figures(study.records(), folder, formats=tuple(formats)))
