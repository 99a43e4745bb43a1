"""What a study of many runs costs to look at, counted in what is read, not in seconds (`benchmarks/large_study.py` times it)."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
from store_processes import forked_and_killed
from typer.testing import CliRunner

import landscope.studies.study as study_module
from landscope.cli import app
from landscope.cli.study import showing
from landscope.models import catalogue as options
from landscope.specs import schema
from landscope.specs.canonical import canonical_json
from landscope.studies import forecast, grid, slices
from landscope.studies.executors.base import Job, Summary, ignore, to_do
from landscope.studies.store import RunState, RunStatus, Store, locks
from landscope.studies.store.identity import run_key
from landscope.studies.store.run_folder import RunFolder
from landscope.studies.study import Study
from landscope.training.spec import TrainingSpec

RUNS = 12
WRITTEN = {
    "name": "many",
    "training": {"data": "circles", "model": {"name": "mlp", "widths": [4]}},
    "axes": {"rate": {"optimizer.lr": [0.1, 0.2, 0.3]}},
    "seeds": RUNS // 3,
}


@pytest.fixture
def study(tmp_path: Path) -> Study:
    """Every run is done, with a record that says little."""
    made = Study.of(WRITTEN, tmp_path / "s")
    made.save(tmp_path / "s")
    for spec in made.runs.values():
        run = made.store.add(spec.plain)
        with run.claim():
            run.finish({"seconds": 1.0})
    return made


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often the record of each run is read; that one run tells how long runs take."""
    count: Counter[str] = Counter()
    read = RunFolder._record_bytes

    def counted(self: RunFolder) -> bytes | None:
        count[self.key] += 1
        return read(self)

    monkeypatch.setattr(RunFolder, "_record_bytes", counted)
    monkeypatch.setattr(study_module, "TIMED_RUNS", 1)
    return count


def called(*words: object) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_types_are_read_once_however_many_runs_there_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Study.of(WRITTEN, tmp_path)  # whatever is kept is kept from here on
    read: list[object] = []
    for module in (schema, options):
        original = module.get_type_hints

        def noted(one: object, original=original, **how: object) -> object:
            read.append(one)
            return original(one, **how)

        monkeypatch.setattr(module, "get_type_hints", noted)
    Study.of({**WRITTEN, "seeds": 20}, tmp_path)
    assert read == []


def test_what_the_seeds_of_a_condition_share_is_checked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked: list[object] = []
    one = grid.check_value
    monkeypatch.setattr(grid, "check_value", lambda *given: checked.append(given[0]) or one(*given))
    study = Study.of({**WRITTEN, "seeds": [7, 0, 3]}, tmp_path)
    assert len(checked) == 3
    for key, run in study.runs.items():
        assert run.training == schema.parse(TrainingSpec, run.plain["training"])
        assert run.training is not None
        assert (run.training.seed, run.plain["figures"]) == (run.seed, run.seed == 7)
        assert key == run_key(run.plain)
    assert len({canonical_json(run.plain) for run in study.runs.values()}) == len(study.runs) == 9


def test_status_reads_each_record_once(study: Study, reads: Counter[str], tmp_path: Path) -> None:
    assert f"{RUNS} done" in called("study", "status", tmp_path / "s")
    assert len(reads) == RUNS
    assert reads.total() == RUNS + 1  # one tells how long it took
    reads.clear()
    assert {run["state"] for run in json.loads(called("study", "status", tmp_path / "s", "--json"))} == {"done"}
    assert set(reads.values()) == {1}


def test_resuming_and_a_dry_run_read_each_record_once(study: Study, reads: Counter[str], tmp_path: Path) -> None:
    spec = tmp_path / "many.json"
    spec.write_text(json.dumps(WRITTEN))
    words = ("study", "run", spec, "--into", tmp_path / "s")
    assert f"{RUNS} done" in called(*words, "--no-report")
    assert len(reads) == RUNS
    assert reads.total() == RUNS + 1  # one shows how long it took
    reads.clear()
    assert len(json.loads(called(*words, "--no-report", "--json"))["skipped"]) == RUNS
    assert reads.total() == RUNS  # nothing is shown that would have to be read again
    reads.clear()
    assert "every run is done" in called(*words, "--dry-run")
    assert reads.total() == RUNS


def test_a_long_list_of_runs_is_cut(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(showing, "MOST_ROWS", 5)
    spec = tmp_path / "many.json"
    spec.write_text(json.dumps(WRITTEN))
    words = ("study", "run", spec, "--into", tmp_path / "s", "--dry-run")
    assert f"and {RUNS - 5} more (--json shows all)" in called(*words)
    assert len(json.loads(called(*words, "--json"))["runs"]) == RUNS


def test_a_huge_network_is_not_built_to_be_timed(study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slices, "MOST_WEIGHTS", 10)
    monkeypatch.setattr(slices, "make_task", pytest.fail)
    waiting = {key: RunStatus(key, RunState.WAITING) for key in study.runs}
    for seconds in (None, 10.0):
        message = forecast.forecast(study, waiting, seconds)
        assert (message.expected, message.seconds) == ({}, 0)
        assert message.sentence() == f"{RUNS} runs to do; the time is not known until one is done"


def test_a_record_that_changed_is_found_by_all_of_them(study: Study, tmp_path: Path) -> None:
    first, second, third, *_ = study.runs
    path = study.store.run(first).path("record.json")
    path.write_bytes(path.read_bytes().replace(b"1.0", b"2.0"))
    study.store.run(second).path("record.json").write_bytes(b"")
    study.store.run(third).path("spec.json").unlink()
    states = {run["run"]: run["state"] for run in json.loads(called("study", "status", tmp_path / "s", "--json"))}
    assert (states[first], states[second], states[third]) == ("damaged", "damaged", "waiting")
    assert f"{RUNS - 3} done" in called("study", "status", tmp_path / "s")
    jobs = [Job(key, run.plain) for key, run in study.runs.items()]
    assert list(to_do(study.store, jobs, Summary(), ignore, retry_failed=False)) == [first, second]
    assert study.statuses()[third].state is RunState.DONE  # its spec is there again


def test_runs_of_other_studies_are_not_looked_at(study: Study, monkeypatch: pytest.MonkeyPatch) -> None:
    other = study.store.add({"seed": 77})
    with other.claim():
        other.finish({})
    assert set(study.store.keys()) == {other.key, *study.runs}
    assert other.key not in study.store.keys(study.runs)
    assert study.statuses().keys() == study.runs.keys()
    some = list(study.runs)[1:3]
    assert list(study.statuses(some)) == some


def test_what_a_run_killed_when_just_done_has_left_is_removed(tmp_path: Path) -> None:
    store = Store(tmp_path)
    run, whole = store.add({"seed": 1}), store.add({"seed": 2})

    def killed() -> None:
        locks.take(run.path("attempts"))
        run.write_json("state/step.json", 3)
        run._drop_what_was_for_resuming = lambda: None  # type: ignore[method-assign]
        run.finish({"seconds": 1.0})

    forked_and_killed(killed)
    with whole.claim():
        whole.finish({})
    assert run.path("state/step.json").exists()
    assert [(status.outcome, bool(status.checksum)) for status in map(store.status, (run.key, whole.key))] == [
        ("", True),
        ("done", True),
    ]
    assert to_do(store, [Job.of({"seed": 1}), Job.of({"seed": 2})], Summary(), ignore, retry_failed=False) == {}
    assert not run.path("state").exists()
    assert (run.attempts, whole.attempts) == (2, 1)  # what was tidy already is left alone


@pytest.mark.parametrize("word", ["plain", "back\\slash", "\\u00e9", "é", "e\u0301", "\x01\n", "\u2028", "\U0001f600"])
def test_one_spelling_by_the_short_way_and_by_the_long(word: str) -> None:
    short, long = canonical_json({"a": word, "b": [1, 1.0, None, True]}), canonical_json({"a": word, "é": 1})
    assert json.loads(short)["a"] == json.loads(long)["a"]
    assert short.isascii()
    assert short.endswith(',"b":[1,1.0,null,true]}')
    assert canonical_json({"a": "é"}) == canonical_json({"a": "e\u0301"})
