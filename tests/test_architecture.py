"""ARCHITECTURE.md against the code: the walk by tracing a call, the spine by its files, the rules of the house by counting."""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
import torch
from torch import nn

import landscope as ls

ROOT = Path(ls.__file__).parent
TEXT = (Path(__file__).parent.parent / "ARCHITECTURE.md").read_text()
MODULES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in ROOT.rglob("*.py")
}


def files_run_through(function: Callable[[], object]) -> set[str]:
    """The files of the package whose functions are called, as "probe/probe"."""
    found: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(ROOT)) and code.co_name != "<module>":
            found.add(Path(code.co_filename).relative_to(ROOT).with_suffix("").as_posix())

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return found


def section(start: str, end: str) -> str:
    return TEXT[TEXT.index(start) : TEXT.index(end)]


def spelled_out(names: str) -> set[str]:
    """`core/{a, b}` stands for two files."""
    found: set[str] = set()
    for name in re.findall(r"`([^`]+)`", names):
        folder, braced, inner = name.partition("{")
        found |= {folder + one.strip() for one in inner.rstrip("}").split(",")} if braced else {name.strip()}
    return found


def test_the_walk_of_a_measure_is_what_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    text = section("**One `landscope.measure", "**One `landscope study run")
    walk, leaves = text.split("Leaves that need not be read")
    steps = set(re.findall(r"^\d+\. `([^`]+)`", walk, re.MULTILINE))
    assert len(steps) == len(re.findall(r"^\d+\. ", walk, re.MULTILINE))
    torch.manual_seed(0)
    net, data = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)), (torch.randn(40, 4), torch.arange(40) % 3)

    def call() -> object:
        return ls.measure(net, data, ["hessian_trace"])

    call()  # imports
    found = files_run_through(call)
    monkeypatch.setattr("landscope.probe.points.SMALL_WORK", 0)  # as where a pass takes long
    found |= files_run_through(call)
    known = steps | spelled_out(leaves) | spelled_out(walk)
    assert sorted(steps - found) == []
    assert sorted(found - known) == []


def test_the_spine_of_a_study_exists() -> None:
    spine = re.findall(r"\d+\. `([^`]+)`", section("**One `landscope study run", "## The few ideas"))
    assert len(spine) > 20
    assert [name for name in spine if not (ROOT / f"{name}.py").exists() and not (ROOT / name).is_dir()] == []


def test_files_and_folders_are_small_enough_to_read() -> None:
    assert {str(path): lines for path in MODULES.values() if (lines := path.read_text().count("\n")) > 400} == {}
    folders = defaultdict(list)
    for path in MODULES.values():
        folders[path.parent].append(path.name)
    assert {str(folder): len(names) for folder, names in folders.items() if len(names) > 15} == {}


def test_modules_that_one_sibling_imports_have_a_reason() -> None:
    """Any other belongs into that sibling."""
    importers = defaultdict(set)
    for name, path in MODULES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            wanted = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.module:
                wanted = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            for module in wanted:
                if module in MODULES and path.name != "__init__.py":
                    importers[module].add(name)
    alone = {
        "/".join(name.split(".")[1:])
        for name, users in importers.items()
        if len(users) == 1 and next(iter(users)).rpartition(".")[0] == name.rpartition(".")[0]
    }
    reasons = spelled_out(section("## Modules that one neighbour imports", "## Where to add something"))
    papers = {name for name in alone if name.startswith(("papers/", "measures/as_published/"))}
    assert sorted(alone - reasons - papers) == []
    assert sorted(reasons - alone) == []


def test_no_two_test_files_have_the_same_name() -> None:
    """Pytest imports them by that name."""
    names = Counter(path.name for path in Path(__file__).parent.rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []
