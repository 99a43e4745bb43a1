"""What commands print: a table for people, or one JSON value for programs; notes and progress go to stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from landscope.cli.failures import CommandError
from landscope.core.files import destination, probe_folder
from landscope.core.progress import progress_display
from landscope.core.text import examples

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

Tick = Callable[[str, int, int | None], None]
"""Called with (what, how much of it is done, of how much)."""

_PLAIN_WIDTH = 160
_ROOMY = 120


def console() -> Console:
    """Standard output as it is now: as wide as the terminal, or wide enough for a file; nothing is taken for markup."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _PLAIN_WIDTH
    return Console(width=width, markup=False, highlight=False, emoji=False)


def print_json(value: object) -> None:
    """One JSON value on standard output; what JSON does not know becomes text."""
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")


def note(text: str) -> None:
    """Print a line for people that is not a result."""
    sys.stderr.write(text + "\n")


def table(*columns: str, right: Sequence[str] = (), title: str = "") -> Table:
    """An empty table with these columns, those named in `right` flush right."""
    from rich import box
    from rich.table import Table

    made = Table(title=title or None, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for place, column in enumerate(columns):
        whole = place == 0 or column in right
        made.add_column(column, justify="right" if column in right else "left", overflow="fold", no_wrap=whole)
    return made


def print_table(made: Table, minor: Sequence[str]) -> bool:
    """Print a table, without its minor columns where a terminal is narrow; whether all columns were shown."""
    shown = console()
    if shown.width >= _ROOMY:
        shown.print(made)
        return True
    kept = [column for column in made.columns if column.header not in minor]
    names = [str(column.header) for column in kept]
    narrow = table(*names, right=[str(column.header) for column in kept if column.justify == "right"])
    for row, cells in zip(made.rows, zip(*(column.cells for column in kept), strict=True), strict=True):
        narrow.add_row(*cells, style=row.style)
    shown.print(narrow)
    return False


def target(path: Path | None) -> None:
    """A file to be written at the end: refused now if that is impossible, not after an hour of work."""
    if path is None:
        return
    if path.is_dir() or not path.absolute().parent.is_dir():
        raise CommandError(f"{path} cannot be written: it is a folder, or its folder is not there. Make it first")
    try:
        end = destination(path)
        if not end.parent.is_dir():
            raise CommandError(
                f"{path} cannot be written: it is a link to {end}, whose folder is not there. Make it first"
            )
        probe_folder(end.parent)
    except OSError as error:
        raise CommandError(f"{path} cannot be written: {error.strerror}. Name another file") from error


def target_folder(path: Path) -> Path:
    """A folder to write into: refused now if there is a file in its place, or in that of a folder above it."""
    there = next((place for place in (path, *path.absolute().parents) if os.path.lexists(place)), path)
    if os.path.lexists(there) and not there.is_dir():
        what = "a file" if there.is_file() else "not a folder"
        raise CommandError(
            f"{path} cannot be written into: {there} is {what}. Name another folder, or move the file away"
        )
    return path


def writable_folder(path: Path) -> Path:
    """The same, refused also where nothing can be made in it."""
    target_folder(path)
    try:
        probe_folder(path)
    except OSError as error:
        raise CommandError(f"{path} cannot be written into: {error.strerror}. Name another folder") from error
    return path


@contextmanager
def progress() -> Iterator[Tick]:
    """Progress of the work: a bar on a terminal; elsewhere a line for each tenth of each thing."""
    with progress_display(True) as display:
        yield lambda what, done, total: display.count(done, total, what)


# Commands that belong together: `landscope data list`, `landscope data get`.


def command_group(about: str, *lines: str) -> typer.Typer:
    """An empty group of commands that shows its help, with example lines, where no command is given."""
    group = typer.Typer(help=about, rich_markup_mode=None, epilog=examples(*lines))

    @group.callback(invoke_without_command=True)
    def show_help(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())

    return group
