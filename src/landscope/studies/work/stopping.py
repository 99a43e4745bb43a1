"""A request to stop, for this process: made by a signal or by the end of whoever started it, heard by the work.

A function that trains asks after each epoch, saves a checkpoint if the answer is yes, and calls `check`. One that never asks
is ended when its time of grace is over, and goes on from its last checkpoint the next time.
"""

from __future__ import annotations

import threading

from landscope.core.errors import RunStoppedError

__all__ = ["check", "request", "requested"]

_asked = threading.Event()


def request() -> None:
    """Ask the work in this process to stop at its next checkpoint."""
    _asked.set()


def requested() -> bool:
    """Whether the work in this process should stop.

    >>> requested()
    False
    """
    return _asked.is_set()


def check() -> None:
    """Raise `RunStoppedError` if the work should stop; call it when all that is needed to resume is written."""
    if requested():
        raise RunStoppedError("the run was asked to stop and did, at a checkpoint; start the study again to resume it")
