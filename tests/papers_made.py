"""A paper made of studies, for tests of what is done with any paper."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from landscope.measures.base import Measure
from landscope.measures.resolve import resolve_measures
from landscope.papers.framework import paper as module
from landscope.papers.framework.paper import PAPERS, Paper, Part, Size
from landscope.studies.spec import StudySpec


@dataclass(frozen=True, kw_only=True)
class MadePaper(Paper):
    """The same studies at every size."""

    studies: Mapping[str, StudySpec]

    def parts(self, size: Size) -> Mapping[str, Part]:  # type: ignore[override]
        """As they are now."""
        del size
        return {part: Part(study=study) for part, study in self.studies.items()}


def lend(monkeypatch: pytest.MonkeyPatch, name: str, studies: Mapping[str, StudySpec]) -> None:
    """Have a paper of these studies among the papers."""
    made = MadePaper(name=name, title=name.title(), paper="nobody", written={}, folder=name, studies=studies)
    read = module._read
    monkeypatch.setitem(PAPERS.folders, name, Path(name))
    monkeypatch.setattr(module, "_read", lambda asked, folder: made if asked == name else read(asked, folder))


def measures_of(name: str, kind: str = "published") -> dict[str, Measure]:
    """What a paper's code computed, or with `kind` "corrected" what it should have, as measures."""
    found = {}
    for key, one in PAPERS[name].measures.items():
        settings = dict(getattr(one, kind))
        measure = str(settings.pop("measure"))
        found[key] = resolve_measures({measure: settings})[measure]
    return found
