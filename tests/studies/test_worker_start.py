"""How worker processes start: from where they import, and what it costs when they are killed before they can work."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from store_work import work

from landscope.core import search_path
from landscope.core.errors import StudyError
from landscope.studies.executors import Event, Job, LocalExecutor
from landscope.studies.store import RunState, Store

ROOT = Path(__file__).parent.parent.parent


class Killer:
    """Kills the workers of the first starts at once, while they import."""

    def __init__(self, starts: int) -> None:
        self.starts = starts
        self.seen: list[str] = []
        self.why: list[str] = []

    def __call__(self, event: Event) -> None:
        self.seen.append(event.kind)
        self.why.append(event.detail)
        if event.kind == "started" and self.seen.count("started") <= self.starts:
            os.kill(int(event.worker.split()[-1]), signal.SIGKILL)


def jobs(count: int) -> list[Job]:
    return [Job.of({"seed": seed, "steps": 1}) for seed in range(count)]


def test_a_worker_killed_while_it_starts_costs_one_attempt(tmp_path: Path) -> None:
    killer = Killer(1)
    summary = LocalExecutor(Store(tmp_path), work, workers=1).run(jobs(2), on_event=killer)
    assert len(summary.finished) == 2
    assert killer.seen == ["started", "retried", "started", "finished", "started", "finished"]
    assert killer.why[1] == "its process was killed by SIGKILL while it started"


def test_a_run_that_has_no_attempt_left_fails_and_the_others_go_on(tmp_path: Path) -> None:
    store, (first, second) = Store(tmp_path), jobs(2)
    summary = LocalExecutor(store, work, workers=1, attempts=1).run([first, second], on_event=Killer(1))
    assert list(summary.failed) == [first.key]
    assert summary.finished == [second.key]
    assert store.status(first.key).state is RunState.FAILED
    assert "killed by SIGKILL while it started" in store.status(first.key).error


def test_where_no_worker_can_start_the_study_ends_not_every_run(tmp_path: Path) -> None:
    store, many = Store(tmp_path), jobs(20)
    with pytest.raises(StudyError, match="could not start: its process was killed by SIGKILL, 4 times in a row"):
        LocalExecutor(store, work, workers=1).run(many, on_event=Killer(10**6))
    assert {status.state for status in store.statuses()} == {RunState.WAITING}


OWN = """\
import torch
import helper_of_own

def rows():
    x = torch.rand(20, 2, generator=torch.Generator().manual_seed(0))
    return {"train": (x, (x[:, 0] > 0.5).long()), "test": (x, (x[:, 0] > 0.5).long())}
"""
STUDY = """\
name: own
training: {data: "own_rows_here:rows", model: mlp, epochs: 1}
seeds: 1
measuring: {splits: {train: [loss]}, consistency: false}
"""
BOOM = "import pathlib\npathlib.Path('boom.txt').write_text('ran')\nraise RuntimeError('not the real one')\n"


def test_a_random_py_in_the_current_folder_does_not_run_in_workers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("random", "tempfile", "socket"):
        (tmp_path / f"{name}.py").write_text(BOOM)
    summary = LocalExecutor(Store(tmp_path / "s"), work, workers=1).run(jobs(1))
    assert len(summary.finished) == 1
    assert not (tmp_path / "boom.txt").exists()


@pytest.mark.slow
def test_a_random_py_in_the_current_folder_runs_nowhere(tmp_path: Path) -> None:
    """Neither in the command nor in its workers, whose run takes its rows from that folder all the same."""
    (tmp_path / "own_rows_here.py").write_text(OWN)
    (tmp_path / "helper_of_own.py").write_text("")
    (tmp_path / "study.yaml").write_text(STUDY)
    for name in ("random", "tempfile", "socket"):
        (tmp_path / f"{name}.py").write_text(BOOM)
    words = ["-m", "landscope", "study", "run", "study.yaml", "--into", "s", "-e", "workers=1", "--no-report", "--json"]
    settings = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, env=settings)
    assert done.returncode == 0, done.stderr
    assert len(json.loads(done.stdout)["finished"]) == 1
    assert not (tmp_path / "boom.txt").exists()


def test_workers_search_the_current_folder_last(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    ours = str(ROOT / "src")
    monkeypatch.delenv("PYTHONPATH", raising=False)
    for first in ("", str(tmp_path)):
        monkeypatch.setattr(sys, "path", [first, "/other", ours])
        assert search_path().split(os.pathsep) == ["/other", ours, str(tmp_path)]
    monkeypatch.setattr(sys, "path", ["/other"])
    assert search_path().split(os.pathsep) == ["/other", ours]  # wherever this package was imported from
    monkeypatch.setenv("PYTHONPATH", ".")  # asked for
    monkeypatch.setattr(sys, "path", [str(tmp_path), "/other", ours])
    assert search_path().split(os.pathsep) == [str(tmp_path), "/other", ours]
