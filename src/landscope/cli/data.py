"""`landscope data`: which data sets are there, and getting those that are not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from landscope.cli.groups import command_group
from landscope.cli.output import console, note, print_json, progress, table
from landscope.cli.parameters import Json, Root
from landscope.cli.text import examples, size

if TYPE_CHECKING:
    from landscope.data import SetStatus

__all__ = ["app"]

app = command_group(
    "List the data sets, and download those that are missing.",
    "landscope data list",
    "landscope data get cifar10",
)


@app.command(
    "list",
    epilog=examples(
        "landscope data list",
        "landscope data list --no-verify        # do not read the files, only look whether they are there",
        "landscope data list --json | jq '.[] | select(.state != \"present\") | .name'",
    ),
)
def list_sets(
    root: Root = None,
    verify: Annotated[bool, typer.Option(help="Read every file and compare checksums.")] = True,
    as_json: Json = False,
) -> None:
    """Show which data sets are there.

    Present, missing or damaged, version, size, folder, and what to do.
    """
    from landscope.data import list_status

    found = list_status(root=root, verify=verify)
    if as_json:
        print_json([_plain(status) for status in found])
        return
    shown = table("name", "state", "version", "size", "folder", "what to do", right=["size"])
    for status in found:
        held = _bytes(status)
        folder = str(status.folder) if status.folder and status.state != "missing" else ""
        style = {"present": "", "missing": "dim", "damaged": "red"}[status.state]
        shown.add_row(
            status.name, status.state, status.version, size(held) if held else "", folder, status.hint, style=style
        )
    console().print(shown)
    for status in found:
        for problem in status.problems:
            note(f"{status.name}: {problem}")


@app.command(
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
    version: Annotated[
        str | None, typer.Option(help="Which form of the files, where there are several.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Download a data set from its official home.

    A download that was stopped goes on where it was; a file gets its name only when it is whole and its checksum right.
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
        print_json(_plain(status))
    else:
        typer.echo(sentence)


def _plain(status: SetStatus) -> dict[str, object]:
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
    from landscope.data.places import find

    files = [file for v in DATASETS[status.name].versions if v.name == status.version for file in v.files]
    paths: list[Path | None] = [find(status.folder, file) for file in files] if status.folder else []
    return sum(path.stat().st_size for path in paths if path is not None)
