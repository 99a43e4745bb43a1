"""The documents say what the code says."""

from __future__ import annotations

import ast
import inspect
import re
import runpy
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path

import pytest

import landscope
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
    defined = {
        kind
        for specs in (training_specs, study_specs)
        for name, kind in vars(specs).items()
        if is_dataclass(kind) and kind.__module__ == specs.__name__ and not name.startswith("_")
    }
    assert set(made["NAMES"]) >= defined
    for kind, name in made["NAMES"].items():
        keys = {field.name for field in fields(kind)} - {getattr(kind, "REST", None), *made["NOT_KEYS"]}
        table = made["_table"](name, kind)
        assert keys == set(re.findall(r"^\| `(\w+)`", table, re.MULTILINE))


@pytest.mark.parametrize("page", ["specs.md", "studies.md"])
def test_the_study_on_a_page_is_one(page: str, tmp_path: Path) -> None:
    (written,) = re.findall(r"```yaml\n(.*?)```", (ROOT / "docs" / page).read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "study.yaml").write_text(written, encoding="utf-8")
    study = Study.of(tmp_path / "study.yaml", tmp_path)
    assert len(study.runs) == 3 * 2 * 5


def test_links_between_documents_lead_somewhere() -> None:
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!http|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


PAGES = sorted((ROOT / "docs").glob("*.md"))  # the block of the README runs where what it prints is compared
RUN = {page.relative_to(ROOT).as_posix(): page for page in PAGES if "```python\n" in page.read_text(encoding="utf-8")}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name == "docs/start.md" else pytest.mark.slow) for name in sorted(RUN)]
)
def test_the_blocks_of_a_page_run_one_after_the_other(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is fenced as `python` runs as pasted; a sketch with names of the reader's is fenced as `py`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("matplotlib.pyplot.show", lambda: None)
    blocks = re.findall(r"^```python\n(.*?)^```", RUN[name].read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    place = tmp_path / "page.py"
    place.write_text("\n".join(blocks), encoding="utf-8")
    runpy.run_path(str(place))


def test_the_readme_quotes_what_its_block_prints(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Line by line: the words as they are, the numbers up to rounding on another machine."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (quoted,) = re.findall(r"^```text\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    (tmp_path / "block.py").write_text(block, encoding="utf-8")
    runpy.run_path(str(tmp_path / "block.py"))
    printed = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    lines = [" ".join(line.split()) for line in quoted.splitlines() if line != "…"]
    for line in lines:
        assert any(_alike(line, other) for other in printed), line


def _alike(quoted: str, printed: str) -> bool:
    """The same words, and numbers within a tenth; the rest of a line may be left out."""
    number = re.compile(r"−?\d+(?:\.\d+)?")
    words = number.sub("#", printed).startswith(number.sub("#", quoted))
    pairs = zip(*(map(_value, number.findall(each)) for each in (quoted, printed)), strict=False)
    return words and all(abs(a - b) <= 0.1 * abs(b) + 1e-12 for a, b in pairs)


def _value(text: str) -> float:
    return float(text.replace("−", "-"))


def test_public_names_are_written_out_where_the_reference_reads_them() -> None:
    """The pages of the reference are made from the source: a class that is made in a loop has none."""
    for name in landscope.__all__:
        held = getattr(landscope, name)
        if inspect.isclass(held) or inspect.isfunction(held):
            tree = ast.parse(Path(inspect.getfile(held)).read_text(encoding="utf-8"))
            written = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)}
            assert held.__qualname__ in written, f"{held.__module__}.{held.__qualname__}"
            assert not list(_undocumented(written[held.__qualname__])), f"{held.__module__}.{held.__qualname__}"


def _undocumented(node: ast.ClassDef | ast.FunctionDef) -> Iterator[str]:
    """The reference leaves out a method without a docstring, also one that its base class documents."""
    for inner in node.body if isinstance(node, ast.ClassDef) else []:
        if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_"):
            overload = any(isinstance(name, ast.Name) and name.id == "overload" for name in inner.decorator_list)
            if not overload and ast.get_docstring(inner) is None:
                yield inner.name
