"""Nothing is lost: runs killed before any line of code, and whole studies and their workers killed a hundred times."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from store_processes import forked, killed_at_line
from store_work import chain
from store_work import work as chain_work

from landscope.studies.store import RunState, Store
from landscope.studies.store.locks import Owner
from landscope.studies.work.attempt import Ending, attempt_run

STEPS = 2


def attempted(run):
    assert attempt_run(chain_work, run).ending in (Ending.FINISHED, Ending.SKIPPED)


def is_sound(store, run):
    """Whatever is there is whole and true."""
    status = store.status(run.key)
    if status.state is RunState.DONE:
        assert run.record()["last"] == chain(run.spec()["seed"], STEPS)[-1]
    else:
        assert status.state in (RunState.WAITING, RunState.INTERRUPTED)
    if run.path("state/links.json").exists():
        links = json.loads(run.path("state/links.json").read_text())
        assert links == chain(run.spec()["seed"], STEPS)[: len(links)]


def is_finished(store, run):
    assert forked(lambda: attempted(run)) == 0
    is_sound(store, run)
    assert run.done()
    assert not list(run.folder.rglob(".*"))
    assert not (store.root / "quarantine").exists()


def killed(store, seed, lines):
    """A run killed at each of these lines in turn, sound after each, then done. How many of the kills met it."""
    run = store.add({"seed": seed, "steps": STEPS})
    met = 0
    for line in lines:
        met += killed_at_line(lambda: attempted(run), line, "studies")
        is_sound(store, run)
    is_finished(store, run)
    return met


def count_lines(store):
    """How many lines an undisturbed run executes."""
    Owner.this_process().alive()  # what it remembers of this machine, the forked ones will too
    low, high = 1, 4096
    assert not killed_at_line(lambda: attempted(store.add({"seed": -1, "steps": STEPS})), high, "studies")
    seed = -2
    while low < high:
        middle = (low + high) // 2
        run = store.add({"seed": seed, "steps": STEPS})
        seed -= 1
        low, high = (
            (middle + 1, high) if killed_at_line(lambda run=run: attempted(run), middle, "studies") else (low, middle)
        )
    return low - 1


def test_a_run_killed_again_and_again_comes_out_right(tmp_path):
    store, rng = Store(tmp_path), random.Random(0)
    lines = count_lines(store)
    assert lines > 200
    assert sum(killed(store, seed, [rng.randrange(1, lines) for _ in range(4)]) for seed in range(6)) > 6


@pytest.mark.slow
def test_a_run_killed_before_any_line_comes_out_right(tmp_path):
    store = Store(tmp_path)
    lines = count_lines(store)
    assert [killed(store, line, [line]) for line in range(1, lines + 1)] == [1] * lines


STUDY = """
import sys
from landscope.studies.executors import Job, LocalExecutor
from landscope.studies.store import Store
from store_work import work
jobs = [Job.of({"seed": seed, "steps": 40, "pause": 0.01}) for seed in range(60)]
LocalExecutor(Store(sys.argv[1]), work, workers=2, attempts=10**6).run(jobs).check()
"""


def workers_of(study):
    """Processes that a study has started and that have an attempt open."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"landscope.studies.work.worker" in words and f"PPid:\t{study}\n" in (entry / "status").read_text():
                found.append(int(entry.name))
        except (OSError, ValueError):
            continue
    return sorted(found)


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="finds workers through /proc")
def test_a_study_survives_a_hundred_kills(tmp_path):
    rng, store = random.Random(1), Store(tmp_path)
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])

    def start():
        environment = {**os.environ, "PYTHONPATH": paths}
        return subprocess.Popen([sys.executable, "-c", STUDY, str(tmp_path)], env=environment)

    study, kills = start(), 0
    while kills < 100:
        time.sleep(rng.uniform(0, 0.4))
        running = {status.owner.pid for status in store.statuses() if status.state is RunState.RUNNING}
        if study.poll() is not None:  # done already: spoil some of it, and continue
            assert study.returncode in (0, -signal.SIGKILL)
            if study.returncode == 0:
                for key, _ in list(store.records())[:30]:
                    path = store.run(key).path("record.json")
                    path.write_bytes(path.read_bytes()[: rng.randrange(100)])
            study = start()
        elif workers := [pid for pid in workers_of(study.pid) if pid in running]:
            victim = study.pid if rng.random() < 0.15 else rng.choice(workers)
            os.kill(victim, signal.SIGKILL)
            kills += 1
            if victim == study.pid:
                study.wait()
    assert study.wait() in (0, -signal.SIGKILL)
    if study.returncode:
        assert start().wait() == 0
    records = dict(store.records())
    assert sorted(record["seed"] for record in records.values()) == list(range(60))
    for record in records.values():
        assert record["last"] == chain(record["seed"], 40)[-1]
    assert max(store.status(key).attempts for key in records) > 1
