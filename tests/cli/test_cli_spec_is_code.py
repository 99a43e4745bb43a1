"""A spec names functions, which running it calls. Looking at a spec, or at a study, calls none."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from landscope.studies.study import Study

Call = Callable[..., tuple[int, str, str]]

OWN = """\
import pathlib

import torch

from landscope import Measure

with pathlib.Path("ran.txt").open("a") as file:
    file.write("imported\\n")


def _note(what):
    with pathlib.Path("ran.txt").open("a") as file:
        file.write(what + "\\n")


def rows():
    _note("rows")
    x = torch.rand(20, 2, generator=torch.Generator().manual_seed(0))
    return {"train": (x, (x[:, 0] > 0.5).long()), "test": (x, (x[:, 0] > 0.5).long())}


def build(in_features, num_classes):
    _note("build")
    return torch.nn.Linear(in_features, num_classes)


class Mine(Measure):
    def _measure(self, probe):
        raise ArithmeticError
"""
STUDIES = {
    "data": {"training": {"data": "own_code:rows", "model": "mlp"}},
    "data on an axis": {
        "training": {"data": "circles", "model": "mlp"},
        "axes": {"rows": {"data": ["circles", "own_code:rows"]}},
    },
    "model": {"training": {"data": "circles", "model": {"name": "own_code:build"}}},
    "model on an axis": {
        "training": {"data": "circles", "model": "mlp"},
        "axes": {"net": {"theirs": {}, "own": {"model": "own_code:build"}}},
    },
    "measure": {
        "training": {"data": "circles", "model": "mlp"},
        "measuring": {"splits": {"train": ["loss", "own_code:Mine"]}},
        "analysis": {"outcomes": ["train.Mine"]},
    },
    "measure by a name": {
        "training": {"data": "circles", "model": "mlp"},
        "measuring": {"splits": {"train": {"measures": {"mine": {"measure": "own_code:Mine"}}}}},
    },
    "checkpoints": {"checkpoints": {"files": ["a.pt"], "model": "own_code:build", "data": "own_code:rows"}},
}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "own_code.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_code", raising=False)
    return tmp_path


def written(name: str) -> Path:
    path = Path("study.json")
    few = {"splits": {"train": ["loss"], "test": ["error"]}}
    path.write_text(json.dumps({"name": "own", "seeds": 1, "measuring": few, **STUDIES[name]}))
    return path


@pytest.mark.parametrize("name", STUDIES)
def test_a_dry_run_imports_and_calls_nothing_and_says_so(here: Path, call: Call, name: str) -> None:
    code, out, err = call("study", "run", written(name), "--dry-run", "--json")
    assert code == 0, err
    assert not (here / "ran.txt").exists()
    assert "own_code" not in sys.modules
    message = json.loads(out)
    assert {function.partition(":")[0] for function in message["not_checked"]} == {"own_code"}
    assert "a dry run neither imports nor calls own_code:" in err
    code, out, err = call("study", "run", written(name), "--dry-run")
    assert code == 0, err
    assert not (here / "ran.txt").exists()


@pytest.mark.parametrize("name", STUDIES)
def test_the_keys_of_a_dry_run_are_those_of_the_run(here: Path, call: Call, name: str) -> None:
    code, out, err = call("study", "run", written(name), "--dry-run", "--json")
    assert code == 0, err
    assert [run["run"] for run in json.loads(out)["runs"]] == list(Study.of(written(name), here / "s").runs)
    assert "imported" in (here / "ran.txt").read_text()  # to check that the names are there


@pytest.mark.parametrize(
    "data",
    [
        {"name": "os:system", "command": "touch ran.txt"},
        {
            "name": "landscope.specs.names:call_imported",
            "source": "os:system",
            "options": {"command": "touch ran.txt"},
        },
    ],
)
def test_a_command_in_a_spec_does_not_run(here: Path, call: Call, data: dict[str, object]) -> None:
    spec = here / "study.json"
    spec.write_text(json.dumps({"name": "own", "training": {"data": data, "model": "mlp"}}))
    code, out, err = call("study", "run", spec, "--dry-run")
    assert code == 0, err
    assert not (here / "ran.txt").exists()
    assert f"neither imports nor calls {data['name']} (data)" in err
    assert "not known" in out


def test_a_module_that_is_nowhere_is_refused_by_a_dry_run_too(here: Path, call: Call) -> None:
    spec = here / "study.yaml"
    spec.write_text("name: own\ntraining:\n  model: mlp\n  data: no_such_module:rows\n")
    for extra in ([], ["--dry-run"]):
        code, _, err = call("study", "run", spec, *extra)
        assert code == 2
        assert "study.yaml:4: no_such_module:rows" in err


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_is_opened_without_what_it_names(here: Path, call: Call, name: str) -> None:
    study = Study.of(written(name), here / "s")
    study.save(here / "s")
    (here / "own_code.py").unlink()
    (here / "ran.txt").unlink()
    sys.modules.pop("own_code")
    assert list(Study.open(here / "s").runs) == list(study.runs)
    code, out, err = call("study", "status", here / "s", "--json")
    assert code == 0, err
    assert {run["state"] for run in json.loads(out)} == {"waiting"}


def test_measures_of_ones_own_are_checked_before_a_run(here: Path, call: Call) -> None:
    spec = here / "study.yaml"
    text = "name: own\ntraining: {model: mlp, data: circles}\nmeasuring:\n  splits:\n    train: [own_code:Nine]\n"
    spec.write_text(text)
    code, _, err = call("study", "run", spec)
    assert code == 2
    assert "study.yaml:5: measuring.splits.train: own_code:Nine: own_code has no function 'Nine'" in err
    spec.write_text(text.replace("Nine", "Mine") + "    test: [loss]\nanalysis: {measures: [train.Nine]}\n")
    code, _, err = call("study", "run", spec)
    assert code == 2
    assert "unknown column of the split train 'train.Nine'; did you mean 'train.Mine'" in err
