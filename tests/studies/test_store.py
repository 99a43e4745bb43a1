"""The store: what a run leaves, where each stands, and what happens to damaged records and on a full disk."""

from __future__ import annotations

import hashlib
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from store_processes import forked, forked_and_killed
from store_work import chain

from landscope.core import files
from landscope.core.errors import RunStoppedError, SpecError, StoreError, StoreFullError, UnknownNameError
from landscope.studies.store import RunState, Store, locks
from landscope.studies.work.attempt import Ending, attempt_run

RECORD = {"loss": 0.1, "layers": {"second": 2, "first": 1}, "note": "naïve \u2014 e\u0301"}


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


@pytest.fixture
def run(store):
    return store.add({"seed": 1})


def finished(store, seed=1, record=RECORD):
    run = store.add({"seed": seed})
    with run.claim():
        run.write_json("history.json", [{"loss": 0.1}])
        run.write_bytes("weights/final.safetensors", b"1234")
        run.finish(record)
    return run


def states(store):
    return {status.key: status.state for status in store.statuses()}


def test_a_record_comes_back_as_it_was(store):
    run = finished(store)
    assert run.record() == RECORD
    assert list(run.record()["layers"]) == ["second", "first"]
    assert dict(store.records()) == {run.key: RECORD}
    plain = json.loads(run.path("record.json").read_bytes())  # any reader of JSON can read it
    assert plain["key"] == run.key
    assert plain["record"] == RECORD


def test_the_same_record_is_the_same_file(store, tmp_path):
    other = Store(tmp_path / "other")
    content = [finished(place).path("record.json").read_bytes() for place in (store, other)]
    assert content[0] == content[1]


def test_a_spec_is_added_once(store):
    first, again = store.add({"seed": 1, "lr": 0.1}), store.add({"lr": 0.1, "seed": 1})
    assert first.folder == again.folder
    assert store.keys() == [first.key]
    assert first.spec() == {"seed": 1, "lr": 0.1}


def test_every_state(store):
    waiting, running, stopped, killed, failed = (store.add({"seed": seed}) for seed in range(10, 15))
    done = finished(store)
    attempts = locks.take(running.path("attempts"))
    with pytest.raises(RunStoppedError), stopped.claim():
        raise RunStoppedError("enough")
    forked_and_killed(lambda: locks.take(killed.path("attempts")))
    with pytest.raises(ZeroDivisionError), failed.claim():
        1 / 0
    assert states(store) == {
        waiting.key: RunState.WAITING,
        running.key: RunState.RUNNING,
        stopped.key: RunState.INTERRUPTED,
        killed.key: RunState.INTERRUPTED,
        failed.key: RunState.FAILED,
        done.key: RunState.DONE,
    }
    status = store.status(running.key)
    assert (status.owner, status.since) == (attempts.owner, attempts.since)
    assert "division by zero" in store.status(failed.key).error
    assert "ZeroDivisionError" in failed.failure()
    assert "test_store.py" in failed.failure()


def test_a_failed_run_that_is_done_after_all_keeps_no_failure(run):
    with pytest.raises(ZeroDivisionError), run.claim():
        1 / 0
    with run.claim():
        run.write_json("state/step.json", 3)
        run.finish({})
    assert run.done()
    assert run.failure() == ""
    assert not run.path("state").exists()
    assert run.attempts == 2


def test_failing_by_hand(run, store):
    with run.claim():
        run.fail(ValueError("seen from outside"))
    assert store.status(run.key).state is RunState.FAILED
    assert store.status(run.key).error == "ValueError: seen from outside"


def test_failing_in_the_words_of_another_folder(run, store):
    with run.claim():
        run.fail("ValueError: seen elsewhere")
    assert store.status(run.key).state is RunState.FAILED
    assert store.status(run.key).error == run.failure() == "ValueError: seen elsewhere"


def test_a_block_that_ends_early_leaves_a_run_to_resume(run, store):
    with run.claim():
        run.write_json("state/step.json", 3)
    assert store.status(run.key).state is RunState.INTERRUPTED
    assert json.loads(run.path("state/step.json").read_text()) == 3


@pytest.mark.parametrize(
    "damage",
    [
        lambda content: b"",
        lambda content: content[: len(content) // 2],
        lambda content: content.replace(b"0.1", b"0.2"),
        lambda content: b"\0" * len(content),
        lambda content: content + b"\n",
        lambda content: content.replace(b'"key": "', b'"key": "0'),
    ],
    ids=["empty", "half", "altered", "zeros", "longer", "another key"],
)
def test_a_damaged_record_is_quarantined_and_made_again(store, damage):
    run = finished(store)
    path = run.path("record.json")
    broken = damage(path.read_bytes())
    path.write_bytes(broken)
    assert not run.done()
    assert states(store) == {run.key: RunState.DAMAGED}
    with pytest.raises(StoreError, match="no whole record"):
        run.record()
    with run.claim():
        assert not path.exists()
        assert not run.path("weights").exists()  # what was stored with it is in doubt, too
        run.finish(RECORD)
    assert run.record() == RECORD
    (kept,) = (store.root / "quarantine").iterdir()
    assert kept.name.startswith(run.key)
    assert (kept / "record.json").read_bytes() == broken
    assert (kept / "weights/final.safetensors").read_bytes() == b"1234"


def test_a_record_of_another_run_is_no_record(store):
    one, other = finished(store, 1), store.add({"seed": 2})
    other.path("record.json").write_bytes(one.path("record.json").read_bytes())
    assert not other.done()


def test_a_damaged_spec_is_written_again(store, run):
    run.path("spec.json").write_text('{"seed": 2}')
    with pytest.raises(StoreError, match="Add the spec"):
        run.spec()
    assert store.add({"seed": 1}).spec() == {"seed": 1}


def test_two_specs_with_one_key_are_refused(store, run, monkeypatch):
    monkeypatch.setattr("landscope.studies.store.run_key", lambda spec: run.key)
    with pytest.raises(StoreError, match="two different specs"):
        store.add({"seed": 2})


def test_a_spec_typed_in_another_way_leaves_the_first(store):
    first = store.add({"a": "é"})
    assert store.add({"a": "e\u0301"}).spec() == {"a": "é"} == first.spec()


def test_a_folder_that_is_just_being_made_is_not_there_yet(store, run):
    (store.root / "runs" / "0123456789abcdef").mkdir()
    assert store.keys() == [run.key]


def test_an_unknown_run_is_named_with_its_neighbours(store, run):
    with pytest.raises(UnknownNameError, match=f"did you mean '{run.key}'"):
        store.run(run.key[:-1] + "x")


def test_an_empty_store_is_a_store(store):
    assert store.keys() == []
    assert list(store.statuses()) == []
    assert not (store.root / "quarantine").exists()


def test_a_store_of_the_future_is_refused(store, run):
    (store.root / "store.json").write_text('{"format": 99}')
    with pytest.raises(StoreError, match="format 99"):
        Store(store.root)


def test_a_record_with_nan_is_refused_with_its_place(run):
    with run.claim(), pytest.raises(SpecError, match=r"record\.a\[0\] is nan"):
        run.finish({"a": [float("nan")]})
    assert not run.done()


def test_a_library_writes_aside(run):
    with run.claim():
        with run.writing("weights/final.safetensors") as path:
            path.write_bytes(b"new")
            assert not run.path("weights/final.safetensors").exists()
        with pytest.raises(ZeroDivisionError), run.writing("weights/final.safetensors") as path:
            path.write_bytes(b"newer")
            1 / 0
        assert run.path("weights/final.safetensors").read_bytes() == b"new"
        assert os.listdir(run.path("weights")) == ["final.safetensors"]


def test_what_a_killed_writer_left_is_swept_up(run):
    def half() -> None:
        locks.take(run.path("attempts"))
        run.writing("weights/final.safetensors").__enter__().write_bytes(b"half")

    forked_and_killed(half)
    assert [path.suffix for path in run.path("weights").iterdir()] == [".aside"]
    with run.claim():
        assert os.listdir(run.path("weights")) == []


def test_too_large_a_file_leaves_what_was_there(run, capfd):
    """The operating system itself refuses to write more (RLIMIT_FSIZE)."""

    def writes_too_much() -> None:
        with run.claim():
            run.write_bytes("state/checkpoint", b"old")
            resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
            with pytest.raises(
                StoreFullError, match="no space is left to write .*checkpoint.* untouched. Free some space"
            ):
                run.write_bytes("state/checkpoint", b"n" * 20_000)
            assert run.path("state/checkpoint").read_bytes() == b"old"
            assert os.listdir(run.path("state")) == ["checkpoint"]
            raise StoreFullError("so it ends")

    assert forked(writes_too_much) == 1
    assert "StoreFullError: so it ends" in capfd.readouterr().err
    assert run.latest().outcome == "stopped"  # the run is not to blame


@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_a_disk_that_fills_at_any_step_leaves_what_was_there(run, monkeypatch, call):
    with run.claim():
        run.write_json("state.json", 1)
        with monkeypatch.context() as patch:
            if call == "write":
                opens = Path.open
                refuse = raising(28)
                patch.setattr(Path, "open", lambda p, *a, **k: (refuse if p.suffix == ".aside" else opens)(p, *a, **k))
            else:
                patch.setattr(files.os, call, raising(28))
            with pytest.raises(StoreFullError):
                run.write_json("state.json", 2)
        assert run.path("state.json").read_text() == "1"
        assert sorted(os.listdir(run.folder)) == ["attempts", "spec.json", "state.json"]


def test_other_troubles_name_the_file(run, monkeypatch):
    with run.claim():
        monkeypatch.setattr(files.os, "replace", raising(13))
        with pytest.raises(StoreError, match=r"cannot write .*a\.json.* writable") as caught:
            run.write_json("a.json", 2)
        monkeypatch.undo()
    assert not isinstance(caught.value, StoreFullError)


def raising(number):
    def refuse(*_, **__):
        raise OSError(number, os.strerror(number))

    return refuse


FULL = """
import os, sys
from landscope.studies.work.attempt import attempt_run
from landscope.studies.store import Store, RunState
from store_work import work
room, ballast = sys.argv[1], sys.argv[1] + "/ballast"
store = Store(room + "/store")
run = store.add({"seed": 5, "steps": 120})
with open(ballast, "wb", buffering=0) as file:
    try:
        while True:
            file.write(bytes(4096))
    except OSError:
        file.truncate(os.path.getsize(ballast) - 5 * 4096)
first = attempt_run(work, run)
state = store.status(run.key).state
os.unlink(ballast)
second = attempt_run(work, run)
print(first.ending.value, state.value, second.ending.value, run.record()["last"], run.failure())
"""


def test_a_full_disk_then_room_again(tmp_path):
    """A real filesystem of 256 KiB, filled but for five pages, in a namespace of its own."""
    room = tmp_path / "room"
    room.mkdir()
    mount = f"mount -t tmpfs -o size=256k none '{room}'"
    alone = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    try:
        subprocess.run([*alone, mount], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("this machine does not allow a filesystem of one's own")
    here = str(Path(__file__).parent)
    done = subprocess.run(
        [*alone, f'{mount} && exec "$@"', "sh", sys.executable, "-c", FULL, str(room)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([here, *sys.path])},
    )
    assert done.stdout.split() == ["full", "interrupted", "finished", chain(5, 120)[-1]], done.stderr


def test_work_without_a_record_has_failed(run, monkeypatch):
    monkeypatch.setattr(sys, "stdout", os.fdopen(1, "w", closefd=False))  # not what pytest has put there
    result = attempt_run(print, run)
    assert result.ending is Ending.FAILED
    assert "returned without a record" in result.detail
    assert "seed" in run.path("log.txt").read_text()  # and what it printed is kept


def test_a_thousand_runs_are_listed_by_reading_each_once(store, monkeypatch):
    """No index, and no more than a handful of files per run."""
    template = finished(store)
    record = template.path("record.json").read_bytes().partition(b"\n")[2]
    for number in range(999):
        key = f"{number:016x}"
        folder = store.root / "runs" / key
        (folder / "attempts").mkdir(parents=True)
        (folder / "spec.json").write_text("{}")
        (folder / "record.json").write_bytes(
            f'{{"key": "{key}", "sha256": "{hashlib.sha256(record).hexdigest()}",\n'.encode() + record
        )
        (folder / "attempts/0001.json").write_bytes(template.path("attempts/0001.json").read_bytes())
    opened = []
    reads = Path.open
    monkeypatch.setattr(Path, "open", lambda path, *rest, **more: opened.append(path) or reads(path, *rest, **more))
    assert set(states(store).values()) == {RunState.DONE}
    assert len(states(store)) == 1000
    assert len(opened) <= 2 * 2 * 1000
