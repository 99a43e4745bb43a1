"""The report of a study in a store, and its figures."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TypedDict, cast

from landscope.analysis.coefficients import Method
from landscope.core.errors import SpecError, UnknownNameError
from landscope.core.schema import Plain, to_plain
from landscope.report.page import write_report
from landscope.report.published import ComparedNumber
from landscope.report.section import Claim
from landscope.report.static import figures
from landscope.studies.record import Failure, Record
from landscope.studies.report_mark import report_mark
from landscope.studies.spec import AnalysisSpec, StudySpec
from landscope.studies.store import RunStatus
from landscope.studies.study import Study
from landscope.studies.table import wide_table

__all__ = ["write_records_report", "write_study_figures", "write_study_report"]


def write_study_report(
    study: Study,
    path: str | os.PathLike[str],
    records: Sequence[Record],
    statuses: Mapping[str, RunStatus],
    *,
    light: bool = False,
) -> Path:
    """The report of what is done so far: of the study's records and of the statuses of its runs."""
    failed = study.failures(statuses)
    mark = report_mark(study, statuses, light=light)
    return write_records_report(study.spec, records, path, failed=failed, light=light, mark=mark)


def write_records_report(
    spec: StudySpec,
    records: Sequence[Record],
    path: str | os.PathLike[str],
    *,
    compared: Sequence[ComparedNumber] = (),
    claims: Sequence[Claim] | None = None,
    failed: Sequence[Failure] = (),
    light: bool = False,
    mark: str = "",
) -> Path:
    """The report of a study's records: its question and the columns that its analysis names.

    Those that no record has are left out with a sentence that says so; where that leaves no outcome or measure, it is an error.
    """
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
        notes=_left_out(spec.analysis, known),
        light=light,
        mark=mark,
    )


def write_study_figures(
    study: Study, folder: str | os.PathLike[str], formats: Sequence[str], records: Sequence[Record]
) -> list[Path]:
    """Static figures for papers, of what the report is of."""
    for word in formats:
        if word not in ("png", "svg", "pdf"):
            raise SpecError(f"figures are png, svg or pdf; {word!r} came")
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
    others = not _outcomes_are_named(analysis) and analysis.outcomes[0] not in known
    return {
        "measures": None if analysis.measures is None else _measured("measure", analysis.measures, known),
        "outcomes": None if others else _measured("outcome", analysis.outcomes, known) or None,
        "method": analysis.method,
        "checkpoint": analysis.checkpoint,
    }


def _outcomes_are_named(analysis: AnalysisSpec) -> bool:
    return analysis.outcomes != AnalysisSpec().outcomes


def _measured(kind: str, names: Sequence[str], known: Collection[str]) -> list[str]:
    """Those that some record has. Where none is, nothing that was asked can be told."""
    found = [name for name in names if name in known]
    if names and not found:
        raise UnknownNameError.among(f"{kind} of the analysis", names[0], known)
    return found


def _left_out(analysis: AnalysisSpec, known: Collection[str]) -> list[str]:
    """A sentence for every name of the analysis that no record has."""
    named = [("measure", name) for name in analysis.measures or ()]
    named += [("outcome", name) for name in analysis.outcomes if _outcomes_are_named(analysis)]
    if analysis.given not in (None, AnalysisSpec().given):
        named.append(("column to account for", str(analysis.given)))
    errors = [UnknownNameError.among(kind, name, known) for kind, name in named if name not in known]
    return [f"Left out, because no record has it: {str(error).partition(' Choices: ')[0]}" for error in errors]
