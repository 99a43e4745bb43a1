"""Code that is run while the site is built: what it prints, returns and draws stands below it.

Notebooks become pages, cell by cell. A page runs its blocks of `python`, one after the other.
"""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from landscope.core.display import words_on

__all__ = ["executed", "with_outputs"]

PICTURE = 80
"""Dots per inch."""


def executed(notebook: Path) -> tuple[str, str]:
    """The page of a notebook, and its last picture as a data address; empty where it draws none."""
    import matplotlib

    matplotlib.use("Agg")
    parts: list[str] = []
    pictures: list[str] = []
    names: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
            source = "".join(cell["source"])
            if cell["cell_type"] == "markdown":
                parts.append(source)
                continue
            shown, drawn = _outcome(source, names, notebook.name)
            pictures += drawn
            parts += [f"```python\n{source}\n```", *shown]
    return "\n\n".join(parts) + "\n", pictures[-1] if pictures else ""


BLOCK = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)


def with_outputs(page: str, name: str) -> str:
    """A page with what its blocks print, return and draw below each of them."""
    import matplotlib

    matplotlib.use("Agg")
    names: dict[str, Any] = {"__name__": "__main__"}

    def followed(match: re.Match[str]) -> str:
        shown, _ = _outcome(match[1], names, name)
        return "\n\n".join([match[0].rstrip("\n"), *shown]) + "\n"

    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        return BLOCK.sub(followed, page)


def _outcome(source: str, names: dict[str, Any], file: str) -> tuple[list[str], list[str]]:
    """What some code shows, as parts of a page, and the addresses of its pictures."""
    printed, value = _run(source, names, file)
    figures = list(_figures(value))
    drawn = [_address(figure) for figure in figures]
    seen = [words_on(figure).translate({ord("["): "(", ord("]"): ")"}) for figure in figures]
    texts = [f"```text\n{printed.rstrip()}\n```"] if printed.strip() else []
    return [
        *texts,
        *_display(value, drawn),
        *(f"![{words}]({address})" for words, address in zip(seen, drawn, strict=True)),
    ], drawn


def _run(source: str, names: dict[str, Any], file: str) -> tuple[str, object]:
    """What a cell prints, and the value of its last line."""
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(tree, file, "exec"), names)
        value = eval(compile(ast.Expression(last.value), file, "eval"), names) if isinstance(last, ast.Expr) else None
    return out.getvalue(), value


def _figures(value: object) -> Iterator[Any]:
    """What a cell has drawn: the figure that it returns, or the one of the axes, and those that matplotlib holds."""
    from matplotlib import pyplot
    from matplotlib.artist import Artist

    own = getattr(value, "figure", None) if isinstance(value, Artist) else None
    if own is not None:
        yield own
    for number in pyplot.get_fignums():
        if (figure := pyplot.figure(number)) is not own:
            yield figure
    pyplot.close("all")


def _display(value: object, drawn: list[str]) -> list[str]:
    """A value as a notebook shows it; a figure is shown already."""
    if value is None or drawn:
        return []
    html = getattr(value, "_repr_html_", None)
    if html is not None and not isinstance(value, type):
        shown = re.sub(r"\n+", " ", html())
        return [f'<div class="display">{shown}</div>']
    return [f"```text\n{value!r}\n```"]


def _address(figure: Any) -> str:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=PICTURE, bbox_inches="tight")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
