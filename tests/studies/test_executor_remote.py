"""What is the same for every cluster: handing over, following, losing and taking back. The cluster here is a list."""

from __future__ import annotations

import os
import signal
import sys
import time

import pytest
from store_processes import forked_and_killed
from store_work import chain, work

from landscope.core.errors import MissingExtraError, StoreFullError
from landscope.studies.executors import EXECUTORS, Job, Summary
from landscope.studies.executors import base as course_module
from landscope.studies.executors.base import JobQueue
from landscope.studies.executors.remote import attempt_remotely, follow
from landscope.studies.store import RunState, Store, locks
from landscope.studies.work.attempt import Ending, Result


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path)


class Here:
    """A cluster that does one job per look, in this process, unless `lose` says how it gets lost."""

    def __init__(self, store, lose=lambda job: None):
        self.store, self.lose = store, lose
        self.queue = []
        self.cancelled = False

    def submit(self, jobs):
        self.queue += jobs

    def ended(self):
        if self.cancelled:
            jobs, self.queue = self.queue, []
            return [(job, Result(Ending.STOPPED, "taken back")) for job in jobs]
        if not self.queue:
            return []
        job = self.queue.pop(0)
        run = self.store.run(job.key)
        return [(job, self.lose(job) or attempt_remotely("store_work:work", str(run.folder), locks.STALE_AFTER, 1))]

    def cancel(self):
        self.cancelled = True


def done(store, jobs, cluster, *, attempts=3, on_event=None):
    events = []

    def listen(event):
        events.append((event.kind, event.key))
        if on_event:
            on_event(event)

    queue = JobQueue(store, jobs, listen, attempts=attempts, retry_failed=False)
    try:
        follow(queue, cluster, grace=5.0)
    finally:
        cluster.events = events
    return queue.summary


def job(seed=1, **more):
    return Job.of({"seed": seed, "steps": 2, **more})


def test_jobs_are_done_in_order_and_told_of(store):
    jobs, cluster = [job(seed) for seed in range(3)], Here(store)
    assert done(store, jobs, cluster) == Summary(finished=[j.key for j in jobs])
    assert cluster.events == [(kind, j.key) for j in jobs for kind in ("started", "finished")]
    assert sorted(record["last"] for _, record in store.records()) == sorted(chain(seed, 2)[-1] for seed in range(3))


def test_a_lost_job_is_tried_again(store):
    lost = iter(["its node died", "its node died", None])
    only, cluster = job(), Here(store, lambda _: next(lost))
    assert done(store, [only], cluster).finished == [only.key]
    assert [kind for kind, _ in cluster.events] == ["retried", "retried", "started", "finished"]


def test_a_job_lost_too_often_has_failed(store):
    only, cluster = job(), Here(store, lambda _: "its node died")
    summary = done(store, [only], cluster)
    assert summary.failed[only.key].startswith("its node died, 3 times; its last output is in")
    assert store.status(only.key).state is RunState.FAILED
    assert "its node died" in store.run(only.key).failure()


def test_a_job_lost_when_it_was_done_is_done(store):
    only = job()

    def lose(job):
        attempt_remotely("store_work:work", str(store.run(job.key).folder), locks.STALE_AFTER, 1)
        return "its node died"

    assert done(store, [only], Here(store, lose)).finished == [only.key]


def test_a_run_that_another_process_does_is_waited_for(store, monkeypatch):
    monkeypatch.setattr(course_module, "LOOK_AGAIN", 0.0)
    only, other = job(1), job(2)
    run = store.add(only.spec)
    held = locks.take(run.path("attempts"))
    looks = []

    def lose(job):
        looks.append(job.key)
        if job.key == other.key:  # by now the other process has got as far as to be done
            locks.close(run.path("attempts"), held, "stopped")
            attempt_remotely("store_work:work", str(run.folder), locks.STALE_AFTER, 1)

    cluster = Here(store, lose)
    assert done(store, [only, other], cluster) == Summary(finished=[other.key], skipped=[only.key])
    assert looks == [only.key, other.key, only.key]


def test_a_run_whose_owner_died_is_taken_over(store):
    only = job()
    run = store.add(only.spec)
    forked_and_killed(lambda: locks.take(run.path("attempts")))
    assert done(store, [only], Here(store)).finished == [only.key]


def test_a_full_disk_ends_the_study_and_leaves_the_run_to_resume(store):
    jobs, cluster = [job(1, full=True, at=2), job(2)], Here(store)
    with pytest.raises(StoreFullError, match="No space left"):
        done(store, jobs, cluster)
    assert [kind for kind, _ in cluster.events] == ["started", "stopped", "stopped"]
    assert store.status(jobs[0].key).state is RunState.INTERRUPTED
    assert store.status(jobs[1].key).state is RunState.WAITING


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_being_asked_to_stop_takes_the_rest_back(store, number):
    jobs, cluster = [job(seed) for seed in range(3)], Here(store)
    with pytest.raises(KeyboardInterrupt):
        done(store, jobs, cluster, on_event=lambda event: event.kind == "finished" and os.kill(os.getpid(), number))
    assert cluster.events[:2] == [("started", jobs[0].key), ("finished", jobs[0].key)]
    assert cluster.events[2:] == [(kind, j.key) for kind in ("stopping", "stopped") for j in jobs[1:]]
    assert done(store, jobs, Here(store)) == Summary(finished=[j.key for j in jobs[1:]], skipped=[jobs[0].key])


def test_a_listener_that_raises_ends_the_study(store):
    cluster = Here(store)

    def broken(event):
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        done(store, [job()], cluster, on_event=broken)
    assert cluster.cancelled


def test_a_job_stopped_by_somebody_else_is_tried_again(store):
    ends = iter([Result(Ending.STOPPED), None])
    only, cluster = job(), Here(store, lambda _: next(ends))
    assert done(store, [only], cluster).finished == [only.key]
    assert cluster.events[0] == ("retried", only.key)


@pytest.mark.parametrize(("name", "package"), [("ray", "ray"), ("slurm", "submitit")])
def test_a_missing_package_is_named_with_the_command(store, monkeypatch, name, package):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtraError, match=rf"pip install 'landscope\[{name}\]'"):
        EXECUTORS[name](store, work).run([job()])
    assert store.keys() == []


def test_heartbeats_of_the_taken_are_young(store):
    run = store.add({"seed": 1})
    with run.claim():
        assert abs(run.latest().beat - time.time()) < locks.STALE_AFTER
