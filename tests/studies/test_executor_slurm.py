"""Slurm by way of submitit's stand-ins: `debug` in this process, `local` in processes that it starts and requeues."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from pathlib import Path

import pytest
from store_work import chain, work

from landscope.core.errors import StudyError
from landscope.studies.executors import Job, LocalExecutor, Resources, SlurmExecutor, slurm
from landscope.studies.store import RunState, Store

pytestmark = pytest.mark.skipif(importlib.util.find_spec("submitit") is None, reason="submitit is not installed")

JOBS = [Job.of({"seed": seed, "steps": 3}) for seed in (1, 2)]


def test_the_records_are_those_of_any_other_way(tmp_path):
    jobs = [*JOBS, Job.of({"seed": 3, "steps": 3, "raise": "no such luck"}, Resources(cpus=2, memory=2**30))]
    store, events = Store(tmp_path), []
    summary = SlurmExecutor(store, work, cluster="debug").run(jobs, on_event=events.append)
    assert sorted(summary.finished) == sorted(job.key for job in JOBS)
    assert summary.failed == {jobs[2].key: "ValueError: no such luck"}
    assert [event.kind for event in events].count("started") == 3
    assert {record["last"] for _, record in store.records()} == {chain(seed, 3)[-1] for seed in (1, 2)}


def test_settings_that_submitit_does_not_know_are_refused(tmp_path):
    with pytest.raises(StudyError, match="slurm_partitoin"):
        SlurmExecutor(Store(tmp_path), work, cluster="debug", options={"slurm_partitoin": "gpu"}).run(JOBS)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="python -P")
@pytest.mark.parametrize("cluster", ["slurm", "local"])
def test_jobs_do_not_search_the_current_folder_first(tmp_path, monkeypatch, cluster):
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")  # submitit looks for srun
    settings = SlurmExecutor(Store(tmp_path), work, cluster=cluster)
    made = slurm._Arrays(slurm._submitit(), settings)._executor(Resources())
    assert made._executor._submitit_command_str.startswith(f"{sys.executable} -P -u -m submitit")


@pytest.mark.slow
def test_a_run_out_of_time_is_requeued_and_goes_on_from_its_checkpoint(tmp_path, monkeypatch):
    """The signal is the one that Slurm sends before the time is over."""
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
    late = Job.of({"seed": 3, "steps": 3, "at": 3, "signal": signal.SIGUSR2, "times": 1})
    lost = Job.of({"seed": 4, "steps": 3, "at": 3, "signal": signal.SIGKILL, "times": 1})
    jobs = [*JOBS, late, lost]
    store, events = Store(tmp_path / "slurm"), []
    summary = SlurmExecutor(store, work, cluster="local").run(jobs, on_event=events.append)
    assert sorted(summary.finished) == sorted(job.key for job in jobs)
    assert [event.key for event in events if event.kind == "retried"] == [lost.key]  # the other one submitit requeued
    for job in (late, lost):
        run = store.run(job.key)
        assert run.attempts == 2
        assert "begins with 3 links" in run.path("log.txt").read_text()

    other = Store(tmp_path / "local")
    LocalExecutor(other, work, workers=1).run(jobs)
    for job in jobs:
        ours, theirs = (place.run(job.key).path("record.json").read_bytes() for place in (store, other))
        assert ours == theirs
    assert {status.state for status in store.statuses()} == {RunState.DONE}
