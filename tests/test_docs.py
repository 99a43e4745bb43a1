"""The documents say what the code says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_the_tables_of_the_measures_are_current() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "tables.py"))["tables"]()
    assert made in (ROOT / "docs" / "measures.md").read_text(), "run: python docs/tables.py --write"


def test_links_between_documents_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
