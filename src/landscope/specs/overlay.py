"""Dotted keys of a spec as it is written: `optimizer.lr` is the key `lr` inside `optimizer`.

Axes of a study, `--set` on the command line, the members of a pool and the sizes of a paper all change a spec by such keys
before it is checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from landscope.core.errors import SpecError
from landscope.core.json import Plain


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
    """A copy with another value at a dotted key; a shorthand (`optimizer: sgd`) is written out first.

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


def differing(one: Plain, other: Plain, key: str = "") -> Iterator[tuple[str, Plain, Plain]]:
    """Where two specs differ: the dotted key, and the value in each.

    >>> list(differing({"a": {"b": 1}, "c": 2}, {"a": {"b": 3}, "c": 2}))
    [('a.b', 1, 3)]
    """
    if isinstance(one, dict) and isinstance(other, dict):
        for name in dict.fromkeys([*one, *other]):
            yield from differing(one.get(name), other.get(name), f"{key}.{name}" if key else name)
    elif one != other:
        yield key, one, other


def without(written: Mapping[str, object], key: str) -> dict[str, object]:
    """A copy without a dotted key, if it has it.

    >>> without({"optimizer": {"name": "sgd", "lr": 0.1}}, "optimizer.lr"), without({"epochs": 3}, "optimizer.lr")
    ({'optimizer': {'name': 'sgd'}}, {'epochs': 3})
    """
    first, _, rest = key.partition(".")
    below = written.get(first)
    if not rest:
        return {name: value for name, value in written.items() if name != first}
    return {**written, first: without(below, rest)} if isinstance(below, Mapping) else dict(written)
