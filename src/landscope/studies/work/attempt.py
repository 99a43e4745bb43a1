"""One run, done in this process: claim it, call the work, say how it ended. Every executor comes here in the end.

The work is named as `package.module:function` and called as `function(spec, folder)`. It takes up what an earlier attempt
left in `RunFolder(folder)`, and ends with `RunFolder(folder).finish(record)`. What it prints is appended to `log.txt`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from landscope.core.errors import ClaimError, RunFailedError, RunStoppedError
from landscope.core.memory import is_out_of_memory
from landscope.specs.names import import_function
from landscope.studies.store.durable import is_full
from landscope.studies.store.run_folder import RunFolder

__all__ = ["Ending", "Result", "perform"]


class Ending(StrEnum):
    """How an attempt at a run ended."""

    FINISHED = "finished"
    SKIPPED = "skipped"
    """It was done already."""
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


def perform(work: str, run: RunFolder) -> Result:
    """Do one run, or what is left of it. Errors of the work are kept in the run's folder, not raised."""
    try:
        if run.done():
            run.tidy()
            return Result(Ending.SKIPPED)
        with run.claim():
            if run.done():  # by somebody who was faster
                return Result(Ending.SKIPPED)
            with _printing_to(run.path("log.txt")):
                import_function(work)(run.spec(), str(run.folder))
            if not run.done():
                raise RunFailedError(
                    f"{work} came back without a record; it must call RunFolder(folder).finish(record)"
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
    """Whatever this process prints, in whatever language, appended to a file."""
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
