"""Processes for tests of the store: forked, so that they begin at once, and killed where a test wants it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import IO

from landscope.studies.work import worker

__all__ = ["ForkedWorker", "forked", "forked_and_killed", "killed_at_line"]


def forked(work: Callable[[], object]) -> int:
    """The exit code of a process that does the work: 0, or 1 if it raised an error, or minus the signal that killed it."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def forked_and_killed(work: Callable[[], object]) -> None:
    """Do the work in a process that is then killed, with no chance to clean up."""

    def dies() -> None:
        work()
        os.kill(os.getpid(), signal.SIGKILL)

    assert forked(dies) == -signal.SIGKILL


def killed_at_line(work: Callable[[], object], line: int, folder: str) -> bool:
    """Do the work in a process that is killed before the `line`-th line of code from `folder` that it executes.

    Whether it was: False means that the work was over before.
    """

    def dies() -> None:
        left = line

        def trace(frame: FrameType, event: str, argument: object) -> object:
            nonlocal left
            if folder not in frame.f_code.co_filename:
                return None
            if event == "line":
                left -= 1
                if left == 0:
                    os.kill(os.getpid(), signal.SIGKILL)
            return trace

        sys.settrace(trace)
        work()

    return forked(dies) == -signal.SIGKILL


class ForkedWorker:
    """In place of `subprocess.Popen` for a worker: forked from this process, which has torch already, and otherwise the same."""

    PIPE = subprocess.PIPE

    def __init__(self, words: Sequence[str], *, stderr: IO[bytes], env: Mapping[str, str], **_: object) -> None:
        *_, module, work, grace = words
        assert module == worker.__name__
        jobs, replies = os.pipe(), os.pipe()
        self.pid, self.returncode = os.fork(), None
        if self.pid == 0:
            try:
                os.setsid()
                for stream, descriptor in enumerate((jobs[0], replies[1], stderr.fileno())):
                    os.dup2(descriptor, stream)
                os.closerange(3, 4096)
                for number in (signal.SIGINT, signal.SIGTERM):
                    signal.signal(number, signal.SIG_DFL)
                sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
                os.environ.clear()
                os.environ.update(env)
                worker.main(work, float(grace))
            finally:
                os._exit(1)
        os.close(jobs[0])
        os.close(replies[1])
        self.stdin, self.stdout = os.fdopen(jobs[1], "wb", buffering=0), os.fdopen(replies[0], "rb", buffering=0)

    @classmethod
    def Popen(cls, *words: Sequence[str], **options: object) -> ForkedWorker:
        return cls(*words, **options)  # type: ignore[arg-type]

    def poll(self, options: int = os.WNOHANG) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, options)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self) -> int | None:
        return self.poll(0)

    def terminate(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)
