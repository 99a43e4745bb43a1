"""The documents say what the code says."""

from __future__ import annotations

import re
import runpy
from dataclasses import fields, is_dataclass
from pathlib import Path

from landscope.studies import spec as study_specs
from landscope.studies.study import Study
from landscope.training import spec as training_specs

ROOT = Path(__file__).parent.parent


def test_the_tables_are_current() -> None:
    for page, made in runpy.run_path(str(ROOT / "docs" / "tables.py"))["tables"]().items():
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        assert made in text, f"{page}: run python docs/tables.py --write"


def test_the_page_of_specs_leaves_no_key_out() -> None:
    made = runpy.run_path(str(ROOT / "docs" / "spec_tables.py"))
    exported = {
        name for specs in (training_specs, study_specs) for name in specs.__all__ if is_dataclass(getattr(specs, name))
    }
    assert {kind.__name__ for kind in made["NAMES"]} >= exported
    for kind, name in made["NAMES"].items():
        keys = {field.name for field in fields(kind)} - {getattr(kind, "REST", None), *made["NOT_KEYS"]}
        table = made["_table"](name, kind)
        assert keys == set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE))


def test_the_study_on_the_page_of_specs_is_one(tmp_path: Path) -> None:
    (written,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / "specs.md").read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "study.yaml").write_text(written, encoding="utf-8")
    study = Study.of(tmp_path / "study.yaml", tmp_path)
    assert len(study.runs) == 3 * 2 * 5


def test_links_between_documents_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
