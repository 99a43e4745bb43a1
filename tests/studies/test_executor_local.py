"""Worker processes on this machine: what they do, how they die, how they are stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from store_processes import forked
from store_work import chain, surroundings, work

from landscope.core.errors import SpecError, StudyError
from landscope.studies.executors import EXECUTORS, Job, LocalExecutor, Resources
from landscope.studies.executors import local as local_module
from landscope.studies.executors.gpu_sharing import CONTROL, PERCENTAGE, PIPES
from landscope.studies.executors.local import THREADS, MemoryWatch, environment
from landscope.studies.store import RunState, Store

pytestmark = pytest.mark.usefixtures("forked_workers")


@pytest.fixture
def store(tmp_path):
    return Store(tmp_path / "store")


def executor(store, work=work, **settings):
    return EXECUTORS["local"](store, work, **{"workers": 1, **settings})


def are_right(store, steps=3):
    for _, record in store.records():
        assert record["last"] == chain(record["seed"], steps)[-1]
        assert record["count"] == steps + 1


def wait_for(happened):
    for _ in range(6000):
        if happened():
            return
        time.sleep(0.01)
    raise AssertionError("it never happened")


def test_runs_are_done_and_troubles_are_kept_apart(store):
    """One worker for all of it, but for those that take it with them."""
    jobs = {
        "first": Job.of({"seed": 1, "steps": 3}),
        "raises": Job.of({"seed": 2, "steps": 3, "raise": "no such luck"}),
        "killed once": Job.of({"seed": 3, "steps": 3, "at": 3, "signal": signal.SIGKILL, "times": 1}),
        "crashes": Job.of({"seed": 4, "steps": 3, "signal": signal.SIGSEGV}),
        "second": Job.of({"seed": 5, "steps": 3}),
    }
    names = {job.key: name for name, job in jobs.items()}
    events = []
    summary = executor(store, attempts=2).run([*jobs.values(), jobs["first"]], on_event=events.append)

    message = {name: [event.kind for event in events if names[event.key] == name] for name in jobs}
    assert message == {
        "first": ["started", "finished"],
        "raises": ["started", "failed"],
        "killed once": ["started", "retried", "started", "finished"],
        "crashes": ["started", "retried", "started", "failed"],
        "second": ["started", "finished"],
    }
    assert len({event.worker for event in events if event.kind == "started"}) == 3  # it was reused; two were replaced
    assert sorted(names[key] for key in summary.finished) == ["first", "killed once", "second"]
    assert {names[key] for key in summary.failed} == {"raises", "crashes"}
    are_right(store)

    resumed, raised, crashed = (store.run(jobs[name].key) for name in ("killed once", "raises", "crashes"))
    assert resumed.path("log.txt").read_text().split("\n")[:2] == ["begins with 1 links", "begins with 3 links"]
    assert "store_work.py" in raised.failure()
    assert "no such luck" in raised.failure()
    assert "SIGSEGV, 2 times" in crashed.failure()
    assert "Segmentation fault" in crashed.path("log.txt").read_text()

    events.clear()
    again = executor(store).run(list(jobs.values()), on_event=events.append)  # nothing to do, so nothing is started
    assert {event.kind for event in events} == {"skipped"}
    assert sorted(names[key] for key in again.skipped) == ["first", "killed once", "second"]
    with pytest.raises(Exception, match="2 of 5 runs failed"):
        again.check()


def test_failed_runs_are_retried_when_asked(store):
    job = Job.of({"seed": 1, "steps": 3, "raise": "once", "times": 1})
    with pytest.raises(ValueError, match="once"), store.add(job.spec).claim():
        raise ValueError("once")
    assert executor(store).run([job]).failed == {job.key: "ValueError: once"}
    assert executor(store, retry_failed=True).run([job]).finished == [job.key]
    are_right(store)


def test_being_asked_to_stop_leaves_checkpoints(store, tmp_path):
    before = signal.getsignal(signal.SIGINT)
    jobs = [Job.of({"seed": seed, "steps": 3, "at": 2, "until": str(tmp_path / "go on")}) for seed in (1, 2)]
    events = []

    def watch(event):
        events.append((event.kind, event.key))
        if event.kind == "started":
            wait_for(store.run(event.key).path("state/links.json").exists)
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        executor(store).run(jobs, on_event=watch)
    assert events == [(kind, jobs[0].key) for kind in ("started", "stopping", "stopped")]
    assert [store.status(job.key).state for job in jobs] == [RunState.INTERRUPTED, RunState.WAITING]
    assert store.run(jobs[0].key).latest().outcome == "stopped"
    assert store.status(jobs[0].key).error == ""  # it was asked to
    assert signal.getsignal(signal.SIGINT) is before

    (tmp_path / "go on").touch()
    assert len(executor(store).run(jobs).finished) == 2
    begins = store.run(jobs[0].key).path("log.txt").read_text().splitlines()
    assert begins[0] == "begins with 1 links"
    assert begins[1] in ("begins with 2 links", "begins with 3 links")
    are_right(store)


STUDY = """
import sys
from landscope.studies.executors import Job, LocalExecutor
from landscope.studies.store import Store
from store_work import work
job = Job.of({"seed": 1, "steps": 3, "at": 2, "until": sys.argv[2]})
LocalExecutor(Store(sys.argv[1]), work, workers=1).run([job])
"""


def test_a_worker_whose_study_was_killed_stops_at_a_checkpoint(store, tmp_path):
    job = Job.of({"seed": 1, "steps": 3, "at": 2, "until": str(tmp_path / "never")})
    paths = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    study = subprocess.Popen(
        [sys.executable, "-c", STUDY, str(store.root), str(tmp_path / "never")], env={**os.environ, "PYTHONPATH": paths}
    )
    try:
        run = store.add(job.spec)
        wait_for(run.path("state/links.json").exists)
        owner = run.latest().owner
        assert owner.alive()
    finally:
        study.kill()
        study.wait()
    wait_for(lambda: not owner.alive())
    assert run.latest().outcome == "stopped"
    assert store.status(run.key).state is RunState.INTERRUPTED


def test_where_memory_runs_out_fewer_workers_go_on(store, tmp_path):
    (tmp_path / "room").mkdir()
    jobs = [Job.of({"seed": seed, "steps": 3, "memory": str(tmp_path / "room")}) for seed in (1, 2)]
    events = []
    summary = executor(store, workers=2).run(jobs, on_event=events.append)
    assert sorted(summary.finished) == sorted(job.key for job in jobs)
    retried = [event for event in events if event.kind == "retried"]
    assert len(retried) == 2
    assert all("MemoryError: no room for both; memory ran out" in event.detail for event in retried)
    after = [event.kind for event in events[events.index(retried[-1]) :] if event.kind in ("started", "finished")]
    assert after[-2:] == ["started", "finished"]  # one at a time
    are_right(store)


def test_no_worker_is_begun_that_would_not_fit(store):
    jobs = [Job.of({"seed": seed, "steps": 3}, Resources(memory=10**18)) for seed in (1, 2, 3)]
    events = []
    executor(store, workers=3).run(jobs, on_event=events.append)
    assert [event.kind for event in events] == ["started", "finished"] * 3
    assert len({event.worker for event in events if event.worker}) == 1


def test_the_largest_peak_is_remembered(monkeypatch):
    watch = MemoryWatch()
    assert watch.allows()
    watch.observe(os.getpid())
    assert watch.peak > 50 * 2**20  # this process has torch in it
    monkeypatch.setattr("landscope.studies.executors.local.available_bytes", lambda _: 2**20)
    assert not watch.allows()
    assert MemoryWatch(expected=2**20).allows()


def test_cores_are_divided_and_cards_assigned_one_each(store, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-3,GPU-5")
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(local_module, "usable_cores", lambda: 7)
    jobs = [Job.of({"seed": seed}, Resources(gpus=seed % 2)) for seed in range(4)]
    events = []
    executor(store, surroundings, workers=2).run(jobs, on_event=events.append)
    found = {record["seed"]: record for _, record in store.records()}
    assert [found[seed]["OMP_NUM_THREADS"] for seed in range(4)] == ["3"] * 4
    assert [found[seed]["CUDA_VISIBLE_DEVICES"] for seed in (0, 2)] == ["", ""]
    assert {found[seed]["CUDA_VISIBLE_DEVICES"] for seed in (1, 3)} <= {"GPU-3", "GPU-5"}
    for seed in range(4):  # a run that has a card for itself has all of it
        assert (found[seed]["LANDSCOPE_GPU_SHARE"], found[seed][PERCENTAGE]) == (None, None)


@pytest.mark.parametrize(("asked", "given"), [("1", "1"), ("12", "7"), ("none", "7")])
def test_fewer_threads_that_the_environment_asks_for_are_kept(monkeypatch, asked, given):
    monkeypatch.setenv("OMP_NUM_THREADS", asked)
    variables = environment(7, "")  # what the test above finds in its workers
    assert {variables[name] for name in THREADS} == {given}


@pytest.mark.parametrize(
    "wrong", [{"workers": "abc"}, {"workers": -2}, {"attempts": 0}, {"grace": -1}, {"per_gpu": True}, {"per_gpu": 0}]
)
def test_settings_that_are_no_numbers_are_refused_by_name(store, wrong):
    with pytest.raises(SpecError, match=f"{next(iter(wrong))}: expected .* at least"):
        executor(store, **wrong)


def on_a_card(count):
    return [Job.of({"seed": seed}, Resources(gpus=1)) for seed in range(count)]


def test_runs_that_share_a_card_share_its_memory_and_may_use_all_multiprocessors(store, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-3")
    executor(store, surroundings, workers=None, per_gpu=2).run(on_a_card(2))
    found = [record for _, record in store.records()]
    assert [record["CUDA_VISIBLE_DEVICES"] for record in found] == ["GPU-3"] * 2
    assert [record["LANDSCOPE_GPU_SHARE"] for record in found] == ["0.450"] * 2
    assert [(record[PERCENTAGE], record[PIPES]) for record in found] == [(None, None)] * 2


@pytest.fixture
def control_program(tmp_path, monkeypatch):
    """What stands for NVIDIA's program: it notes how it was called, by whose variables, and its input."""
    folder, notes = tmp_path / "bin", tmp_path / "notes"
    folder.mkdir()
    program = folder / CONTROL
    program.write_text(
        f'#!/bin/sh\n[ -z "$MPS_REFUSES" ] || {{ echo "$MPS_REFUSES" >&2; exit 1; }}\n'
        f'echo "$* ${PIPES} ${{CUDA_VISIBLE_DEVICES-all}} $(cat)" >> {notes}\n'
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-3")
    monkeypatch.delenv(PIPES, raising=False)
    return notes


def test_the_multi_process_service_lasts_as_long_as_the_runs(store, control_program):
    executor(store, surroundings, workers=None, per_gpu=2, mps=True).run(on_a_card(2))
    [place] = {record[PIPES] for _, record in store.records()}
    assert control_program.read_text().splitlines() == [f"-d {place} all ", f" {place} all quit"]
    assert not Path(place).exists()


def test_the_service_ends_with_runs_that_cannot_go_on(store, control_program):
    with pytest.raises(SpecError, match="asks for 2 GPUs"):
        executor(store, mps=True).run([Job.of({"seed": 1}, Resources(gpus=2))])
    assert [line.split()[-1] for line in control_program.read_text().splitlines()] == ["all", "quit"]


def test_nothing_serves_runs_without_a_card_or_runs_that_are_done(store, control_program):
    for _ in range(2):
        executor(store, surroundings, mps=True).run([Job.of({"seed": 1})])
    assert not control_program.exists()


def test_a_service_that_is_there_is_used_and_left_alone(store, control_program, monkeypatch):
    monkeypatch.setenv(PIPES, "/somewhere")
    monkeypatch.setenv(PERCENTAGE, "70")
    with pytest.warns(UserWarning, match=f"{PERCENTAGE} is 70: .* wrong losses"):
        executor(store, surroundings, workers=None, per_gpu=4, mps=True).run(on_a_card(1))
    [(_, record)] = store.records()
    assert (record[PIPES], record[PERCENTAGE]) == ("/somewhere", "70")
    assert not control_program.exists()


def test_a_service_that_cannot_be_had_is_said(store, control_program, monkeypatch):
    monkeypatch.setenv("MPS_REFUSES", "no such device")
    with pytest.raises(StudyError, match="could not be started: no such device"):
        executor(store, mps=True).run(on_a_card(1))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(SpecError, match="leave mps=true out"):
        executor(store, mps=True).run(on_a_card(1))


@pytest.mark.parametrize(("visible", "gpus"), [("", 1), ("0,1", 2)])
def test_cards_that_are_not_there_are_refused(store, monkeypatch, visible, gpus):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with pytest.raises(SpecError, match=f"asks for {gpus} GPUs; a worker on this machine has"):
        executor(store).run([Job.of({"seed": 1}, Resources(gpus=gpus))])


def test_work_that_no_other_process_finds_is_refused_before_anything_starts(store):
    with pytest.raises(StudyError, match="<lambda> cannot be found by another process"):
        executor(store, lambda spec, folder: None).run([Job.of({"seed": 1})])
    assert store.keys() == []


def test_a_worker_that_cannot_start_ends_the_study(store, monkeypatch):
    monkeypatch.setattr(local_module, "subprocess", subprocess)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(StudyError, match="could not start: its process ended with exit code 1"):
        executor(store).run([Job.of({"seed": 1, "steps": 3})])


def test_two_studies_share_a_store(store):
    jobs = [Job.of({"seed": seed, "steps": 3, "pause": 0.02}) for seed in range(6)]
    keys = sorted(job.key for job in jobs)
    child = os.fork()
    if child == 0:
        os._exit(forked(lambda: executor(store).run(jobs).check()))
    summary = executor(store).run(jobs[::-1])
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert sorted(summary.finished + summary.skipped) == keys
    assert [store.run(key).path("log.txt").read_text() for key in keys] == ["begins with 1 links\n"] * 6
    are_right(store)


def test_settings_have_defaults(store):
    assert LocalExecutor(store, work).attempts == 3
