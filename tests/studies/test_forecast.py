"""How long a study takes: runs of one kind tell of each other, slices tell of the rest, and a lower bound is called one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from landscope.specs.schema import parse
from landscope.studies import slices as module
from landscope.studies.forecast import Pace, forecast, kind_of, seconds_without_figures
from landscope.studies.spec import StudySpec
from landscope.studies.store import RunState, RunStatus
from landscope.studies.study import Study

SPEC: dict[str, Any] = {
    "name": "small",
    "training": {"data": "circles", "model": {"name": "mlp", "widths": [4]}, "epochs": 2, "batch_size": 20},
    "axes": {"method": {"plain": {}, "decay": {"optimizer.weight_decay": 0.1}, "SAM": {"sam.rho": 0.1}}},
    "seeds": 2,
    "measuring": {"splits": {"train": ["loss"], "test": ["error"]}},
}


def waiting(study: Study) -> dict[str, RunStatus]:
    return {key: RunStatus(key, RunState.WAITING) for key in study.runs}


def done(study: Study, key: str, seconds: float) -> None:
    run = study.store.add(study.runs[key].plain)
    with run.claim():
        run.finish({"seconds": seconds})


def test_seeds_and_numbers_make_no_kind_of_their_own(tmp_path: Path) -> None:
    study = Study.of(SPEC, tmp_path)
    kinds = {run.condition: kind_of(run) for run in study.runs.values()}
    assert len({kind_of(run) for run in study.runs.values()}) == 2
    assert kinds["plain"] == kinds["decay"] != kinds["SAM"]


def test_runs_that_are_done_tell_of_their_kind_and_of_no_other(tmp_path: Path) -> None:
    study = Study.of({**SPEC, "seeds": 4}, tmp_path)
    first, second, *_ = (key for key, run in study.runs.items() if run.condition == "plain")
    done(study, first, 8.0)
    done(study, second, 10.0)
    found = forecast(study, study.statuses())
    seconds = {study.runs[key].condition: one.seconds for key, one in found.expected.items()}
    assert seconds["plain"] == seconds["decay"] == 9.0
    assert seconds["SAM"] < 9.0  # timed by gradients
    for key, run in study.runs.items():
        if run.condition == "SAM":
            done(study, key, 30.0)
    found = forecast(study, study.statuses())
    assert found.whole
    assert 6 * 9.0 / found.workers <= found.seconds < 6 * 9.0 + 60
    assert found.sentence().startswith("6 runs to do: about ")
    assert found.sentence().endswith("(from the runs that are done)")


def test_a_dry_run_times_the_measuring_of_a_network_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured = module.measure_model
    calls: list[str] = []

    def counting(*given: Any) -> object:
        calls.append("measured")
        return measured(*given)

    monkeypatch.setattr(module, "measure_model", counting)
    study = Study.of(SPEC, tmp_path)
    found = forecast(study, waiting(study))
    assert len(found.expected) == len(study.runs)
    assert found.whole
    assert len({one.measuring for one in found.expected.values()}) == len(calls) == 1
    assert all(one.training > 0 and one.measuring > 0 for one in found.expected.values())
    monkeypatch.setattr(module, "MEASURING", 0.0)
    found = forecast(study, waiting(study))
    assert not found.whole
    assert "more than" in found.sentence()
    budget = {**SPEC, "measuring": {**SPEC["measuring"], "seconds": 50}}
    found = forecast(study := Study.of(budget, tmp_path), waiting(study))
    assert found.whole
    assert {one.measuring for one in found.expected.values()} == {100.0}  # two splits


def test_given_seconds_time_measuring_too_and_stop_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = Study.of(SPEC, tmp_path)
    found = forecast(study, waiting(study), seconds=60)
    assert found.whole
    assert all(one.training > 0 and one.measuring > 0 for one in found.expected.values())

    def endless(*_: object) -> None:
        while True:
            pass

    monkeypatch.setattr(module, "measure_model", endless)
    found = forecast(study, waiting(study), seconds=4)
    assert not found.whole
    assert all(0 < one.measuring < 3 and not one.whole for one in found.expected.values())
    assert not list(tmp_path.iterdir())


def test_functions_of_the_users_own_are_neither_imported_nor_called(tmp_path: Path) -> None:
    spec = {**SPEC, "training": {**SPEC["training"], "model": "no_such_module:build"}}
    study = Study(parse(StudySpec, spec), tmp_path, imports=False)
    for seconds in (None, 5):
        found = forecast(study, waiting(study), seconds)
        assert (found.expected, found.seconds, found.whole) == ({}, 0, False)
    assert "no_such_module" not in sys.modules


def test_a_run_with_figures_tells_of_those_without() -> None:
    record: dict[str, Any] = {
        "history": [{"seconds": 1.0}, {"seconds": 2.0}],
        "subjects": [{"reports": {"train": {"estimates": {"loss": {"cost": {"seconds": 0.5}}, "nll": {}}}}}],
    }
    assert seconds_without_figures(record) == 2.5
    pace = Pace({"a": "drawn", "b": "plain", "c": "plain"}, {})
    pace.started("a", at=0)
    pace.ended("a", 50.0)
    assert pace.left(at=50) == 100.0
    pace.expect("plain", 2.5)
    assert pace.left(at=50) == 5.0
    pace.started("b", at=50)
    pace.ended("b", 4.0)
    assert pace.left(at=54) == 4.0, "what was found replaces what was expected"


def test_what_is_left_while_a_study_runs() -> None:
    pace = Pace({key: "slow" if key == "d" else "fast" for key in "abcd"}, {"d": 10.0})
    pace.started("a", at=0)
    pace.started("b", at=0)
    assert pace.left(at=0) == 20.0  # a and d, or b and c: all take as long as d did
    assert pace.at_least, "no fast run is known"
    pace.ended("a", 2.0)
    assert pace.left(at=2) == 10.0  # b ends now, and c beside d
    assert not pace.at_least
    assert pace.left(at=9) == 10.0
    assert pace.at_least, "b takes longer than a did"
    pace.ended("b")  # it failed
    pace.started("c", at=2)
    assert pace.left(at=3) == 10.0
    pace.ended("c", 2.0)
    pace.started("d", at=4)
    assert pace.left(at=11) == 3.0
