"""A mark in the head of a study's report, by which it is known whether it would be written alike again.

It is a digest of all that a report is made from, so that a study of thousands of runs in which nothing is left to do need not
read and draw them all again. It stands here, not with the pages, because they take long to import.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from landscope.specs.schema import to_plain
from landscope.studies.store import RunState, RunStatus

if TYPE_CHECKING:
    from landscope.studies.study import Study

__all__ = ["has_mark", "report_mark"]

HEAD = 4096
"""Bytes of a page among which its mark stands."""
SHOWN = (RunState.DONE, RunState.FAILED)
"""Runs that a report tells of."""


def report_mark(study: Study, statuses: Mapping[str, RunStatus], *, light: bool = False) -> str:
    """The digest of the version, the spec, each record by its checksum and each failure."""
    from landscope import __version__

    runs = {key: status.checksum or status.error for key, status in statuses.items() if status.state in SHOWN}
    made_of = [__version__, light, to_plain(study.spec), runs]
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()


def has_mark(page: Path, mark: str) -> bool:
    """Whether a file is there and has the mark in its head."""
    try:
        with page.open("rb") as file:
            return mark.encode() in file.read(HEAD)
    except OSError:
        return False
