"""Spoiled files of every kind: each is read, or refused with a `LandscopeError` that says something; nothing else happens.

A case is known by its target and its number: `case("npy", 17)` makes the same bytes on every machine. `make test` tries the
first few of each target, `make test-all` runs for $LANDSCOPE_FUZZ_SECONDS (60) in all.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from targets import TARGETS

from landscope.core.errors import LandscopeError

FEW = 40
SECONDS, GIBIBYTE = 10, 2**30
FORBIDDEN = ("os.system", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "subprocess.Popen", "socket.connect")
done: list[str] = []
"""What ran that no reader of a file may run."""
watched = False


def _audit(event: str, arguments: tuple[object, ...]) -> None:
    if watched and event in FORBIDDEN:
        done.append(f"{event}{arguments}")


sys.addaudithook(_audit)


class TooLongError(BaseException):
    """Not an `Exception`, so that no reader takes it for one of its own."""


@contextmanager
def guarded() -> Iterator[None]:
    """Ten seconds, and a gibibyte more than is in use, where the system can hold a process to that."""
    global watched

    watched = True
    try:
        with _little_time(), _little_memory():
            yield
    finally:
        watched = False


@contextmanager
def _little_time() -> Iterator[None]:
    if not hasattr(signal, "SIGALRM") or threading.current_thread() is not threading.main_thread():
        yield
        return

    def late(*_: object) -> None:
        raise TooLongError(f"more than {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def _little_memory() -> Iterator[None]:
    if not sys.platform.startswith("linux"):
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + GIBIBYTE, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def case(target: str, number: int) -> bytes:
    """The content of a spoiled file."""
    rng = random.Random(f"{target} {number}")
    return TARGETS[target].spoil(rng.choice(TARGETS[target].whole), rng)


def attempt(target: str, number: int, folder: Path) -> None:
    path = folder / TARGETS[target].name
    path.write_bytes(case(target, number))
    words = f"case({target!r}, {number})"
    try:
        with guarded(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            TARGETS[target].read(path)
    except LandscopeError as error:
        assert str(error).strip(), f"{words}: an error without a message"  # noqa: PT017 (reading it may be right, too)
        cause: BaseException | None = error
        while cause is not None:
            assert not isinstance(cause, MemoryError), f"{words}: took more than a gibibyte"
            cause = cause.__cause__ or cause.__context__
    except (Exception, TooLongError) as error:
        raise AssertionError(f"{words}: {type(error).__name__}: {str(error)[:300]}") from error
    assert not done, f"{words}: ran {done}"


@pytest.mark.parametrize("target", TARGETS)
def test_whole_files_are_read(target: str, tmp_path: Path) -> None:
    for whole in TARGETS[target].whole:
        (tmp_path / TARGETS[target].name).write_bytes(whole)
        assert TARGETS[target].read(tmp_path / TARGETS[target].name) is not None


@pytest.mark.parametrize("target", TARGETS)
def test_spoiled_files(target: str, tmp_path: Path) -> None:
    for number in range(FEW):
        attempt(target, number, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("target", TARGETS)
def test_many_spoiled_files(target: str, tmp_path: Path) -> None:
    end = time.monotonic() + float(os.environ.get("LANDSCOPE_FUZZ_SECONDS", "60")) / len(TARGETS)
    number = FEW
    while time.monotonic() < end:
        attempt(target, number, tmp_path)
        number += 1
