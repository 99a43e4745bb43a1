"""The report of a study in a store, and its figures: what its spec asks, as far as it was measured."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

from landscope.core.errors import SpecError, UnknownNameError
from landscope.core.json import Plain
from landscope.report.page.matplotlib import FORMATS
from landscope.report.write import ReportOptions, figures, write_report
from landscope.specs.schema import to_plain
from landscope.studies.record import Record, wide_table
from landscope.studies.spec import AnalysisSpec, StudySpec
from landscope.studies.store import RunStatus
from landscope.studies.study import Study, report_mark


def write_study_report(
    study: Study,
    path: str | os.PathLike[str],
    records: Sequence[Record],
    statuses: Mapping[str, RunStatus],
    *,
    static: bool = False,
) -> Path:
    """The report of what is done so far: of the study's records and of the statuses of its runs."""
    options = replace(
        options_of(study.spec, records),
        failed=study.failures(statuses),
        static=static,
        mark=report_mark(study, statuses, light=static),
    )
    return write_report(records, path, options)


def write_study_figures(
    study: Study, folder: str | os.PathLike[str], formats: Sequence[str], records: Sequence[Record]
) -> list[Path]:
    """Figures for papers, of the same columns as the report."""
    for word in formats:
        if word not in FORMATS:
            raise SpecError(f"expected png, svg or pdf as the format of figures, got {word!r}")
    return figures(records, folder, formats, options_of(study.spec, records))


def options_of(spec: StudySpec, records: Sequence[Record]) -> ReportOptions:
    """What a study's spec asks, as far as it was measured.

    Columns that no record has are left out with a sentence that says so; where that leaves no outcome or measure, it is an error.
    Outcomes of classifiers that a study did not name and does not have (its network predicts numbers, or shapes) give way to
    those that it has.
    """
    analysis = spec.analysis
    known = set(wide_table(records).columns)
    others = not _outcomes_are_named(analysis) and analysis.outcomes[0] not in known
    return ReportOptions(
        title=spec.name,
        question=spec.question or None,
        spec=cast(Mapping[str, Plain], to_plain(spec)),
        measures=None if analysis.measures is None else _measured("measure", analysis.measures, known),
        outcomes=None if others else _measured("outcome", analysis.outcomes, known) or None,
        method=analysis.method,
        given=analysis.given if analysis.given in known else None,
        baseline=analysis.baseline,
        checkpoint=analysis.checkpoint,
        notes=_left_out(analysis, known),
    )


def _outcomes_are_named(analysis: AnalysisSpec) -> bool:
    return analysis.outcomes != AnalysisSpec().outcomes


def _measured(kind: str, names: Sequence[str], known: Collection[str]) -> list[str]:
    """Those that some record has; where there is none, there is nothing to report."""
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
