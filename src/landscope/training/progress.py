"""Progress of a training: loss and accuracy beside the bar on a terminal, a line per row of the history in a log, or nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from landscope.core.progress import Progress, progress_display
from landscope.training.schedule import Row

INTERVAL = 0.25
"""Seconds between two looks at the running means, each of which waits for the device."""

Means = Callable[[], tuple[float, float | None]]
"""Loss and error since the last row of the history."""


class Display:
    """Notified after every step and every row of the history."""

    def __init__(self, progress: Progress, epochs: int, steps: int, done: int) -> None:
        self._progress, self._epochs, self._steps, self._before = progress, epochs, steps, done
        self._started, self._shown, self._validation = time.monotonic(), 0.0, ""

    def step(self, done: int, means: Means) -> None:
        """This many optimizer steps are done."""
        now = time.monotonic()
        if not self._progress.live or now - self._shown < INTERVAL:
            return
        self._shown = now
        loss, error = means()
        accuracy = "" if error is None else f", accuracy {100 * (1 - error):.1f} %"
        epoch = min(self._epochs, done * self._epochs // self._steps + 1)
        self._progress.show(done, doing=f"epoch {epoch}/{self._epochs}: loss {loss:.4g}{accuracy}{self._validation}")

    def epoch(self, row: Row) -> None:
        """An epoch that has a row is over."""
        _, comma, validation = in_words(row).partition(", validation")
        self._validation = comma + validation
        spent = time.monotonic() - self._started
        left = spent / max(1, row["step"] - self._before) * (self._steps - row["step"])
        self._progress.line(f"[{row['epoch']:.0f}/{self._epochs}] {in_words(row)}, {spent:.1f} s, {left:.0f} s left")


def in_words(row: Row) -> str:
    """The figures of an epoch.

    >>> in_words({"epoch": 1, "train_loss": 0.5, "train_error": 0.25, "validation_error": 0.5})
    'loss 0.5, accuracy 75.0 %, validation accuracy 50.0 %'
    """
    parts = [f"loss {row['train_loss']:.4g}"]
    if "train_error" in row:
        parts.append(f"accuracy {100 * (1 - row['train_error']):.1f} %")
    if "validation_error" in row:
        parts.append(f"validation accuracy {100 * (1 - row['validation_error']):.1f} %")
    elif "validation_loss" in row:
        parts.append(f"validation loss {row['validation_loss']:.4g}")
    return ", ".join(parts)


@contextmanager
def training_display(wish: bool | None, steps: int, epochs: int, done: int) -> Iterator[Display]:
    """The display of a run of `steps` steps, `done` of them before: on a terminal unless switched off; elsewhere if asked for."""
    with progress_display(wish, steps, done) as progress:
        yield Display(progress, epochs, steps, done)
