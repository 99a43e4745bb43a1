"""How many points are done: a bar on a terminal, plain lines in a log, or nothing."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

__all__ = ["points_display"]


@contextmanager
def points_display(wish: bool | None, total: int) -> Iterator[Callable[[int], None]]:
    """A function to be told how many more points are done: `None` shows them on a terminal only.

    >>> with points_display(False, 10) as advance:
    ...     advance(10)
    """
    terminal = sys.stderr.isatty()
    if wish is False or (wish is None and not terminal):
        yield lambda _: None
    elif terminal:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (TextColumn("points"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("", total=total)
            yield lambda count: bar.advance(task, count)
    else:
        done = 0

        def line(count: int) -> None:
            nonlocal done
            if (done + count) * 10 // total > done * 10 // total:
                sys.stderr.write(f"[{done + count}/{total}] points\n")
            done += count

        yield line
