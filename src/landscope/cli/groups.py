"""Commands that belong together: `landscope data list`, `landscope data get`."""

from __future__ import annotations

import typer

from landscope.cli.text import examples

__all__ = ["command_group"]


def command_group(about: str, *lines: str) -> typer.Typer:
    """An empty group of commands that shows its help, with example lines, where no command is given."""
    group = typer.Typer(help=about, rich_markup_mode=None, epilog=examples(*lines))

    @group.callback(invoke_without_command=True)
    def show_help(context: typer.Context) -> None:
        if context.invoked_subcommand is None:
            typer.echo(context.get_help())

    return group
