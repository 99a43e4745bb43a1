"""How far a run is: a bar on a terminal, a line per row of the history in a log, or nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from landscope.training.schedule import Row

__all__ = ["Display", "training_display"]

INTERVAL = 0.25
"""Seconds between two looks at the running means, each of which waits for the device."""

Means = Callable[[], tuple[float, float | None]]
"""Loss and error since the last row of the history."""


class Display(Protocol):
    """Told after every step and every row of the history."""

    def step(self, done: int, means: Means) -> None:
        """So many optimizer steps are done."""

    def epoch(self, row: Row) -> None:
        """An epoch that has a row is over."""


class _Silent:
    def step(self, done: int, means: Means) -> None:
        """Nothing."""

    def epoch(self, row: Row) -> None:
        """Nothing."""


class _Lines:
    """One line per row, for logs."""

    def __init__(self, epochs: int, steps: int, done: int) -> None:
        self._epochs, self._steps, self._before = epochs, steps, done
        self._started = time.monotonic()

    def step(self, done: int, means: Means) -> None:
        """Nothing: a log holds results."""

    def epoch(self, row: Row) -> None:
        """Print the row and the time left."""
        spent = time.monotonic() - self._started
        left = spent / max(1, row["step"] - self._before) * (self._steps - row["step"])
        sys.stderr.write(f"[{row['epoch']:.0f}/{self._epochs}] {in_words(row)}, {spent:.1f} s, {left:.0f} s left\n")


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
    terminal = sys.stderr.isatty()
    if wish is False or (wish is None and not terminal):
        yield _Silent()
        return
    if not terminal:
        yield _Lines(epochs, steps, done)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("epoch {task.fields[epoch]}/{task.fields[epochs]}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f} %  {task.description}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=steps, completed=done, epoch=done * epochs // steps + 1, epochs=epochs)

        class OnTerminal:
            shown = 0.0
            validation = ""

            def step(self, done: int, means: Means) -> None:
                now = time.monotonic()
                if now - self.shown < INTERVAL:
                    return
                self.shown = now
                loss, error = means()
                accuracy = "" if error is None else f", accuracy {100 * (1 - error):.1f} %"
                words = f"loss {loss:.4g}{accuracy}{self.validation}"
                bar.update(task, completed=done, description=words, epoch=min(epochs, done * epochs // steps + 1))

            def epoch(self, row: Row) -> None:
                self.validation = in_words(row).partition(", validation")[2]
                self.validation = f", validation{self.validation}" if self.validation else ""

        yield OnTerminal()
