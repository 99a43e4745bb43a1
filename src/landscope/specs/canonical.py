"""One spelling for each plain value, and a name made from it.

Canonical JSON: keys sorted, no spaces, ASCII only, floats by `repr` (the shortest digits that give the same float), strings in
Unicode's composed form (NFC). The order of keys, tuples or lists, and how an accent was typed do not matter. Everything else
does: 1 and 1.0 are two values, as are 1 and true, because a function may treat them differently and a stored result must never
be handed to a question that was not asked. (Whoever reads a file brings numbers to the types of the fields first, so `lr: 1` and
`lr: 1.0` meet before they come here.)
"""

from __future__ import annotations

import hashlib
import json
import math
import unicodedata

from landscope.core.errors import SpecError
from landscope.core.json import Plain
from landscope.specs.schema import to_plain

KEY_DIGITS = 16


def text_key(text: str) -> str:
    """The beginning of a text's SHA-256: 16 hexadecimal digits. Among a million texts, two share a key with probability 3e-8.

    >>> text_key("a")
    'ca978112ca1bbdca'
    """
    return hashlib.sha256(text.encode()).hexdigest()[:KEY_DIGITS]


def canonical_json(value: object) -> str:
    """The one JSON text of a value.

    >>> canonical_json({"seed": 3, "lr": 1e-1, "widths": (64, 64)})
    '{"lr":0.1,"seed":3,"widths":[64,64]}'
    """
    return canonical_text(to_plain(value))


def canonical_text(plain: Plain) -> str:
    """The one JSON text of what is plain already, such as what was just read from JSON."""
    try:
        text = json.dumps(plain, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except ValueError:
        _check_finite(plain, "spec")
        raise
    if "\\u" not in text:  # all of it is ASCII, which has one spelling
        return text
    return json.dumps(_composed(plain, "spec"), sort_keys=True, separators=(",", ":"))


def strict(value: object, place: str) -> Plain:
    """Plain values that JSON can hold, in their order; `SpecError` with the place of NaN or infinity.

    >>> strict({"lr": float("nan")}, "spec")
    Traceback (most recent call last):
    landscope.core.errors.SpecError: spec.lr is nan, which JSON cannot hold; write null or leave it out
    """
    plain = to_plain(value)
    _check_finite(plain, place)
    return plain


def _check_finite(value: Plain, place: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise SpecError(f"{place} is {float(value)}, which JSON cannot hold; write null or leave it out")
    if isinstance(value, list):
        for index, item in enumerate(value):
            _check_finite(item, f"{place}[{index}]")
    if isinstance(value, dict):
        for key, item in value.items():
            _check_finite(item, f"{place}.{key}")


def _composed(value: Plain, place: str) -> Plain:
    if isinstance(value, str):
        return unicodedata.normalize("NFC", value)
    if isinstance(value, list):
        return [_composed(item, f"{place}[{index}]") for index, item in enumerate(value)]
    if isinstance(value, dict):
        composed = {unicodedata.normalize("NFC", key): _composed(item, f"{place}.{key}") for key, item in value.items()}
        if len(composed) < len(value):
            raise SpecError(f"{place} has the same key twice, with different types: {', '.join(sorted(value))}")
        return composed
    return value
