"""A real Ray cluster of two nodes, started here; one of them is killed while the study runs."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from store_work import work

from landscope.studies.executors import Job, LocalExecutor, RayExecutor
from landscope.studies.store import RunState, Store

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed"),
]


@pytest.fixture
def cluster(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), *sys.path]))
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def test_being_asked_to_stop_takes_the_runs_back(cluster, tmp_path):
    go_on = tmp_path / "go on"
    jobs = [Job.of({"seed": seed, "steps": 3, "at": 3, "until": str(go_on)}) for seed in range(2)]
    store, executor = Store(tmp_path / "ray"), RayExecutor(Store(tmp_path / "ray"), work, cluster.address)

    def watch(event):
        if event.kind == "started" and not go_on.exists():
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        executor.run(jobs, on_event=watch)
    assert {store.status(job.key).state for job in jobs} == {RunState.INTERRUPTED, RunState.WAITING}
    go_on.touch()
    assert len(executor.run(jobs, on_event=watch).finished) == 2


def test_a_node_dies_and_nothing_is_lost(cluster, tmp_path):
    node = cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    go_on = tmp_path / "go on"
    jobs = [Job.of({"seed": seed, "steps": 3, "at": 3, "until": str(go_on)}) for seed in range(5)]
    jobs.append(Job.of({"seed": 5, "steps": 3, "raise": "no such luck"}))
    store, events = Store(tmp_path / "ray"), []

    def watch(event):
        events.append(event)
        started = {e.key for e in events if e.kind == "started"}
        if len(started) == 2 and not go_on.exists():  # one on each node, both waiting for us
            owners = [store.run(key).latest().owner for key in started]
            cluster.remove_node(node, allow_graceful=False)
            while all(owner.alive() for owner in owners):  # Ray ends the processes of a dead node in its own time
                time.sleep(0.01)
            go_on.touch()

    summary = RayExecutor(store, work, address=cluster.address).run(jobs, on_event=watch)
    assert sorted(summary.finished) == sorted(job.key for job in jobs[:5])
    assert summary.failed == {jobs[5].key: "ValueError: no such luck"}
    retried = [event for event in events if event.kind == "retried"]
    assert len(retried) == 1
    assert store.run(retried[0].key).attempts == 2
    begins = store.run(retried[0].key).path("log.txt").read_text().splitlines()
    assert begins[0] == "begins with 1 links"
    assert begins[1] == "begins with 3 links"  # it went on from its checkpoint, on the other node

    other = Store(tmp_path / "local")
    LocalExecutor(other, work, workers=1).run(jobs)
    for job in jobs[:5]:
        ours, theirs = (place.run(job.key).path("record.json").read_bytes() for place in (store, other))
        assert ours == theirs
