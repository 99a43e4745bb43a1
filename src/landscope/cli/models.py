"""`landscope models`: the networks that can be built by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from landscope.cli.output import console, print_json, table
from landscope.cli.parameters import Json
from landscope.cli.text import examples, shape

if TYPE_CHECKING:
    from landscope.models import ModelEntry

__all__ = ["EXAMPLES", "models"]

EXAMPLES = examples("landscope models", "landscope models vgg19", "landscope models mlp --json")


def models(
    name: Annotated[
        str | None,
        typer.Argument(metavar="[NAME]", help="One network, with its options; all without it.", show_default=False),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the networks, or one with its options.

    With a name: options, what they accept, their defaults, and parameter counts with who says so.
    """
    from landscope.models import MODELS

    entries = [MODELS[key] for key in ([name] if name else MODELS)]
    if as_json:
        print_json(_plain(entries[0]) if name else [_plain(entry) for entry in entries])
    elif name:
        _one(entries[0])
    else:
        shown = table("name", "parameters", "input", "papers", "needs", "what it is", right=["parameters"])
        for entry in entries:
            needs = f"landscope[{entry.extra}]" if entry.extra else ""
            papers = ", ".join(entry.recipes)
            shown.add_row(
                entry.name, f"{entry.parameters:,}", shape(entry.input_shape), papers, needs, entry.description
            )
        console().print(shown)


def _one(entry: ModelEntry) -> None:
    typer.echo(f"{entry.name}: {entry.description}")
    typer.echo(f"input {shape(entry.input_shape)}; last layer {entry.classifier!r}")
    if entry.recipes:
        typer.echo(f"papers: {', '.join(entry.recipes)}")
    if entry.extra:
        typer.echo(f"needs: pip install 'landscope[{entry.extra}]'")
    shown = table("option", "default", "accepts")
    for option in entry.options.values():
        shown.add_row(option.name, str(option.default), option.accepts)
    console().print(shown)
    shown = table("parameters", "with options", "who says so", right=["parameters"])
    for count in entry.counts:
        given = " ".join(f"{key}={value}" for key, value in count.options.items())
        shown.add_row(f"{count.parameters:,}", given or "as they are", count.source)
    console().print(shown)


def _plain(entry: ModelEntry) -> dict[str, object]:
    return {
        "name": entry.name,
        "description": entry.description,
        "parameters": entry.parameters,
        "input_shape": list(entry.input_shape),
        "classifier": entry.classifier,
        "papers": list(entry.recipes),
        "extra": entry.extra,
        "options": {o.name: {"default": o.default, "accepts": o.accepts} for o in entry.options.values()},
        "counts": [{"parameters": c.parameters, "options": dict(c.options), "source": c.source} for c in entry.counts],
    }
