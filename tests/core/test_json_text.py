"""JSON of somebody else's: what is not JSON, or not what landscope writes, is a `ValueError` that says what."""

from __future__ import annotations

import json
import math

import pytest

from landscope.core.errors import SpecError
from landscope.core.json import DEEPEST, LIST, NUMBER, OBJECT, TEXT, WHOLE, checked, parse_json

BAD = {
    "nothing": (b"", "Expecting value"),
    "two values": (b"{} {}", "Extra data"),
    "deep list": (b"[" * 100_000 + b"]" * 100_000, "more than 100 deep"),
    "deep objects": (b'{"a":' * 5000 + b"1" + b"}" * 5000, "more than 100 deep"),
    "a little too deep": (b"[" * (DEEPEST + 1) + b"]" * (DEEPEST + 1), "more than 100 deep"),
    "deep and broken": (b"[" * 100_000, "more than 100 deep"),
    "NaN": (b'{"a": NaN}', "got NaN"),
    "Infinity": (b"[Infinity]", "got Infinity"),
    "-Infinity": (b"[-Infinity]", "got -Infinity"),
    "beyond a float": (b"[1e999]", "too large for a float"),
    "long beyond a float": (b"[1" + b"0" * 400 + b".0]", "too large for a float"),
    "five thousand digits": (b"[" + b"1" * 5000 + b"]", "integer string"),
    "a key twice": (b'{"a": 1, "b": 2, "a": 3}', "'a' occurs twice"),
    "half a character": (rb'{"a": "\ud800"}', "half of a character"),
    "half a character in a key": (rb'{"\uDFFF": 1}', "half of a character"),
    "half a character as bytes": (b'["\xed\xa0\x80"]', "utf-8"),
    "not UTF-8": (b'["\xff"]', "utf-8"),
    "UTF-16": ("[1]".encode("utf-16"), "utf-8"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_refused(name: str) -> None:
    content, words = BAD[name]
    with pytest.raises(ValueError, match=words):
        parse_json(content)


@pytest.mark.parametrize(
    "value",
    [
        {"a": [1, 2.5, None, True, "é 😀 \\ud800"], "b": {}},
        [1e300, -1e-320, 10**200],
        "text",
        json.loads("[" * DEEPEST + "]" * DEEPEST),
    ],
)
def test_what_is_written_is_read(value: object) -> None:
    for text in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
        assert parse_json(text) == value
        assert parse_json(text.encode()) == value
        assert parse_json(b"\xef\xbb\xbf" + text.encode()) == value


def test_infinity_where_it_is_admitted() -> None:
    """A training keeps its best loss so far, which is infinite at first."""
    assert parse_json("[Infinity, 1e999]", finite=False) == [math.inf, math.inf]


KINDS = {"name": TEXT, "seed": WHOLE, "seconds": NUMBER, "rows": LIST, "about": OBJECT}
GOOD = {"name": "a", "seed": 1, "seconds": 2, "rows": [], "about": {}}


@pytest.mark.parametrize("value", ["run", [1], 3, None, True, 2.5])
def test_what_is_no_object_is_refused(value: object) -> None:
    with pytest.raises(SpecError, match="expected a run, an object with the keys name, seed"):
        checked(value, "a run", KINDS)


@pytest.mark.parametrize("key", KINDS)
@pytest.mark.parametrize("value", [None, True, "x", 1.5, 10**400, [1], {"a": 1}])
def test_each_key_has_its_kind(key: str, value: object) -> None:
    fits = isinstance(value, KINDS[key]) and not isinstance(value, bool) and value != 10**400
    if fits:
        assert checked({**GOOD, key: value}, "a run", KINDS)[key] == value
    else:
        with pytest.raises(SpecError, match=f"'{key}' of a run: expected a"):
            checked({**GOOD, key: value}, "a run", KINDS)
    with pytest.raises(SpecError, match=f"the key '{key}' of a run is missing"):
        checked({name: item for name, item in GOOD.items() if name != key}, "a run", KINDS)
