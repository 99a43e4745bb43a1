"""The report of a study in a store, and its figures."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TypedDict, cast

from landscope.analysis.coefficients import Method
from landscope.core.errors import SpecError
from landscope.core.schema import Plain, to_plain
from landscope.report.page import write_report
from landscope.report.published import ComparedNumber
from landscope.report.section import Claim
from landscope.report.static import figures
from landscope.studies.record import Failure, Record
from landscope.studies.spec import AnalysisSpec, StudySpec
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
    return write_report(
        records,
        path,
        title=spec.name,
        question=spec.question or None,
        spec=cast(Mapping[str, Plain], to_plain(spec)),
        compared=compared,
        claims=claims,
        **_asked(spec, known),
        given=spec.analysis.given if spec.analysis.given in known else None,
        baseline=spec.analysis.baseline,
        failed=failed,
        light=light,
    )


def write_study_figures(study: Study, folder: str | os.PathLike[str], formats: Sequence[str]) -> list[Path]:
    """Static figures for papers, of what the report is of."""
    for word in formats:
        if word not in ("png", "svg", "pdf"):
            raise SpecError(f"figures are png, svg or pdf; {word!r} came")
    records = study.records()
    asked = _asked(study.spec, set(wide_table(records).columns))
    return list(figures(records, folder, formats=tuple(formats), **asked))


class _Asked(TypedDict):
    measures: list[str] | None
    outcomes: list[str] | None
    method: Method
    checkpoint: str | None


def _asked(spec: StudySpec, known: Collection[str]) -> _Asked:
    """What an analysis names, as far as it was measured. Outcomes of classifiers that a study did not ask for and has not got
    (its network gives numbers, or shapes) make room for those that it has.
    """
    analysis = spec.analysis
    outcomes = [column for column in analysis.outcomes if column in known]
    if analysis.outcomes == AnalysisSpec().outcomes and analysis.outcomes[0] not in known:
        outcomes = []
    return {
        "measures": None if analysis.measures is None else [c for c in analysis.measures if c in known],
        "outcomes": outcomes or None,
        "method": analysis.method,
        "checkpoint": analysis.checkpoint,
    }
