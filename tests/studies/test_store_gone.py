"""A study's folder that vanishes while it runs: reported in one line, at once, and not made again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from store_work import work

from landscope.core.errors import StoreGoneError
from landscope.studies.executors import Event, Job, LocalExecutor
from landscope.studies.executors.base import JobQueue, ignore
from landscope.studies.executors.remote import follow
from landscope.studies.store import Store
from landscope.studies.store.locks import Attempt
from landscope.studies.store.run_folder import RunFolder
from landscope.studies.work.attempt import Ending, Result, attempt_run

pytestmark = pytest.mark.usefixtures("forked_workers")


def wait_for(happened: Callable[[], bool]) -> None:
    for _ in range(3000):
        if happened():
            return
        time.sleep(0.01)
    raise AssertionError("it never happened")


def removed(folder: Path) -> None:
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)


def renamed(folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))


def emptied(folder: Path) -> None:
    """As a mount point is when what was mounted there is not."""
    renamed(folder)
    folder.mkdir()


@pytest.mark.parametrize("vanish", [removed, emptied])
def test_the_folder_vanishes_while_a_run_works(tmp_path: Path, vanish: Callable[[Path], None]) -> None:
    store = Store(tmp_path / "s")
    jobs = [Job.of({"seed": seed, "steps": 3, "at": 2, "until": str(tmp_path / "never")}) for seed in (1, 2)]
    events: list[Event] = []

    def watch(event: Event) -> None:
        events.append(event)
        if event.kind == "started":
            wait_for(store.run(event.key).path("state/links.json").exists)
            vanish(store.root)

    with pytest.raises(StoreGoneError, match=r"/s is not there any more: .* run the same command to resume"):
        LocalExecutor(store, work, workers=1).run(jobs, on_event=watch)
    assert [event.kind for event in events] == ["started"]
    assert not list(store.root.glob("*"))


@pytest.mark.parametrize("end", [lambda run: run.write_json("state/a/b.json", {}), lambda run: run.fail("it failed")])
def test_a_folder_that_vanishes_between_the_look_and_the_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: Callable[[RunFolder], None]
) -> None:
    store = Store(tmp_path / "s")
    run = store.add({"seed": 1})

    def look_in_vain() -> Attempt:
        attempt = run.latest()
        removed(store.root)
        return cast(Attempt, attempt)

    with pytest.raises(StoreGoneError), run.claim():
        monkeypatch.setattr(run, "_check_claim", look_in_vain)
        end(run)
    assert not store.root.exists()


def test_the_folder_vanishes_before_a_worker_has_begun(tmp_path: Path) -> None:
    store, jobs = Store(tmp_path / "s"), [Job.of({"seed": seed, "steps": 3}) for seed in (1, 2)]
    with pytest.raises(StoreGoneError):
        LocalExecutor(store, work, workers=1).run(jobs, on_event=lambda _: removed(store.root))
    assert not store.root.exists()


def test_asked_to_stop_when_the_folder_is_gone(tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        removed(store.root)
        raise KeyboardInterrupt

    store = Store(tmp_path / "s")
    with pytest.raises((StoreGoneError, KeyboardInterrupt)):
        LocalExecutor(store, work, workers=1, grace=1.0).run([Job.of({"seed": 1, "steps": 3})], on_event=stop)
    assert not store.root.exists()


class Cluster:
    """One that loses the store's folder when it is handed the runs."""

    def __init__(self, root: Path, end: Result | str) -> None:
        self.root, self.end, self.cancelled = root, end, False
        self.jobs: list[Job] = []

    def submit(self, jobs: list[Job]) -> None:
        self.jobs += jobs
        removed(self.root)

    def ended(self) -> list[tuple[Job, Result | str]]:
        return [(self.jobs.pop(), self.end)] if self.jobs else []

    def cancel(self) -> None:
        self.cancelled = True


@pytest.mark.parametrize("end", [Result(Ending.FAILED, "FileNotFoundError"), Result(Ending.BUSY), "its node died"])
def test_on_a_cluster(tmp_path: Path, end: Result | str) -> None:
    store = Store(tmp_path / "s")
    queue = JobQueue(store, [Job.of({"seed": 1, "steps": 3})], ignore, attempts=3, retry_failed=False)
    cluster = Cluster(store.root, end)
    with pytest.raises(StoreGoneError):
        follow(queue, cluster, grace=60.0)  # type: ignore[arg-type]
    assert cluster.cancelled
    assert not store.root.exists()


def test_a_run_whose_folder_is_gone_makes_no_new_one(tmp_path: Path) -> None:
    run = Store(tmp_path / "s").add({"seed": 1, "steps": 3})
    with pytest.raises(StoreGoneError, match="the folder of the run"), run.claim():
        removed(tmp_path / "s")
        run.write_json("history.json", [])
    removed(tmp_path / "s")
    result = attempt_run(work, run)
    assert result.ending is Ending.FAILED
    assert result.detail.startswith("StoreGoneError: the folder of the run")
    assert not (tmp_path / "s").exists()


def test_only_what_was_there_is_missed(tmp_path: Path) -> None:
    store = Store(tmp_path / "s")
    store.check_there()
    store.add({"seed": 1})
    store.check_there()
    removed(store.root)
    with pytest.raises(StoreGoneError):
        store.check_there()
    (tmp_path / "s").write_text("a file")
    with pytest.raises(StoreGoneError):
        store.check_there()


@pytest.mark.slow
def test_the_command_says_so_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "study.yaml").write_text(
        "name: gone\ntraining: {data: circles, model: mlp, epochs: 100000}\nseeds: 2\n"
        "measuring: {splits: {train: [loss]}}\n"
    )
    words = ["-m", "landscope", "study", "run", "study.yaml", "--into", "s", "-e", "workers=1"]
    settings = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    study = subprocess.Popen(
        [sys.executable, *words], cwd=tmp_path, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=settings
    )
    wait_for(lambda: bool(list((tmp_path / "s").glob("runs/*/log.txt"))))
    renamed(tmp_path / "s")
    _, err = study.communicate(timeout=60)
    assert study.returncode == 2
    assert "Traceback" not in err
    assert (
        err.strip().splitlines()[-1].startswith(f"landscope: error: the store {tmp_path / 's'} is not there any more")
    )


def test_only_the_folder_of_runs_vanishes(tmp_path: Path) -> None:
    store = Store(tmp_path / "s")
    run = store.add({"seed": 1})
    removed(tmp_path / "s" / "runs")
    for asked in (lambda: store.run(run.key), lambda: store.status(run.key), store.check_there):
        with pytest.raises(StoreGoneError, match=r"/s is not there any more: .* run the same command to resume"):
            asked()


def test_the_runs_vanish_while_one_works(tmp_path: Path) -> None:
    store = Store(tmp_path / "s")
    jobs = [Job.of({"seed": seed, "steps": 3, "at": 2, "until": str(tmp_path / "never")}) for seed in (1, 2)]

    def watch(event: Event) -> None:
        if event.kind == "started":
            wait_for(store.run(event.key).path("state/links.json").exists)
            removed(tmp_path / "s" / "runs")

    with pytest.raises(StoreGoneError, match=r"/s is not there any more"):
        LocalExecutor(store, work, workers=1).run(jobs, on_event=watch)
    assert not (tmp_path / "s" / "runs").exists()
