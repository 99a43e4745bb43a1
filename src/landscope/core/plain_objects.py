"""Objects that come from a JSON file, checked key by key before anything is made of them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from landscope.core.errors import SpecError

__all__ = ["LIST", "NUMBER", "OBJECT", "TEXT", "WHOLE", "Kind", "checked"]

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
    """The object `value` itself, after its keys were found to be of these kinds; those in `optional` may be missing.

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
