"""Dotted keys of a spec as it is written: `optimizer.lr` is the key `lr` inside `optimizer`.

Axes of a study, `--set` on the command line and the members of a pool all change a spec by such keys before it is checked.
"""

from __future__ import annotations

from collections.abc import Mapping

from landscope.core.errors import SpecError

__all__ = ["get", "with_value"]


def get(written: Mapping[str, object], key: str) -> object:
    """The value at a dotted key, None where there is none.

    >>> get({"optimizer": {"lr": 0.1}}, "optimizer.lr"), get({"optimizer": "sgd"}, "optimizer.lr")
    (0.1, None)
    """
    found: object = written
    for part in key.split("."):
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def with_value(written: Mapping[str, object], key: str, value: object) -> dict[str, object]:
    """A copy with another value at a dotted key; a name in short (`optimizer: sgd`) is written out for it.

    >>> with_value({"optimizer": "sgd", "epochs": 3}, "optimizer.lr", 0.1)
    {'optimizer': {'name': 'sgd', 'lr': 0.1}, 'epochs': 3}
    >>> with_value({"epochs": 3}, "epochs.most", 5)
    Traceback (most recent call last):
    landscope.core.errors.SpecError: epochs.most: epochs is 3, which has no keys
    """
    first, _, rest = key.partition(".")
    if not rest:
        return {**written, first: value}
    below = written.get(first)
    inside: object = {} if below is None else {"name": below} if isinstance(below, str) else below
    if not isinstance(inside, Mapping):
        raise SpecError(f"{key}: {first} is {below!r}, which has no keys")
    try:
        return {**written, first: with_value(inside, rest, value)}
    except SpecError as error:
        raise SpecError(f"{first}.{error}") from None
