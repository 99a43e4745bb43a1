"""Go on from kept records: runs of a study that stand in a bundle need not be made again.

A run is recognised by its key (`studies.identity`), whatever version of Landscope made it. A run that failed where the records
were made has failed here: like any other it is tried again when that is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from landscope.core.json import Plain
from landscope.recipes.bundle import Bundle
from landscope.studies.grid import runs_of
from landscope.studies.spec import StudySpec
from landscope.studies.store import RunState
from landscope.studies.store.identity import run_key
from landscope.studies.study import Study

__all__ = ["Taken", "study_as_kept", "take_over"]


class Taken(NamedTuple):
    """How many runs of a study are now as they are in a bundle, and were not before."""

    done: int
    failed: int


def study_as_kept(spec: StudySpec, root: Path, kept: Bundle) -> Study:
    """The study of a part on the version of the data that kept records are of: the data need not be here."""
    return Study(spec, root, versions=_versions(kept))


def take_over(study: Study, kept: Bundle) -> Taken:
    """Write what a bundle has of the runs of the study into its store.

    Where models of one condition are compared with each other by their outputs, which records do not hold, only whole conditions.
    """
    records = {run_key(record.spec): record for record in kept.records}
    found = {key: record for key, run in study.runs.items() if (record := records.get(run_key(run.plain)))}
    reasons = _failed(study, kept)
    if study.spec.measuring.consistency:
        partial = {run.condition for key, run in study.runs.items() if key not in found and key not in reasons}
        found = {key: record for key, record in found.items() if study.runs[key].condition not in partial}
    done = failed = 0
    for key, record in found.items():
        folder = study.store.add(study.runs[key].plain)
        if not folder.done():
            with folder.claim():
                folder.finish(replace(record, run=key, spec=study.runs[key].plain).to_dict())
            done += 1
    for key, reason in reasons.items():
        folder = study.store.add(study.runs[key].plain)
        if study.store.status(key).state is RunState.WAITING:
            with folder.claim():
                folder.fail(reason)
            failed += 1
    return Taken(done, failed)


def _failed(study: Study, kept: Bundle) -> dict[str, str]:
    """The runs of the study that failed where the records were made, and why."""
    reasons = {(failure.condition, failure.seed): failure.reason for failure in kept.failed}
    if not reasons:
        return {}
    runs = runs_of(kept.spec, versions=_versions(kept))  # a failure has no spec of its own
    theirs = {run_key(run.plain): reasons.get((run.condition, run.seed)) for run in runs}
    return {key: reason for key, run in study.runs.items() if (reason := theirs.get(run_key(run.plain)))}


def _versions(kept: Bundle) -> Mapping[str, Plain]:
    """Of the data and of the user's own code that kept records are of."""
    versions = next((record.spec.get("versions") for record in kept.records), None)
    found = versions if isinstance(versions, Mapping) else {}
    return {name: version for name, version in found.items() if name != "landscope"}
