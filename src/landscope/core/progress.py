"""How far some work has got: a bar on a terminal, plain lines in a log, or nothing; always on stderr."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar
    from rich.progress import TaskID


class Progress:
    """A display that shows nothing, and what the others have in common."""

    live = False
    """Whether it is worth computing what only a bar shows."""

    def show(self, done: int, total: int | None = None, doing: str = "") -> None:
        """Move the bar."""

    def line(self, text: str) -> None:
        """A line for the log."""

    def count(self, done: int, total: int | None, what: str) -> None:
        """Move the bar; in a log, write a line for each tenth of each thing."""


class _Lines(Progress):
    def __init__(self) -> None:
        self._shown: set[tuple[str, int]] = set()

    def line(self, text: str) -> None:
        sys.stderr.write(text + "\n")

    def count(self, done: int, total: int | None, what: str) -> None:
        """A line where another tenth is complete."""
        tenth = 10 * done // total if total else 0
        if (what, tenth) not in self._shown:
            self._shown.add((what, tenth))
            self.line(f"{what}: {done:,} of {total:,}" if total else f"{what}: {done:,}")


class _OnTerminal(Progress):
    live = True

    def __init__(self, bar: Bar, task: TaskID) -> None:
        self._bar, self._task = bar, task

    def show(self, done: int, total: int | None = None, doing: str = "") -> None:
        """Move the bar; the description stays where none is given."""
        known = {} if total is None else {"total": total}
        described = {"description": doing} if doing else {}
        self._bar.update(self._task, completed=done, **known, **described)  # type: ignore[arg-type]

    def count(self, done: int, total: int | None, what: str) -> None:
        self.show(done, total, what)


@contextmanager
def progress_display(wish: bool | None, total: int | None = None, done: int = 0) -> Iterator[Progress]:
    """The display for `total` pieces of work: `None` shows a bar on a terminal only, True also lines in a log, False nothing.

    >>> with progress_display(False, 10) as progress:
    ...     progress.count(10, 10, "points")
    """
    terminal = sys.stderr.isatty()
    if wish is False or (wish is None and not terminal):
        yield Progress()
        return
    if not terminal:
        yield _Lines()
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    words = TextColumn("{task.description:28s}")
    columns = (words, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        yield _OnTerminal(bar, bar.add_task("", total=total, completed=done))
