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
from typer.testing import CliRunner

import landscope as ls
from landscope.cli import app
from landscope.studies.store.run_folder import RunFolder
from landscope.studies.study import Study
from landscope.studies.work.attempt import attempt_run
from landscope.studies.work.run import run_in_folder

STUDY = """\
name: tiny
seeds: 1
training: {data: circles, model: {name: mlp, widths: [4]}, epochs: 1}
measuring: {splits: {train: [loss]}}
"""
ROOT = Path(ls.__file__).parent
TEXT = (Path(__file__).parent.parent / "ARCHITECTURE.md").read_text()
MODULES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in ROOT.rglob("*.py")
}


def files_run_through(function: Callable[[], object]) -> list[str]:
    """The files of the package whose functions are called, as "probe/probe", in that order; what imports run does not count."""
    found: dict[str, None] = {}
    names = {str(path): path.relative_to(ROOT).with_suffix("").as_posix() for path in MODULES.values()}

    def note(frame: FrameType, event: str, _: object) -> None:
        name = names.get(frame.f_code.co_filename)
        if event == "call" and name is not None and name not in found and not imports(frame):
            found[name] = None

    def imports(frame: FrameType | None) -> bool:
        while frame is not None and not (frame.f_code.co_name == "<module>" and frame.f_code.co_filename in names):
            frame = frame.f_back
        return frame is not None

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        function()
    finally:
        sys.setprofile(before)
    return list(found)


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
    assert len(steps) == len(re.findall(r"^\d+\. ", walk, re.MULTILINE)) <= 20
    torch.manual_seed(0)
    data = (torch.randn(40, 4), torch.arange(40) % 3)

    def call() -> None:
        for activation in (nn.Tanh(), nn.ReLU()):
            ls.measure(nn.Sequential(nn.Linear(4, 6), activation, nn.Linear(6, 3)), data, ["hessian_trace"])

    found = set(files_run_through(call))
    monkeypatch.setattr("landscope.probe.points.SMALL_WORK", 0)  # as where a pass takes long
    found |= set(files_run_through(call))
    known = steps | spelled_out(leaves) | spelled_out(walk)
    assert sorted(steps - found) == []
    assert sorted(found - known - {"__init__"}) == []


def test_the_spine_of_a_study_is_what_runs(tmp_path: Path) -> None:
    """The command, and one of its runs in this process, as `studies/work/worker` does it; each file at its first call."""
    text = section("**One `landscope study run", "## The few ideas")
    spine = re.findall(r"^\d+\. `([^`]+)`", text, re.MULTILINE)
    assert len(spine) == len(re.findall(r"^\d+\. ", text, re.MULTILINE)) <= 25
    spine = [name if (ROOT / f"{name}.py").exists() else f"{name}/__init__" for name in spine]
    there = spine.index("studies/work/worker")
    (tmp_path / "study.yaml").write_text(STUDY)

    def command() -> None:
        words = ["study", "run", str(tmp_path / "study.yaml"), "--into", str(tmp_path / "one"), "-e", "workers=1"]
        result = CliRunner().invoke(app, words, catch_exceptions=False)
        assert result.exit_code == 0, result.output

    study = Study.of(tmp_path / "study.yaml", tmp_path / "two")
    (run,) = (study.store.add(spec.plain) for spec in study.runs.values())

    called = files_run_through(command)
    assert [name for name in called if name in spine[:there]] == spine[:there]
    assert spine[-1] in called
    called = files_run_through(lambda: attempt_run(run_in_folder, RunFolder(run.folder)))
    assert run.done()
    assert [name for name in called if name in spine[there + 1 : -1]] == spine[there + 1 : -1]


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
