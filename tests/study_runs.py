"""Do the runs of a study in this process, as a worker of an executor would."""

from __future__ import annotations

from landscope.studies.study import Study
from landscope.studies.work.run import run_in_folder

__all__ = ["do_here"]


def do_here(study: Study) -> Study:
    """Every run that is not done yet; the study itself."""
    for spec in study.runs.values():
        run = study.store.add(spec.plain)
        if not run.done():
            with run.claim():
                run_in_folder(run.spec(), str(run.folder))
    return study
