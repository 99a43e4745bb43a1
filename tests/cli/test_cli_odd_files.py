"""Links, FIFOs, folders and files without end where a command reads or writes: reported in one line, before any work."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from landscope.core.files import LARGEST_DOCUMENT, LARGEST_RECORD
from landscope.studies.store import Store
from landscope.studies.study import Study

Call = Callable[..., tuple[int, str, str]]
NET = ["--model", "mlp", "-o", "in_features=64", "-o", "widths=[4]"]
STUDY = {
    "name": "tiny",
    "training": {"data": "circles", "model": {"name": "mlp", "widths": [4]}, "epochs": 1},
    "seeds": 2,
    "measuring": {"splits": {"test": {"measures": ["loss"]}}},
}


@pytest.fixture
def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be loaded, and so nothing measured or trained."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("work has begun")

    monkeypatch.setattr("landscope.cli.sources.make_task", refuse)
    monkeypatch.setattr("landscope.training.loop.train.train", refuse)


def fifo(path: Path) -> None:
    os.mkfifo(path)


def folder(path: Path) -> None:
    path.mkdir()


def loop(path: Path) -> None:
    path.symlink_to(path)


def long(path: Path) -> None:
    path.touch()
    os.truncate(path, max(LARGEST_DOCUMENT, LARGEST_RECORD) + 1)


@pytest.mark.usefixtures("no_work")
@pytest.mark.parametrize("command", ["measure", "robustness"])
@pytest.mark.parametrize("make", [fifo, folder, loop])
def test_what_is_not_a_file_is_not_written_over(
    call: Call, digits_net: Path, tmp_path: Path, command: str, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "out")
    before = os.lstat(tmp_path / "out").st_mode
    code, _, err = call(command, digits_net, *NET, "--data", "digits", "--output", tmp_path / "out")
    assert code == 2, err
    assert f"{tmp_path / 'out'} cannot be written" in err
    assert os.lstat(tmp_path / "out").st_mode == before


def test_a_link_is_written_through(call: Call, digits_net: Path, tmp_path: Path) -> None:
    (tmp_path / "link.json").symlink_to("end.json")
    words = ["measure", digits_net, *NET, "--data", "digits", "--samples", 20, "--measures", "loss"]
    for _ in range(2):  # the file is not there, and then it is
        code, _, err = call(*words, "--output", tmp_path / "link.json")
        assert code == 0, err
        assert (tmp_path / "link.json").is_symlink()
        assert '"loss"' in (tmp_path / "end.json").read_text()
    (tmp_path / "astray.json").symlink_to("nowhere/end.json")
    code, _, err = call(*words, "--output", tmp_path / "astray.json")
    assert code == 2
    assert "whose folder is not there" in err


@pytest.mark.usefixtures("no_work")
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs a folder in which not even root can make anything")
def test_folders_that_nothing_can_be_made_in(call: Call, digits_net: Path, tmp_path: Path) -> None:
    (tmp_path / "training.yaml").write_text("{data: circles, model: mlp, epochs: 1}")
    for words in (
        ["measure", digits_net, *NET, "--data", "digits", "--output", "/proc/landscope.json"],
        ["train", tmp_path / "training.yaml", "--into", "/proc/landscope/run"],
        ["study", "measure", digits_net, *NET, "--data", "digits", "--into", "/proc/landscope"],
    ):
        code, _, err = call(*words)
        assert code == 2, err
        assert f"{words[-1]} cannot be written" in err


def test_a_file_as_the_store(call: Call, tmp_path: Path) -> None:
    spec = tmp_path / "study.yaml"
    spec.write_text("{name: a, training: {data: circles, model: mlp, epochs: 1}}")
    code, _, err = call("study", "run", spec, "--into", tmp_path / "s", "--store", spec)
    assert code == 2
    assert f"{spec} is a file" in err


@pytest.mark.parametrize("make", [fifo, folder, loop, long])
@pytest.mark.parametrize("name", ["study.json", "store.json"])
def test_a_study_whose_files_are_something_else(
    call: Call, tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    made = Study.of(STUDY, tmp_path)
    made.save(tmp_path)
    made.store.add(next(iter(made.runs.values())).plain)
    (tmp_path / name).unlink()
    make(tmp_path / name)
    for words in (["study", "status", tmp_path], ["report", tmp_path]):
        code, _, err = call(*words)
        assert code == 2, err
        assert f"{tmp_path / name} cannot be read: expected " in err


@pytest.mark.parametrize("make", [fifo, folder, loop, long])
@pytest.mark.parametrize("name", ["record.json", "attempts/0001.json", "spec.json"])
def test_a_run_whose_files_are_something_else(
    call: Call, tmp_path: Path, name: str, make: Callable[[Path], None]
) -> None:
    made = Study.of(STUDY, tmp_path)
    made.save(tmp_path)
    first, second = (made.store.add(run.plain) for run in made.runs.values())
    with second.claim():
        second.finish({"loss": 1.0})
    (first.path("attempts")).mkdir()
    first.path(name).unlink(missing_ok=True)
    make(first.path(name))
    code, out, err = call("study", "status", tmp_path)
    assert code == 0, err
    if name == "record.json":
        assert "damaged" in out
        assert "expected " in out


@pytest.mark.parametrize("make", [fifo, folder, loop, long])
def test_a_record_that_is_something_else_is_moved_away(tmp_path: Path, make: Callable[[Path], None]) -> None:
    store = Store(tmp_path)
    run = store.add({"seed": 1})
    make(run.path("record.json"))
    with run.claim():
        run.finish({"loss": 1.0})
    assert run.record() == {"loss": 1.0}
    (moved,) = (store.root / "quarantine").iterdir()
    assert os.path.lexists(moved / "record.json")
