"""JSON that somebody else may have written: one value with unique keys, text that is text, nested as deep as ours.

`json.loads` reads more than JSON (NaN, the last of two equal keys, halves of surrogate pairs), and what it reads may be nested
so deep that whoever walks it runs out of stack. All of that ends here in a `ValueError`, which every reader of a file turns
into an error with the name of the file.
"""

from __future__ import annotations

import json
import re
from typing import NoReturn

from landscope.core.schema import Plain

__all__ = ["parse_json"]

DEEPEST = 100
"""Nested lists and objects; what landscope writes has some ten levels."""
_DOUBTFUL = re.compile(r"\\u[dD][89a-fA-F]|\d[eE]\+?\d{3}|\d{300}")
"""Escapes that may be half a character, numbers that may be beyond a float: only these texts are looked through."""


def parse_json(content: bytes | str, *, finite: bool = True) -> Plain:
    r"""The value in a JSON text; `ValueError` says what is wrong with it. `finite=False` admits NaN and Infinity.

    >>> parse_json(b'{"a": [1, 2.5, null]}')
    {'a': [1, 2.5, None]}
    >>> parse_json('{"a": 1, "a": 2}')
    Traceback (most recent call last):
    ValueError: the key 'a' stands twice in one object
    >>> parse_json("[" * 5000 + "]" * 5000)
    Traceback (most recent call last):
    ValueError: nested more than 100 deep
    """
    text = content if isinstance(content, str) else content.decode("utf-8-sig")
    try:
        value: Plain = json.loads(text, object_pairs_hook=_unique, parse_constant=_refuse if finite else None)
    except RecursionError:
        raise ValueError(f"nested more than {DEEPEST} deep") from None
    _check_depth(value)
    if _DOUBTFUL.search(text):
        _check_values(value, finite)
    return value


def _unique(pairs: list[tuple[str, Plain]]) -> dict[str, Plain]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} stands twice in one object")
    return found


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"expected a finite number, got {constant}, which is not JSON")


def _check_depth(value: Plain) -> None:
    level: list[list[Plain] | dict[str, Plain]] = [value] if isinstance(value, list | dict) else []
    depth = 0
    while level:
        depth += 1
        if depth > DEEPEST:
            raise ValueError(f"nested more than {DEEPEST} deep")
        level = [
            item
            for group in level
            for item in (group.values() if isinstance(group, dict) else group)
            if isinstance(item, list | dict)
        ]


def _check_values(value: Plain, finite: bool) -> None:
    try:
        json.dumps(value, ensure_ascii=False, allow_nan=not finite).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"holds {error.object[error.start]!r}, which is half of a character") from None
    except ValueError:
        raise ValueError("expected finite numbers, got one that is too large for a float") from None
