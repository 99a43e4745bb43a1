"""papers/QUEUE.md names every part that lacks runs at the paper's size, and nothing that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from landscope.papers import PAPERS
from landscope.papers.framework.records import load_bundle
from landscope.studies.grid import runs_of

ROOT = Path(__file__).parent.parent.parent
QUEUE = (ROOT / "papers" / "QUEUE.md").read_text(encoding="utf-8")
NAMED = set(re.findall(r"`([^`\n]+)`", QUEUE[QUEUE.index("## Next") :]))


def lacking(name: str) -> dict[str, int]:
    """Part → how many of its runs at the paper's size are not among the records."""
    paper, found = PAPERS[name], {}
    small = paper.parts("small")
    for label, part in paper.parts("paper").items():
        as_in_the_paper = label in small and small[label].study == part.study
        path = ROOT / "results" / name / f"{label}.json.gz"
        bundle = load_bundle(path) if path.exists() else None
        kept = len(bundle.records) if bundle and (as_in_the_paper or bundle.size == "paper") else 0
        if left := len(runs_of(part.study)) - kept:
            found[label] = left
    return found


@pytest.mark.parametrize("name", PAPERS)
def test_every_part_that_lacks_runs_is_in_the_queue(name):
    assert [label for label in lacking(name) if label.removesuffix("-eval") not in NAMED] == []


def test_the_queue_names_files_that_are_there():
    files = re.findall(r"`((?:results|papers)/[^`\s]+\.(?:json|json\.gz|py))`", QUEUE)
    assert files
    assert [file for file in files if not (ROOT / file).exists()] == []
