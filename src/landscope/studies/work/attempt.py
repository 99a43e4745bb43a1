"""One attempt at a run, in this process: claim it, run it, report how it ended. Every executor ends up here.

A function `work(spec, folder)` does the run. It continues what an earlier attempt left in `RunFolder(folder)`, and ends with
`RunFolder(folder).finish(record)`. What it prints is appended to `log.txt`.

The work can be asked to stop, by a signal or by the end of the process that started it. A function that trains asks
`stop_requested` after each epoch, saves a checkpoint if the answer is yes, and calls `raise_if_stopping`. One that never asks is
killed when its grace period is over, and resumes from its last checkpoint the next time.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TypeAlias

from landscope.core.errors import ClaimError, RunFailedError, RunStoppedError, StudyError
from landscope.core.files import is_full
from landscope.core.memory import is_out_of_memory
from landscope.studies.store.run_folder import RunFolder

Work: TypeAlias = Callable[..., object]
"""Called as `work(spec, folder)`, with the spec of a run and the path of its folder."""


def name_of(work: Work) -> str:
    """How another process finds a function: `package.module:function`.

    >>> import json
    >>> name_of(json.dumps)
    'json:dumps'
    """
    if work.__module__ == "__main__" or "<" in work.__qualname__:
        raise StudyError(f"{work.__qualname__} cannot be found by another process; define it at the top of a module")
    return f"{work.__module__}:{work.__qualname__}"


class Ending(StrEnum):
    """How an attempt at a run ended."""

    FINISHED = "finished"
    SKIPPED = "skipped"
    """It was done before."""
    FAILED = "failed"
    STOPPED = "stopped"
    """It was asked to stop, and can be resumed."""
    BUSY = "busy"
    """Another process works on it."""
    FULL = "full"
    """The store's disk is full: no other run would fare better."""


@dataclass(frozen=True)
class Result:
    """How an attempt at a run ended, why, and whether memory was short."""

    ending: Ending
    detail: str = ""
    memory: bool = False


def attempt_run(work: Work, run: RunFolder) -> Result:
    """Run one run, or what is left of it. Errors of the work are kept in the run's folder, not raised."""
    try:
        if run.done():
            run.tidy()
            return Result(Ending.SKIPPED)
        with run.claim():
            if run.done():  # by somebody who was faster
                return Result(Ending.SKIPPED)
            with _printing_to(run.path("log.txt")):
                work(run.spec(), str(run.folder))
            if not run.done():
                raise RunFailedError(
                    f"{work.__qualname__} returned without a record; it must call RunFolder(folder).finish(record)"
                )
    except ClaimError as error:
        return Result(Ending.BUSY, str(error))
    except RunStoppedError as error:
        return Result(Ending.STOPPED, str(error))
    except Exception as error:
        if is_full(error):
            return Result(Ending.FULL, str(error))
        return Result(Ending.FAILED, f"{type(error).__name__}: {error}", memory=is_out_of_memory(error))
    return Result(Ending.FINISHED)


@contextmanager
def _printing_to(path: Path) -> Iterator[None]:
    """All output of this process, also that of libraries in C, appended to a file."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    _flush()
    kept = [(stream, os.dup(stream)) for stream in (1, 2)]
    for stream in (1, 2):
        os.dup2(log, stream)
    os.close(log)
    try:
        yield
    finally:
        _flush()
        for stream, copy in kept:
            os.dup2(copy, stream)
            os.close(copy)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # closed, absent, or no room for it
            stream.flush()


_asked = threading.Event()


def request_stop() -> None:
    """Ask the work in this process to stop at its next checkpoint."""
    _asked.set()


def stop_requested() -> bool:
    """Whether the work in this process should stop.

    >>> stop_requested()
    False
    """
    return _asked.is_set()


def raise_if_stopping() -> None:
    """Raise `RunStoppedError` if the work should stop; call it when everything needed to resume is written."""
    if stop_requested():
        raise RunStoppedError("the run was asked to stop and did so at a checkpoint; run the study again to resume it")
