"""Notebooks as pages: their cells are run here, in order, and what they print, return and draw stands below them."""

from __future__ import annotations

import ast
import base64
import contextlib
import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

__all__ = ["executed"]

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
            parts.append(f"```python\n{source}\n```")
            printed, value = _run(source, names, notebook.name)
            drawn = [_address(figure) for figure in _figures(value)]
            pictures += drawn
            parts += [f"```text\n{text}\n```" for text in (printed.rstrip(), _text(value, drawn)) if text]
            parts += [f"![]({address})" for address in drawn]
    return "\n\n".join(parts) + "\n", pictures[-1] if pictures else ""


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


def _text(value: object, drawn: list[str]) -> str:
    return "" if value is None or drawn else repr(value)


def _address(figure: Any) -> str:
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=PICTURE, bbox_inches="tight")
    return f"data:image/png;base64,{base64.b64encode(content.getvalue()).decode()}"
