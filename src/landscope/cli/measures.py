"""`landscope measures`: what can be measured."""

from __future__ import annotations

import inspect
import sys
from dataclasses import fields
from typing import TYPE_CHECKING, Annotated

import typer

from landscope.cli.output import console, print_json, table
from landscope.cli.parameters import Json
from landscope.cli.text import examples

if TYPE_CHECKING:
    from landscope.measures import Measure

__all__ = ["EXAMPLES", "measures"]

EXAMPLES = examples(
    "landscope measures", "landscope measures relative_flatness", "landscope measures hessian_trace --json"
)


def measures(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="One measure, with its settings; all without it.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the measures, or one with its settings.

    With a name: formula, source, settings with defaults, and what leaves it unchanged.
    """
    from landscope.measures import MEASURES
    from landscope.measures.invariance import TRANSFORMATIONS

    kinds = [MEASURES[key] for key in ([name] if name else MEASURES)]
    if as_json:
        print_json(_plain(kinds[0]) if name else [_plain(kind) for kind in kinds])
    elif name:
        _one(kinds[0])
    else:
        transformations = list(TRANSFORMATIONS)
        shown = table("measure", *(word.replace("_", "\n") for word in transformations), "what it is")
        for kind in kinds:
            marks = ["●" if word in kind.invariant_to else "" for word in transformations]
            shown.add_row(kind.key, *marks, _summary(kind))
        console().print(shown)
        typer.echo("●: unchanged when the parameters are transformed so that the function stays the same")


def _one(kind: type[Measure]) -> None:
    typer.echo(f"{kind.key}\n\n{_description(kind)}\n")
    typer.echo(f"unchanged under: {', '.join(sorted(kind.invariant_to)) or 'no transformation'}")
    shown = table("setting", "default", "type")
    for field in fields(kind):
        shown.add_row(field.name, repr(field.default), str(field.type))
    console().print(shown)


def _summary(kind: type[Measure]) -> str:
    """The first paragraph of the docstring."""
    return " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())


def _description(kind: type[Measure]) -> str:
    """The docstring, and that of its file, which holds formula and source."""
    about = inspect.cleandoc(sys.modules[kind.__module__].__doc__ or "")
    return f"{inspect.getdoc(kind) or ''}\n\n{about}".strip()


def _plain(kind: type[Measure]) -> dict[str, object]:
    return {
        "name": kind.key,
        "summary": _summary(kind),
        "description": _description(kind),
        "invariant_to": sorted(kind.invariant_to),
        "settings": {f.name: {"default": f.default, "type": str(f.type)} for f in fields(kind)},
    }
