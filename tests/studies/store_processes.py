"""Processes for tests of the store: forked, so that they begin at once, and killed where a test wants it."""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from types import FrameType

__all__ = ["forked", "forked_and_killed", "killed_at_line"]


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
