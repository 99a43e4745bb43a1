"""Ctrl-C and SIGTERM, noted instead of acted on, so that a study ends in order."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType

__all__ = ["StopSignals"]


class StopSignals:
    """While it lasts, `count` says how often this process was asked to stop. Only the main thread can be asked.

    >>> with StopSignals() as stop:
    ...     signal.raise_signal(signal.SIGTERM)
    ...     stop.count
    1
    """

    def __init__(self) -> None:
        self.count = 0
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.count += 1
