"""How large a spec may be: checked in its text or its values before anything is expanded or a list is built.

A few lines can stand for a billion values (anchors in YAML), and endless nesting crashes any reader. The limits are far beyond
what people write.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

LARGEST_FILE = 4 * 2**20
"""Bytes."""
MOST_VALUES = 100_000
"""Values of a file, keys included, with all that anchors stand for."""
MOST_IN_MEMORY = 2_000_000
"""Values that a program may give."""
DEEPEST = 100
"""Mappings and lists within one another."""
MOST_RUNS = 100_000
"""The most runs of one study."""

_SURROGATE = re.compile("[\ud800-\udfff]")

too_deep = f"is nested more than {DEEPEST} levels deep, the limit for a spec"
too_many = f"holds more than {MOST_VALUES:,} values once anchors are expanded, the limit for a file"


def whole_characters(text: str) -> str:
    r"""The text with pairs of surrogates joined, as JSON escapes characters beyond U+FFFF; `ValueError` where one has no partner.

    >>> whole_characters("\ud83d\ude00") == "\N{GRINNING FACE}"
    True
    >>> whole_characters("half: \ud83d")
    Traceback (most recent call last):
    ValueError: 'half: \ud83d' is half a character (a lone surrogate), which cannot be written to a file; write the whole one
    """
    if not _SURROGATE.search(text):
        return text
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise ValueError(_half(text)) from None


def excess(value: object) -> tuple[tuple[str | int, ...], str] | None:
    r"""Where plain values are too deep, too many, or hold half a character, and what is wrong; None where they are fine.

    >>> excess({"a": [1, "\ud800"]})[0], excess({"a": [1]})
    (('a', 1), None)
    """
    left: list[tuple[object, tuple[str | int, ...]]] = [(value, ())]
    seen = 0
    while left:
        item, path = left.pop()
        seen += 1
        if seen > MOST_IN_MEMORY:
            return path[:1], f"holds more than {MOST_IN_MEMORY:,} values, the limit for a spec"
        if isinstance(item, str) and _SURROGATE.search(item):
            return path, _half(item)
        if isinstance(item, Mapping):
            for key in item:
                if isinstance(key, str) and _SURROGATE.search(key):
                    return path, f"the key {_half(key)}"
            inner: list[tuple[object, tuple[str | int, ...]]] = [
                (each, (*path, str(key))) for key, each in item.items()
            ]
        elif isinstance(item, list | tuple):
            inner = [(each, (*path, at)) for at, each in enumerate(item)]
        else:
            continue
        if len(path) >= DEEPEST:
            return path[:1], too_deep
        left += inner
    return None


def _half(text: str) -> str:
    shown = text if len(text) <= 60 else f"{text[:60]}…"
    return f"{shown!r} is half a character (a lone surrogate), which cannot be written to a file; write the whole one"


_TOKEN = re.compile(r"""\n|#[^\n]*|"{3}|'{3}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'|[\[\]{}=,.]|["']""")


def toml_excess(text: str) -> tuple[int, str] | None:
    r"""The line on which a TOML text becomes too deep or too long, and what is wrong; None where it is fine, or no TOML.

    >>> toml_excess("a = 1\nb = " + "[" * 101), toml_excess("a = '[[['")
    ((2, 'is nested more than 100 levels deep, the limit for a spec'), None)
    """
    line, depth, dots, values, at = 1, 0, 0, 0, 0
    while found := _TOKEN.search(text, at):
        token, at = found[0], found.end()
        if token in ('"""', "'''"):
            end = _closing(text, at, token)
            if end is None:
                return None  # a string that does not end: the parser says so
            line, at = line + text.count("\n", at, end), end
            continue
        if token in ('"', "'"):
            return None
        if token == ".":
            dots += 1
        elif token in "[]{}=,\n":
            dots = 0
            depth = max(0, depth + (token in "[{") - (token in "]}"))
            values += token in "=,"
        if depth + dots > DEEPEST:
            return line, too_deep
        if values > MOST_VALUES:
            return line, too_many
        line += token == "\n"
    return None


def _closing(text: str, at: int, quotes: str) -> int | None:
    """Where a string of several lines ends."""
    ends = re.compile(r'\\.|"{3,5}' if quotes == '"""' else r"'{3,5}", re.DOTALL)
    for found in ends.finditer(text, at):
        if not found[0].startswith("\\"):
            return found.end()
    return None
