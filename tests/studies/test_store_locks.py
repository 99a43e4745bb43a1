"""One run, one process: claims, dead owners, and those who judge too slowly."""

from __future__ import annotations

import errno
import json
import os
import time

import pytest
from store_processes import forked, forked_and_killed

from landscope.core.errors import ClaimError
from landscope.studies.store import RunState, Store, locks
from landscope.studies.store.locks import Owner


@pytest.fixture
def run(tmp_path):
    return Store(tmp_path).add({"seed": 1})


def foreign(run, *, age, **change):
    """An attempt by a process of another machine, whose heart last beat `age` seconds ago."""
    owner = {"host": "elsewhere", "machine": "another", "pid": os.getpid(), "born": "1"} | change
    path = run.path("attempts/0001.json")
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({"owner": owner, "since": 0.0, "outcome": "", "error": ""}))
    os.utime(path, (time.time() - age,) * 2)


def test_a_claimed_run_is_refused_to_others(run):
    with run.claim():
        with pytest.raises(ClaimError, match=rf"process {os.getpid()} on"):
            run.claim().__enter__()
        assert forked(lambda: locks.take(run.path("attempts"))) != 0
    assert run.attempts == 1


def test_a_released_run_can_be_claimed(run):
    for number in (1, 2, 3):
        with run.claim():
            assert run.attempts == number


def test_the_claim_of_a_killed_process_is_free_at_once(run):
    forked_and_killed(lambda: locks.take(run.path("attempts")))
    assert run.latest().outcome == ""
    with run.claim():
        assert run.attempts == 2


def test_a_zombie_is_dead(run):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        locks.take(run.path("attempts"))
        os.write(write, b"!")
        os._exit(0)
    os.read(read, 1)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it has ended, and nobody has asked how
    assert not run.held()
    os.waitpid(child, 0)


def test_a_process_number_in_use_again_is_another_process(run):
    here = Owner.this_process()
    assert Owner(here.host, here.machine, here.pid, here.born).alive() is True
    assert Owner(here.host, here.machine, here.pid, "1").alive() is False


def test_only_its_own_machine_can_say_whether_a_process_lives():
    here = Owner.this_process()
    assert Owner(here.host, "another", here.pid, here.born).alive() is None


def test_a_foreign_heart_that_beats_holds_the_run(run):
    foreign(run, age=locks.STALE_AFTER / 2)
    with pytest.raises(ClaimError, match="process .* on elsewhere"):
        run.claim().__enter__()


def test_a_foreign_heart_that_stopped_does_not(run):
    foreign(run, age=locks.STALE_AFTER + 5)
    with run.claim():
        assert run.attempts == 2


def test_a_torn_lock_holds_for_as_long_as_a_heartbeat(run):
    foreign(run, age=0)
    run.path("attempts/0001.json").write_bytes(b"")
    assert run.held()
    os.utime(run.path("attempts/0001.json"), (time.time() - locks.STALE_AFTER - 5,) * 2)
    assert not run.held()


def test_a_living_process_here_holds_its_run_however_still_it_stands(run):
    here = Owner.this_process()
    foreign(run, age=10**6, **here.to_dict())
    assert run.held()


def test_the_heart_beats(run):
    attempt = locks.take(run.path("attempts"), stale_after=0.08)
    os.utime(run.path("attempts/0001.json"), (1000, 1000))
    with locks.beating(run.path("attempts"), attempt, stale_after=0.08):
        while run.latest().beat == 1000:
            time.sleep(0.001)


def test_whoever_lost_the_run_can_write_no_more(run):
    with run.claim():
        path = run.path("attempts/0002.json")  # as another process would make it, taking this one for dead
        path.write_text(run.path("attempts/0001.json").read_text().replace(f'"pid": {os.getpid()}', '"pid": 1'))
        for write in (
            lambda: run.write_json("a.json", 1),
            lambda: run.finish({}),
            lambda: run.writing("b"),
            lambda: run.fail(ValueError()),
        ):
            with pytest.raises(ClaimError, match="does not hold"):
                write()
    assert not run.done()
    assert run.attempts == 2


def test_a_slow_judge_of_a_dead_owner_does_not_break_the_next_ones_claim(run, monkeypatch):
    forked_and_killed(lambda: locks.take(run.path("attempts")))
    judged = locks.latest(run.path("attempts"))
    with run.claim():  # somebody is faster
        with monkeypatch.context() as patch:
            patch.setattr(locks, "latest", lambda _: judged)
            with pytest.raises(ClaimError, match="just been taken"):
                locks.take(run.path("attempts"))
        assert run.latest().number == 2


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
@pytest.mark.parametrize("dead_owner", [False, True], ids=["free", "dead owner"])
def test_of_many_processes_one_gets_the_run(tmp_path, dead_owner, links, monkeypatch):
    if not links:
        monkeypatch.setattr(os, "link", no_links)
    store = Store(tmp_path)
    for seed in range(5):
        run = store.add({"seed": seed})
        if dead_owner:
            forked_and_killed(lambda run=run: locks.take(run.path("attempts")))
        start, report, release = os.pipe(), os.pipe(), os.pipe()
        children = []
        for _ in range(8):
            child = os.fork()
            if child == 0:
                os.read(start[0], 1)  # all begin together
                try:
                    locks.take(run.path("attempts"))
                    os.write(report[1], b"w")
                except ClaimError:
                    os.write(report[1], b"l")
                os.read(release[0], 1)  # the winner holds until all have tried
                os._exit(0)
            children.append(child)
        os.write(start[1], b"." * 8)
        assert sorted(os.read(report[0], 1) for _ in range(8)) == [b"l"] * 7 + [b"w"]
        os.write(release[1], b"." * 8)
        for child in children:
            os.waitpid(child, 0)
        for end in (*start, *report, *release):
            os.close(end)
        assert run.attempts == 1 + dead_owner


def no_links(*_):
    raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))


def test_a_store_that_can_only_be_read_can_be_looked_at(run, tmp_path):
    if os.geteuid() == 0:
        pytest.skip("root may write anywhere")
    with run.claim():
        run.finish({})
    for folder in (run.folder, run.folder.parent, run.path("attempts")):
        folder.chmod(0o555)
    try:
        assert locks.filesystem_now(run.folder) == pytest.approx(time.time(), abs=60)
        assert Store(tmp_path).status(run.key).state is RunState.DONE
    finally:
        for folder in (run.folder, run.folder.parent, run.path("attempts")):
            folder.chmod(0o755)
