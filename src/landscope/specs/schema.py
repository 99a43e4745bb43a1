"""Plain values checked against types: what a spec file, a command line or a keyword may hold.

The types of a dataclass's fields or of a function's arguments say what is allowed:

    int, float, bool, str, None         a plain value (an integer is a float; a bool is not an integer)
    Annotated[int, Range(1)]            bounds, both inclusive
    Literal["relu", "tanh"]             one of a few values
    tuple[int, ...]                     a tuple, or a list as it comes from a YAML file
    dict[str, float]                    a mapping
    int | None                          either
    another dataclass                   a mapping of its fields

A dataclass may name one field as its `SHORTHAND` (a bare value stands for it) and one mapping as its `REST` (keys that are
not fields go there). `GONE` holds former fields with their defaults, so that what was stored with them can be read. What does not
fit is collected with its place, so that one reading reports every mistake.
"""

from __future__ import annotations

import dataclasses
import math
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Literal, TypeAlias, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from landscope.core.errors import LandscopeError, SpecError, UnknownNameError
from landscope.core.json import Plain
from landscope.specs.limits import excess

T = TypeVar("T")
Path: TypeAlias = tuple[str | int, ...]


@dataclass(frozen=True)
class Range:
    """Inclusive bounds of a number, or with `above` a bound that it must exceed."""

    low: float = -math.inf
    high: float = math.inf
    above: float | None = None

    def holds(self, number: float) -> bool:
        return self.low <= number <= self.high and (self.above is None or number > self.above)

    def __str__(self) -> str:
        if self.above is not None:
            return f"> {self.above:g}" + ("" if self.high == math.inf else f", ≤ {self.high:g}")
        return f"≥ {self.low:g}" if self.high == math.inf else f"from {self.low:g} to {self.high:g}"


Natural: TypeAlias = Annotated[int, Range(1)]
NotNegative: TypeAlias = Annotated[float, Range(0)]
Positive: TypeAlias = Annotated[float, Range(above=0)]
Probability: TypeAlias = Annotated[float, Range(0, 1)]
Fraction: TypeAlias = Annotated[float, Range(above=0, high=1)]


class MismatchError(Exception):
    """Values that do not fit, each with its place and what was expected there."""

    def __init__(self, *problems: tuple[Path, str]) -> None:
        super().__init__("; ".join(text for _, text in problems))
        self.problems = problems


def check_value(value: object, hint: object, path: Path = ()) -> object:
    """The value brought to the type; raise `MismatchError` with every place that does not fit.

    >>> check_value([1, 2], tuple[float, ...]), check_value(3, Annotated[int, Range(1)] | None)
    ((1.0, 2.0), 3)
    >>> check_value("three", int)
    Traceback (most recent call last):
    landscope.specs.schema.MismatchError: must be an integer, but is 'three'
    """
    origin, args = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _instance(value, hint, path)
    if origin is Annotated:
        inner = check_value(value, args[0], path)
        if all(bounds.holds(cast(float, inner)) for bounds in args[1:]):
            return inner
    elif origin is Literal:
        return _literal(value, args, hint, path)
    elif origin in (Union, types.UnionType):
        return _either(value, args, hint, path)
    elif origin is tuple:
        if isinstance(value, list | tuple):
            return tuple(_each(value, args[0], path) if args[-1] is ... else _fixed(value, args, hint, path))
    elif origin in (dict, Mapping):
        if isinstance(value, Mapping):
            keys = list(map(str, value))
            return dict(zip(keys, _each(list(value.values()), args[1], path, keys), strict=True))
    elif hint is object:
        return _free(value, path)
    elif hint is float:
        if _is_number(value):
            return float(cast(float, value))
    elif isinstance(hint, type) and type(value) is hint:
        return value
    raise MismatchError((path, f"must be {describe(hint)}, but is {value!r}"))


def _free(value: object, path: Path) -> object:
    """A value of any kind, as options of a data set are, that a record can hold."""
    inner = value.items() if isinstance(value, Mapping) else enumerate(value) if isinstance(value, list | tuple) else ()
    for key, each in inner:
        _free(each, (*path, key))
    if isinstance(value, float) and not math.isfinite(value):
        raise MismatchError((path, f"is {value}, which no record can hold; write null or leave it out"))
    return value


def _literal(value: object, choices: tuple[object, ...], hint: object, path: Path) -> object:
    if any(type(value) is type(choice) and value == choice for choice in choices):
        return value
    words = [choice for choice in choices if isinstance(choice, str)]
    if isinstance(value, str) and len(words) == len(choices):
        raise MismatchError((path, str(UnknownNameError.among("value", value, words))))
    raise MismatchError((path, f"must be {describe(hint)}, but is {value!r}"))


def _is_number(value: object) -> bool:
    try:
        return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:  # an integer beyond all floats
        return False


def _either(value: object, choices: tuple[object, ...], hint: object, path: Path) -> object:
    nested: MismatchError | None = None
    for choice in choices:
        try:
            return check_value(value, choice, path)
        except MismatchError as error:
            if isinstance(value, Mapping) and (
                dataclasses.is_dataclass(choice) or get_origin(choice) in (dict, Mapping)
            ):
                nested = error
    raise nested or MismatchError((path, f"must be {describe(hint)}, but is {value!r}"))


def _each(
    values: list[object] | tuple[object, ...], hint: object, path: Path, keys: list[str] | None = None
) -> list[object]:
    """Every value brought to one type; all misfits are reported together."""
    found: list[object] = []
    problems: list[tuple[Path, str]] = []
    for at, value in enumerate(values):
        try:
            found.append(check_value(value, hint, (*path, keys[at] if keys else at)))
        except MismatchError as error:
            problems += error.problems
    if problems:
        raise MismatchError(*problems)
    return found


def _fixed(
    value: list[object] | tuple[object, ...], hints: tuple[object, ...], hint: object, path: Path
) -> list[object]:
    if len(value) != len(hints):
        raise MismatchError((path, f"must be {describe(hint)}, but is {value!r}"))
    return [check_value(item, each, (*path, at)) for at, (item, each) in enumerate(zip(value, hints, strict=True))]


@cache
def _hints(cls: type) -> dict[str, object]:
    """The types of a dataclass's fields by name. Python evaluates them again each time it is asked, which is most of a check."""
    hints = get_type_hints(cls, include_extras=True)
    return {field.name: hints[field.name] for field in dataclasses.fields(cls) if field.init}


@cache
def _required(cls: type) -> tuple[str, ...]:
    """Names of the fields without a default."""
    return tuple(
        field.name
        for field in dataclasses.fields(cls)
        if field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    )


def _instance(value: object, cls: type, path: Path) -> object:
    if isinstance(value, cls):
        return value
    shorthand, rest = getattr(cls, "SHORTHAND", None), getattr(cls, "REST", None)
    if shorthand is not None and value is not None and not isinstance(value, Mapping):
        value = {shorthand: value}
    if not isinstance(value, Mapping):
        found = "is empty" if value is None and not path else f"is {value!r}"
        raise MismatchError((path, f"must be {describe(cls)}, but {found}"))
    known, gone = _hints(cls), former_fields(cls)
    problems: list[tuple[Path, str]] = [(path, f"{name!r} is missing") for name in _required(cls) if name not in value]
    given: dict[str, object] = {}
    others: dict[str, object] = {}
    for key, item in value.items():
        key = str(key)
        if key in known:
            try:
                given[key] = check_value(item, known[key], (*path, key))
            except MismatchError as error:
                problems += error.problems
        elif key in gone and item == gone[key]:
            pass
        elif rest is not None:
            others[key] = item
        else:
            problems.append(((*path, key), str(UnknownNameError.among("key", key, known))))
    if problems:
        raise MismatchError(*problems)
    if others:
        given[cast(str, rest)] = {**cast(dict[str, object], given.get(cast(str, rest), {})), **others}
    try:
        return cls(**given)
    except (LandscopeError, ValueError) as error:  # what its fields say together, or what they name
        raise MismatchError((path, str(error))) from error


def describe(hint: object) -> str:
    """In words, what a type accepts.

    >>> describe(Natural), describe(Literal["relu", "tanh"]), describe(tuple[int, ...] | None)
    ('an integer ≥ 1', "one of 'relu', 'tanh'", 'a list, each entry an integer or nothing')
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return " ".join([describe(args[0]), *(str(bound) for bound in args[1:])])
    if origin is Literal:
        return "one of " + ", ".join(repr(choice) for choice in args)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(choice) for choice in args)
    if origin is tuple:
        return f"a list, each entry {describe(args[0])}" if args[-1] is ... else f"a list of {len(args)}"
    if origin in (dict, Mapping):
        return f"a mapping from names to {describe(args[1])}"
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        fields, short = _hints(hint), getattr(hint, "SHORTHAND", None)
        alone = f"{describe(fields[short])} ({short}), or " if short else ""
        return f"{alone}a mapping with the keys {', '.join(fields)}"
    words = {
        int: "an integer",
        float: "a number",
        bool: "true or false",
        str: "a text",
        types.NoneType: "nothing",
        object: "any value",
    }
    return words.get(hint, hint.__name__) if isinstance(hint, type) else str(hint)


def parse(cls: type[T], value: object, place: Mapping[Path, str] | None = None) -> T:
    """An instance of the dataclass `cls` from plain values; one error names every mistake and, where known, its place.

    >>> @dataclass
    ... class Net:
    ...     width: Natural
    ...     depth: Natural = 2
    >>> parse(Net, {"width": 8})
    Net(width=8, depth=2)
    >>> parse(Net, {"widht": 8, "depth": 0})
    Traceback (most recent call last):
    landscope.core.errors.SpecError: 'width' is missing
    widht: unknown key 'widht'; did you mean 'width'? Choices: depth, width
    depth: must be an integer ≥ 1, but is 0
    """
    if (found := excess(value)) is not None:
        raise SpecError(with_location(*found, place))
    try:
        return cast(T, check_value(value, cls))
    except MismatchError as error:
        raise SpecError("\n".join(with_location(path, text, place) for path, text in error.problems)) from None


def with_location(path: Path, text: str, place: Mapping[Path, str] | None = None) -> str:
    """A problem with the place it was found at: the nearest known place in a file, and the path of keys."""
    known = place or {}
    nearest = next((known[path[:end]] for end in range(len(path), -1, -1) if path[:end] in known), "")
    keys = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).lstrip(".")
    return ": ".join(part for part in (nearest, keys, text) if part)


def to_plain(value: object) -> Plain:
    """Plain values only, every field written out: what `parse` reads back, and what is stored.

    >>> @dataclass
    ... class Net:
    ...     widths: tuple[int, ...] = (2, 3)
    ...     bias: bool = True
    >>> to_plain(Net(bias=False))
    {'widths': [2, 3], 'bias': False}
    """
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, (list, tuple)):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):  # by far the most mappings, recognised in a tenth of the time
        return {str(key): to_plain(item) for key, item in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {name: to_plain(getattr(value, name)) for name in _hints(type(value))}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    raise SpecError(f"a spec holds plain values only (numbers, texts, lists, mappings), not {value!r}")


def without_defaults(plain: Plain, hint: object) -> Plain:
    """What `to_plain` made of a value of a type, without the fields that have their defaults; nothing is checked.

    So a field added to a dataclass later changes nothing. Free mappings stay as they were written.

    >>> @dataclass
    ... class Net:
    ...     widths: tuple[int, ...] = (2, 3)
    ...     bias: bool = True
    >>> without_defaults([to_plain(Net(bias=False)), {"widths": [2, 3]}], tuple[Net, ...])
    [{'bias': False}, {}]
    """
    return map_instances(plain, hint, _without_defaults)


def former_fields(cls: type) -> Mapping[str, Plain]:
    """The fields that a dataclass once had, with the defaults that they had, in plain values."""
    return cast(Mapping[str, Plain], getattr(cls, "GONE", {}))


def _without_defaults(cls: type, values: dict[str, Plain]) -> dict[str, Plain]:
    usual = {**_defaults(cls), **former_fields(cls)}
    return {name: value for name, value in values.items() if name not in usual or not _equal(value, usual[name])}


@cache
def _defaults(cls: type) -> dict[str, Plain]:
    """The defaults of a dataclass's fields, in plain values without defaults of their own."""
    found: dict[str, Plain] = {}
    for field in dataclasses.fields(cls):
        if field.init and field.name not in _required(cls):
            default = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
            found[field.name] = without_defaults(to_plain(default), _hints(cls)[field.name])
    return found


def _equal(one: Plain, other: Plain) -> bool:
    """Whether two values are written alike: 1, 1.0 and true are three, 0.0 and -0.0 two."""
    if type(one) is not type(other):
        return False
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(value, other[name]) for name, value in one.items())
    return one == other and (not isinstance(one, float) or repr(one) == repr(other))


def map_instances(plain: Plain, hint: object, change: Callable[[type, dict[str, Plain]], dict[str, Plain]]) -> Plain:
    """Plain values of a type, with every mapping in them that stands for a dataclass changed, from the inside out."""
    origin, args = get_origin(hint), get_args(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(plain, dict):
            return plain
        hints = _structured(hint)
        return change(
            hint,
            {n: map_instances(value, hints[n], change) if n in hints else value for n, value in plain.items()},
        )
    if origin is Annotated:
        return map_instances(plain, args[0], change)
    if origin in (Union, types.UnionType):
        inner = [choice for choice in args if _has_instances(choice)]
        return map_instances(plain, inner[0], change) if len(inner) == 1 else plain
    if origin is tuple and isinstance(plain, list):
        return [map_instances(item, args[0], change) for item in plain] if args[-1] is ... else plain
    if origin in (dict, Mapping) and isinstance(plain, dict):
        return {name: map_instances(value, args[1], change) for name, value in plain.items()}
    return plain


@cache
def _structured(cls: type) -> dict[str, object]:
    """The types of those fields of a dataclass that hold dataclasses."""
    return {name: hint for name, hint in _hints(cls).items() if _has_instances(hint)}


def _has_instances(hint: object) -> bool:
    """Whether values of a type are, or hold, instances of a dataclass."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return True
    return get_origin(hint) is not Literal and any(map(_has_instances, get_args(hint)))
