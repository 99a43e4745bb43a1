"""The studies of a recipe's parts, ready to run: with what is among kept records, and nothing missing for the rest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from landscope.cli.output import note

if TYPE_CHECKING:
    from landscope.core.errors import LandscopeError
    from landscope.recipes import Kept, Part
    from landscope.studies.spec import StudySpec
    from landscope.studies.study import Study

__all__ = ["part_studies"]


def part_studies(
    wanted: Mapping[str, Part], folder: Path, records: Mapping[str, Kept], size: str, only: Sequence[str]
) -> tuple[dict[str, Study], dict[str, LandscopeError]]:
    """The studies of some parts, with what is among kept records; and of those that cannot be run, why not.

    That is for want of data, of a package, or of any run that `only` asks for.
    """
    from landscope.core.errors import DataFileError, MissingExtraError, UnknownNameError
    from landscope.studies.choosing import chosen
    from landscope.studies.inputs import check_inputs

    studies: dict[str, Study] = {}
    lacking: dict[str, LandscopeError] = {}
    asked: set[tuple[str, str]] = set()
    for label, entry in wanted.items():
        if records and label not in records:
            note(f"{label}: there are no kept records of this part")
        try:
            study = _study(entry.study, folder / label, records.get(label), size)
            check_inputs(study, chosen(study.runs, only), asked)
            studies[label] = study
        except (DataFileError, MissingExtraError, UnknownNameError) as error:
            lacking[label] = type(error)(f"the part {label} cannot be run: {error}".rstrip("."))
    return studies, lacking


def _study(spec: StudySpec, folder: Path, kept: Kept | None, size: str) -> Study:
    """The study of a part; one whose runs are all among kept records needs no data."""
    from landscope.core.errors import DataFileError
    from landscope.recipes import study_as_kept, take_over
    from landscope.studies.study import Study

    missing: DataFileError | None = None
    try:
        study = Study(spec, folder)
    except DataFileError as error:
        if kept is None:
            raise
        missing, study = error, study_as_kept(spec, folder, kept.bundle)
    if kept is not None:
        taken = take_over(study, kept.bundle)
        failed = f", and {taken.failed} that failed (--retry-failed tries them again)" if taken.failed else ""
        other = "" if kept.bundle.size == size else f"; the records are of size {kept.bundle.size}, not {size}"
        note(f"{kept.path}: {taken.done} of {len(study.runs)} runs taken over{failed}{other}")
    if missing is not None and study.progress().left:
        raise missing
    return study
