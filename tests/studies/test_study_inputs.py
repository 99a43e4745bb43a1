"""What the runs of a study lack is found out once and before, and is not held against them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from landscope.core.errors import MissingExtraError, MissingFileError
from landscope.studies.forecast import check_inputs
from landscope.studies.store import RunState
from landscope.studies.study import Study
from landscope.studies.work.attempt import Ending, attempt_run
from landscope.studies.work.run import run_in_folder

MODULE = """\
import pathlib

import torch

from landscope.core.errors import MissingFileError

CALLS = []


def rows(seed=0):
    CALLS.append(seed)
    if not pathlib.Path("here.txt").exists():
        raise MissingFileError("here.txt is not there; put it there")
    x = torch.rand(20, 2, generator=torch.Generator().manual_seed(seed))
    return {"train": (x, (x[:, 0] > 0.5).long()), "test": (x, (x[:, 0] > 0.5).long())}


def broken():
    raise ZeroDivisionError("a mistake of the user's own")
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "functions_for_inputs.py").write_text(MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "functions_for_inputs", raising=False)
    return tmp_path


def study(place: Path, data: object, model: object = "mlp") -> Study:
    return Study.of(
        {
            "name": "inputs",
            "training": {"data": data, "model": model, "epochs": 1, "batch_size": 10},
            "axes": {"rate": {"optimizer.lr": [0.1, 0.2]}},
            "seeds": 2,
            "measuring": {"splits": {"train": ["loss"]}, "consistency": False},
        },
        place / "study",
    )


def check_all(made: Study, asked: set[tuple[str, str]]) -> None:
    check_inputs(made, made.runs, asked)


def test_a_function_is_called_once_for_all_runs_on_its_data(place: Path) -> None:
    import functions_for_inputs  # type: ignore[import-not-found]

    asked: set[tuple[str, str]] = set()
    with pytest.raises(MissingFileError, match=r"here\.txt is not there"):
        check_all(study(place, "functions_for_inputs:rows"), asked)
    (place / "here.txt").touch()
    functions_for_inputs.CALLS.clear()
    asked.clear()
    for seed in (1, 1, 2):
        check_all(study(place, {"name": "functions_for_inputs:rows", "seed": seed}), asked)
    assert functions_for_inputs.CALLS == [1, 2]


def test_runs_that_are_done_need_nothing(place: Path) -> None:
    (place / "here.txt").touch()
    made = study(place, "functions_for_inputs:rows")
    for run in made.runs.values():
        assert attempt_run(run_in_folder, made.store.add(run.plain)).ending is Ending.FINISHED
    (place / "here.txt").unlink()
    check_all(made, set())


def test_runs_that_are_not_asked_for_need_nothing(place: Path) -> None:
    check_inputs(study(place, "functions_for_inputs:rows"), set(), set())


def test_other_errors_are_left_to_the_runs(place: Path) -> None:
    check_all(study(place, "functions_for_inputs:broken"), set())


def test_a_network_without_its_package_is_found_out(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    monkeypatch.delitem(sys.modules, "torch_geometric.nn", raising=False)
    with pytest.raises(MissingExtraError, match=r"pip install 'landscope\[graphs\]'"):
        check_all(study(place, "circles", "gat"), set())


def test_a_run_that_lacked_a_file_is_tried_again_by_itself(place: Path) -> None:
    made = study(place, "functions_for_inputs:rows")
    key, spec = next(iter(made.runs.items()))
    assert attempt_run(run_in_folder, made.store.add(spec.plain)).ending is Ending.FAILED
    status = made.statuses()[key]
    assert status.state is RunState.INTERRUPTED
    assert "here.txt is not there" in status.error
    assert made.failures() == []
    (place / "here.txt").touch()
    assert attempt_run(run_in_folder, made.store.run(key)).ending is Ending.FINISHED
