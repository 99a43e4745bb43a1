"""Examples in docstrings as blocks of code: griffe's parser of docstrings would take `>>>` for a quotation."""

from __future__ import annotations

import re
from typing import Any

import griffe


def fenced(text: str) -> str:
    r"""Each run of lines from `>>>` to the next empty line, fenced.

    >>> fenced("One.\n\n>>> 1\n1\n\nTwo.").split("\n")
    ['One.', '', '```pycon', '>>> 1', '1', '```', '', 'Two.']
    """
    blocks = re.split(r"\n\s*\n", text)
    return "\n\n".join(f"```pycon\n{b}\n```" if b.lstrip().startswith(">>> ") else b for b in blocks)


class Doctests(griffe.Extension):
    """Fences the examples of everything that is documented."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Once an object is known."""
        if obj.docstring:
            obj.docstring.value = fenced(obj.docstring.value)
