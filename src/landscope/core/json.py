"""JSON that somebody else may have written, read strictly, and objects in it checked key by key."""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

from landscope.core.errors import DamagedFileError, SpecError

Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"
"""What a JSON file can hold."""


# JSON that somebody else may have written: one value with unique keys, text that is text, nested as deep as ours.
#
# `json.loads` reads more than JSON (NaN, the last of two equal keys, halves of surrogate pairs), and what it reads may be
# nested so deep that walking it overflows the stack. Here each of these is a `ValueError`, which every reader of a file turns
# into an error with the name of the file.


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
    ValueError: the key 'a' occurs twice in one object
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
        raise ValueError(f"the key {next(key for key in keys if keys.count(key) > 1)!r} occurs twice in one object")
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
        raise ValueError(f"holds {error.object[error.start]!r}, half of a character (a lone surrogate)") from None
    except ValueError:
        raise ValueError("expected finite numbers, got one that is too large for a float") from None


# Objects that come from a JSON file, checked key by key before anything is made of them.


Kind = tuple[type, ...]
TEXT: Kind = (str,)
WHOLE: Kind = (int,)
NUMBER: Kind = (float, int)
LIST: Kind = (list, tuple)
OBJECT: Kind = (dict, Mapping)
_WORDS: dict[type, str] = {
    str: "a text", int: "a whole number", float: "a number", list: "a list", tuple: "a list", dict: "an object",
    bool: "true or false", type(None): "null",
}  # fmt: skip
_LARGEST = 1e300
"""Beyond what any number of a record is, and within what a float can hold."""


def checked(value: object, what: str, kinds: Mapping[str, Kind], optional: Collection[str] = ()) -> Mapping[str, Any]:
    """The object `value` itself, once its keys are known to be of these kinds; those in `optional` may be missing.

    >>> checked({"seed": 1}, "a run", {"seed": WHOLE})
    {'seed': 1}
    >>> checked("run", "a run", {"seed": WHOLE})
    Traceback (most recent call last):
    landscope.core.errors.SpecError: expected a run, an object with the keys seed; got a text
    >>> checked({"seed": "one"}, "a run", {"seed": WHOLE})
    Traceback (most recent call last):
    landscope.core.errors.SpecError: 'seed' of a run: expected a whole number, got a text
    """
    if not isinstance(value, Mapping):
        raise SpecError(f"expected {what}, an object with the keys {', '.join(kinds)}; got {_word(value)}")
    for key, kind in kinds.items():
        if key not in value:
            if key not in optional:
                raise SpecError(f"the key {key!r} of {what} is missing")
            continue
        item = value[key]
        if not isinstance(item, kind) or isinstance(item, bool):
            raise SpecError(f"{key!r} of {what}: expected {_WORDS[kind[0]]}, got {_word(item)}")
        if isinstance(item, int) and abs(item) > _LARGEST:
            raise SpecError(f"{key!r} of {what}: expected a number, got one of {len(str(item))} digits")
    return value


def _word(value: object) -> str:
    return _WORDS.get(type(value), f"a {type(value).__name__}")


# Content of a file, zipped or not, up to a size: a few kilobytes of gzip can hold gigabytes.


_CHUNK = 2**20


def read_unzipped(path: Path, largest: int) -> bytes:
    """Content of a file, unzipped if it is gzip; `DamagedFileError` where that is more than `largest` bytes.

    Memory is taken as the content comes, so that a file is refused before it fills the machine.
    """
    with path.open("rb") as file:
        zipped = file.read(2) == b"\x1f\x8b"
    if not zipped:
        if path.stat().st_size > largest:
            raise DamagedFileError(f"{path}: has {path.stat().st_size:,} bytes; expected {_words(largest)} at most")
        return path.read_bytes()
    chunks: list[bytes] = []
    size = 0
    try:
        with gzip.open(path) as stream:
            while chunk := stream.read(_CHUNK):
                size += len(chunk)
                if size > largest:
                    raise DamagedFileError(f"{path}: unzips to more than {_words(largest)}, the most that is read")
                chunks.append(chunk)
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DamagedFileError(f"{path}: cannot be unzipped ({error}); it is truncated or damaged") from error
    return b"".join(chunks)


def _words(size: int) -> str:
    return f"{size / 2**30:.3g} GiB" if size >= 2**29 else f"{size / 2**20:.3g} MiB"
