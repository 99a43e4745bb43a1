"""The reference of the command line, made from the commands themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from typing import Any

import typer

from landscope.cli import app

__all__ = ["command_pages"]

PROGRAM = "landscope"


def command_pages() -> dict[str, str]:
    """A page for each command, and for each command of a group, by its words.

    >>> pages = command_pages()
    >>> "study run" in pages, "## Options" in pages["measure"]
    (True, True)
    """
    return dict(_pages(typer.main.get_command(app), ()))


def _pages(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    inside = getattr(
        command, "commands", {}
    )  # typer may bring a copy of click's classes: they are recognised by what they have
    if not inside:
        yield " ".join(words), _page(command, words)
    for name, inner in inside.items():
        if not inner.hidden:
            yield from _pages(inner, (*words, name))


def _page(command: Any, words: tuple[str, ...]) -> str:
    name = " ".join((PROGRAM, *words))
    context = command.make_context(name, [], resilient_parsing=True)
    usage = " ".join([name, *command.collect_usage_pieces(context)])
    parts = [f"# {name}", _paragraphs(command.help), f"```text\n{usage}\n```"]
    for kind, title in (("argument", "Arguments"), ("option", "Options")):
        records = [each.get_help_record(context) for each in command.params if each.param_type_name == kind]
        rows = [f"| <code>{_cell(escape(names))}</code> | {_cell(text)} |" for names, text in filter(None, records)]
        if rows:
            parts.append("\n".join([f"## {title}", "", "| | |", "|---|---|", *rows]))
    if command.epilog:
        parts.append(_examples(command.epilog))
    return "\n\n".join(part for part in parts if part) + "\n"


def _cell(text: str | None) -> str:
    words = " ".join((text or "").replace("\b", "").split()).replace("|", "&#124;")
    words = re.sub(r"\[x>=(\S+?)\]", r"(at least \1)", words)
    return re.sub(r"\[(default: [^\]]*|required)\]", r"(\1)", words)


def _paragraphs(text: str | None) -> str:
    return "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", (text or "").replace("\b", "")))


def _examples(epilog: str) -> str:
    """What stands below the help: parts that end in a colon, each with lines of its own."""
    parts = []
    for block in re.split(r"\n\s*\n", epilog.replace("\b", "").strip("\n")):
        head, *lines = block.strip("\n").split("\n")
        lines = [line.removeprefix("  ") for line in lines]
        title = "" if head.strip() == "Examples:" else f"{head.strip()}\n\n"
        parts.append(f"{title}```text\n" + "\n".join(lines) + "\n```")
    return "## Examples\n\n" + "\n\n".join(parts)
