"""Requests to stop: SIGTERM, Ctrl-C, a time limit, or the caller's. The current step is finished first."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from landscope.probe.totals import checked_seconds

REASONS = ("time limit", "SIGTERM", "SIGINT", "request")
"""Why a run that can be resumed has ended."""


class Interruption:
    """Why the run should end now, once it should.

    >>> Interruption(time_limit=0.0).reason(), Interruption().reason()
    ('time limit', None)
    """

    def __init__(self, time_limit: float | None = None, asked: Callable[[], bool] | None = None) -> None:
        limit = checked_seconds("time_limit", time_limit)
        self._end = None if limit is None else time.monotonic() + limit
        self._asked = asked
        self._signal: str | None = None

    def reason(self) -> str | None:
        """The name of a signal, "time limit", "request", or nothing."""
        if self._signal is None and self._end is not None and time.monotonic() >= self._end:
            return "time limit"
        if self._signal is None and self._asked is not None and self._asked():
            return "request"
        return self._signal

    def receive(self, number: int, frame: FrameType | None = None) -> None:
        """Note a signal; a second Ctrl-C does not wait for the step to end."""
        name = signal.Signals(number).name
        if name == self._signal == "SIGINT":
            raise KeyboardInterrupt
        self._signal = name


@contextmanager
def interruptible(time_limit: float | None = None, asked: Callable[[], bool] | None = None) -> Iterator[Interruption]:
    """Signals are noted instead of acted on inside; afterwards everything is as before.

    Only the main thread can take signals: in another one, only the time limit and `asked` count.
    """
    interruption = Interruption(time_limit, asked)
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    before = {number: signal.signal(number, interruption.receive) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            # a handler that was not set from Python cannot be set again from here
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
