"""What is running and what is left: a bar on a terminal, plain lines in a log, or nothing."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

from landscope.core.estimate import Estimate

__all__ = ["Progress", "progress_display"]


class Progress(Protocol):
    """Notified when a measure begins and ends."""

    def begin(self, name: str) -> None:
        """The measure starts."""

    def end(self, name: str, estimate: Estimate) -> None:
        """The measure has its estimate."""


class _Silent:
    def begin(self, name: str) -> None:
        """Nothing."""

    def end(self, name: str, estimate: Estimate) -> None:
        """Nothing."""


class _Lines:
    """One line per finished measure, for logs."""

    def __init__(self, total: int) -> None:
        self._total, self._done = total, 0

    def begin(self, name: str) -> None:
        """Nothing: a log holds results."""

    def end(self, name: str, estimate: Estimate) -> None:
        """Print the result."""
        self._done += 1
        sys.stderr.write(f"[{self._done}/{self._total}] {name}: {estimate!r}, {estimate.cost.seconds:.1f} s\n")


@contextmanager
def progress_display(wish: bool | None, names: Sequence[str]) -> Iterator[Progress]:
    """The display for `names`: on a terminal a bar unless switched off; elsewhere lines if asked for."""
    terminal = sys.stderr.isatty()
    if wish is False or (wish is None and not terminal):
        yield _Silent()
        return
    if not terminal:
        yield _Lines(len(names))
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description:28s}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=len(names))

        class OnTerminal:
            def begin(self, name: str) -> None:
                bar.update(task, description=name)

            def end(self, name: str, estimate: Estimate) -> None:
                bar.advance(task)

        yield OnTerminal()
