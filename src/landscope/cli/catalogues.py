"""`landscope data`, `models` and `measures`: the data sets, networks and measures that Landscope knows."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from landscope.cli.options import Json, Root, optional
from landscope.cli.output import command_group, console, note, print_json, print_table, progress, table
from landscope.core.text import examples, shape, size

if TYPE_CHECKING:
    from landscope.data import SetStatus
    from landscope.measures import Measure
    from landscope.models import ModelEntry

# `landscope data`: which data sets are there, and getting those that are not.


data_app = command_group(
    "List the data sets, and download those that are missing.", "landscope data list", "landscope data get cifar10"
)


@data_app.command(
    "list",
    epilog=examples(
        "landscope data list",
        "landscope data list --no-verify        # only look for the files, do not read them",
        "landscope data list --json | jq '.[] | select(.state != \"present\") | .name'",
    ),
)
def list_sets(
    root: Root = None,
    verify: Annotated[bool, typer.Option(help="Read every file and compare checksums.")] = True,
    as_json: Json = False,
) -> None:
    """Show which data sets are available.

    State (present, missing or damaged), version, size, folder, and what to do.
    """
    from landscope.data import list_status

    found = list_status(root=root, verify=verify)
    if as_json:
        print_json([_plain_data(status) for status in found])
        return
    shown = table("name", "state", "version", "size", "folder", "what to do", right=["size"])
    for status in found:
        held = _bytes(status)
        folder = str(status.folder) if status.folder and status.state != "missing" else ""
        style = {"present": "", "missing": "dim", "damaged": "red"}[status.state]
        shown.add_row(
            status.name, status.state, status.version, size(held) if held else "", folder, status.hint, style=style
        )
    print_table(shown, ["version", "folder"])
    for status in found:
        for problem in status.problems:
            note(f"{status.name}: {problem}")


@data_app.command(
    "get",
    epilog=examples(
        "landscope data get cifar10",
        "landscope data get cifar10 --version python --root ~/data",
        "landscope data get svhn --json",
    ),
)
def get_set(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name from `landscope data list`.", show_default=False)],
    root: Root = None,
    version: Annotated[str | None, optional(help="Which form of the files, if there are several.")] = None,
    as_json: Json = False,
) -> None:
    """Download a data set from its official home.

    An interrupted download resumes; a file gets its name only when it is complete and its checksum is right.
    """
    from landscope.core.errors import MissingExtraError
    from landscope.data import DATASETS, get, status

    dataset = DATASETS[name]
    if not dataset.versions:
        now = status(name, root=root)
        if now.state != "present" and dataset.requires:
            raise MissingExtraError.of(dataset.requires[0], dataset.requires[1], f"the data set {name}")
        _report(now, f"{name} needs no files", as_json)
        return
    with progress() as tick:
        folder = get(name, root=root, version=version, progress=tick)
    _report(status(name, root=root, verify=False), f"{name} is in {folder}", as_json)


def _report(status: SetStatus, sentence: str, as_json: bool) -> None:
    if as_json:
        print_json(_plain_data(status))
    else:
        typer.echo(sentence)


def _plain_data(status: SetStatus) -> dict[str, object]:
    return {
        "name": status.name,
        "title": status.title,
        "state": status.state,
        "version": status.version,
        "folder": str(status.folder) if status.folder else None,
        "bytes": _bytes(status),
        "problems": list(status.problems),
        "what_to_do": status.hint,
        "licence": status.licence,
    }


def _bytes(status: SetStatus) -> int:
    """Size of the files of the set that are there."""
    from landscope.data import DATASETS
    from landscope.data.files import find

    files = [file for v in DATASETS[status.name].versions if v.name == status.version for file in v.files]
    paths: list[Path | None] = [find(status.folder, file) for file in files] if status.folder else []
    return sum(path.stat().st_size for path in paths if path is not None)


# `landscope models`: the networks that can be built by name.


MODEL_EXAMPLES = examples("landscope models", "landscope models vgg19", "landscope models mlp --json")


def models(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="Show this network and its options; without it, list all.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the networks, or one with its options.

    With a name: options, what they accept, their defaults, and parameter counts with their sources.
    """
    from landscope.models import MODELS
    from landscope.papers import papers_by_network

    entries = [MODELS[key] for key in ([name] if name else MODELS)]
    papers = papers_by_network()
    if as_json:
        plain = [_plain_model(entry, papers.get(entry.name, ())) for entry in entries]
        print_json(plain[0] if name else plain)
    elif name:
        _one_model(entries[0], papers.get(entries[0].name, ()))
    else:
        shown = table("name", "parameters", "input", "papers", "needs", "description", right=["parameters"])
        for entry in entries:
            needs = f"landscope[{entry.extra}]" if entry.extra else ""
            used = ", ".join(papers.get(entry.name, ()))
            shown.add_row(entry.name, f"{entry.parameters:,}", shape(entry.input_shape), used, needs, entry.description)
        print_table(shown, ["input", "papers", "needs"])


def _one_model(entry: ModelEntry, papers: Sequence[str]) -> None:
    typer.echo(f"{entry.name}: {entry.description}")
    typer.echo(f"input {shape(entry.input_shape)}; last layer {entry.classifier!r}")
    if papers:
        typer.echo(f"papers: {', '.join(papers)}")
    if entry.extra:
        typer.echo(f"needs: pip install 'landscope[{entry.extra}]'")
    shown = table("option", "default", "accepts")
    for option in entry.options.values():
        shown.add_row(option.name, str(option.default), option.accepts)
    console().print(shown)
    shown = table("parameters", "with options", "source", right=["parameters"])
    for count in entry.counts:
        given = " ".join(f"{key}={value}" for key, value in count.options.items())
        shown.add_row(f"{count.parameters:,}", given or "defaults", count.source)
    console().print(shown)


def _plain_model(entry: ModelEntry, papers: Sequence[str]) -> dict[str, object]:
    return {
        "name": entry.name,
        "description": entry.description,
        "parameters": entry.parameters,
        "input_shape": list(entry.input_shape),
        "classifier": entry.classifier,
        "papers": [*papers],
        "extra": entry.extra,
        "options": {o.name: {"default": o.default, "accepts": o.accepts} for o in entry.options.values()},
        "counts": [{"parameters": c.parameters, "options": dict(c.options), "source": c.source} for c in entry.counts],
    }


# `landscope measures`: what can be measured.


MEASURE_EXAMPLES = examples(
    "landscope measures", "landscope measures relative_flatness", "landscope measures hessian_trace --json"
)


def measures(
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[NAME]", help="Show this measure and its settings; without it, list all.", show_default=False
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """List the measures, or one with its settings.

    With a name: formula, source, unit, cost, settings with defaults, and what leaves it unchanged.
    """
    from landscope.measures import MEASURES
    from landscope.measures.invariance import TRANSFORMATIONS

    kinds = [MEASURES[key] for key in ([name] if name else MEASURES)]
    if as_json:
        print_json(_plain_measure(kinds[0]) if name else [_plain_measure(kind) for kind in kinds])
    elif name:
        _one_measure(kinds[0])
    else:
        transformations = list(TRANSFORMATIONS)
        headings = [word.replace("_", "\n") for word in transformations]
        shown = table("measure", "family", *headings, "description")
        for kind in kinds:
            marks = ["●" if word in kind.invariant_to else "" for word in transformations]
            shown.add_row(kind.key, kind.family.value, *marks, _summary(kind))
        if print_table(shown, ["family", *headings]):
            typer.echo("●: unchanged when the parameters are transformed so that the function stays the same")


def _one_measure(kind: type[Measure]) -> None:
    typer.echo(f"{kind.key}: {kind.title}\n\n{_description(kind)}\n")
    for fact, stated in _facts(kind).items():
        typer.echo(f"{fact}: {stated or '–'}")
    typer.echo(f"unchanged under: {', '.join(sorted(kind.invariant_to)) or 'no transformation'}")
    shown = table("setting", "default", "type")
    for field in fields(kind):
        shown.add_row(field.name, repr(field.default), str(field.type))
    console().print(shown)


def _facts(kind: type[Measure]) -> dict[str, str | None]:
    return {
        "title": kind.title,
        "family": kind.family.value,
        "unit": kind.unit,
        "better": kind.better,
        "cost": kind.cost,
        "reference": kind.reference,
    }


def _summary(kind: type[Measure]) -> str:
    """The first paragraph of the docstring."""
    return " ".join((inspect.getdoc(kind) or "").split("\n\n")[0].split())


def _description(kind: type[Measure]) -> str:
    """The docstring, and that of its file, which holds formula and source."""
    about = inspect.cleandoc(sys.modules[kind.__module__].__doc__ or "")
    return f"{inspect.getdoc(kind) or ''}\n\n{about}".strip()


def _plain_measure(kind: type[Measure]) -> dict[str, object]:
    return {
        "name": kind.key,
        **_facts(kind),
        "summary": _summary(kind),
        "description": _description(kind),
        "invariant_to": sorted(kind.invariant_to),
        "settings": {f.name: {"default": f.default, "type": str(f.type)} for f in fields(kind)},
    }
