"""`landscope bench`: Landscope against the tools that people would use instead, timed in one run on this machine.

Thin on purpose: the comparison itself lives in the repository's `benchmarks/compare`, which is not installed with the package. It
makes an environment, installs other people's packages in it and rewrites two pages of the repository.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from landscope.cli.failures import CommandError
from landscope.cli.options import Json, optional
from landscope.cli.output import console, note, print_json, table, writable_folder
from landscope.core.text import examples

EXAMPLES = examples(
    "landscope bench --list                                              # rows and tools",
    "landscope bench --rows trace_2e-2 --rows lambda1_1e-3 --networks mlp",
    "landscope bench --against pyhessian --against curvlinops",
    "landscope bench --against none --size tiny                          # does it run here?",
    "landscope bench --size gpu --wheels wheels/                         # where nothing can be installed",
)


def bench(
    against: Annotated[
        list[str] | None,
        optional(metavar="NAME", help="A tool to compare with, or none; may be repeated.  [default: all]"),
    ] = None,
    rows: Annotated[
        list[str] | None, optional(metavar="NAME", help="A row to run; may be repeated.  [default: all]")
    ] = None,
    networks: Annotated[
        list[str] | None, optional(metavar="NAME", help="A network of the size; may be repeated.  [default: all]")
    ] = None,
    size: Annotated[
        Literal["tiny", "cpu", "gpu"],
        typer.Option(help="tiny: seconds, to see that it runs; cpu: up to ResNet-20; gpu: ResNet-18 on 2,000 images."),
    ] = "cpu",
    rounds: Annotated[int, typer.Option(min=1, help="Turns of every tool; slow rows take one.")] = 3,
    threads: Annotated[int, typer.Option(min=1, help="Threads of every tool.")] = 2,
    limit: Annotated[float, typer.Option(min=1, metavar="SECONDS", help="The longest that one answer may take.")] = 300,
    wheels: Annotated[
        Path | None,
        optional(
            exists=True,
            file_okay=False,
            help="Take the tools from wheels, packed or unpacked, in this folder, and install nothing.",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        optional(help="Where the tools' environment, trained networks and true values are kept.  [default: .bench]"),
    ] = None,
    into: Annotated[
        Path | None,
        optional(
            help="Where the numbers and the page go.  [default: benchmarks, with five lines in README.md; nowhere for tiny]"
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Leave out what the same command has written there at this commit.")
    ] = False,
    remark: Annotated[
        str, typer.Option("--note", metavar="TEXT", help="What a reader of the page should know about this run.")
    ] = "",
    list_rows: Annotated[bool, typer.Option("--list", help="Show the rows with their tools, and stop.")] = False,
    as_json: Json = False,
) -> None:
    """Time Landscope against other tools.

    Every tool runs in its own process, in turn, with the same network, samples, accuracy and threads. The error of
    each answer stands beside its time. The tools are installed from PyPI in an environment of their own, made on the first run.
    """
    root = _checkout()
    compare = {name: import_module(f"benchmarks.compare.{name}") for name in ("rows", "run", "page")}
    if list_rows:
        _show_rows(compare["rows"].ROWS, as_json)
        return
    given = {
        "size": size,
        "rows": tuple(rows or ()),
        "networks": tuple(networks or ()),
        "rounds": rounds,
        "threads": threads,
        "limit": limit,
        "note": remark,
        "wheels": wheels and wheels.absolute(),
        "folder": (folder or root / ".bench").absolute(),
    }
    if against is not None:
        given["against"] = () if against == ["none"] else tuple(against)
    place = into or (None if size == "tiny" else root / "benchmarks")
    if place is not None:
        writable_folder(place)

    def keep(found: dict[str, Any]) -> None:
        if place is not None:
            compare["page"].write(found, place, root / "README.md" if into is None else None)

    try:
        kept = compare["page"].stored(place, size) if resume and place is not None else []
        found = compare["run"].run(compare["run"].Options(**given), note, keep, kept)
    except ValueError as error:
        raise CommandError(str(error)) from error
    if place is not None:
        note(f"written: {place / 'README.md'}")
    if as_json:
        print_json(found)
    else:
        _show(found, compare["page"])


def _checkout() -> Path:
    """The repository that this package is a part of, or the current folder if that is one; its packages can then be imported."""
    import landscope

    for root in (Path(landscope.__file__).absolute().parents[2], Path.cwd()):
        if (root / "benchmarks" / "compare" / "run.py").is_file():
            if str(root) not in sys.path:
                sys.path.append(str(root))
            return root
    raise CommandError(
        "the benchmarks are part of the repository and not of the installed package. Clone it and run `make bench` there"
    )


def _show_rows(rows: Any, as_json: bool) -> None:
    if as_json:
        print_json({row.name: {"title": row.title, "tools": list(row.tools)} for row in rows})
        return
    shown = table("row", "what", "tools")
    for row in rows:
        shown.add_row(row.name, row.title, ", ".join(row.tools))
    console().print(shown)


def _show(found: Any, page: Any) -> None:
    for name, why in found["missing"].items():
        note(f"left out: {name}: {why}")
    numbers = ("seconds", "CPU s", "× ours", "MiB", "off by")
    shown = table("row", "network", "tool", *numbers, "note", right=numbers)
    for case in found["cases"]:
        for tool in case["tools"]:
            shown.add_row(
                case["row"], case["label"], tool["tool"], *page.summary(tool, case["tools"][0], found["size"])
            )
    console().print(shown)
