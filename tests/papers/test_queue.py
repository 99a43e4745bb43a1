"""papers/QUEUE.md names every part that lacks runs at the paper's size, and nothing that does not exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from landscope.papers import PAPERS
from landscope.papers.framework.records import load_bundle
from landscope.studies.grid import runs_of
from landscope.studies.store.identity import canonical

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


def test_records_of_runs_that_are_not_complete_can_be_taken_up():
    """`--from results`: runs of the part as it is, measured as it asks."""
    path = ROOT / "results" / "explicit-regularisation" / "cifar10-strengths.json.gz"
    part = PAPERS["explicit-regularisation"].parts("paper")["cifar10-strengths"].study
    asked = {run.condition: canonical(run.plain) for run in runs_of(part)}
    for record in load_bundle(path).records:
        kept = canonical(record.spec)
        assert [kept[name] for name in ("training", "measuring")] == [
            asked[record.condition][name] for name in ("training", "measuring")
        ]
        assert [len(model.reports["test"].estimates) for model in record.subjects] == [8, 8, 8]
