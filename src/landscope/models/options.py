"""Options of a network: read from the signature of its factory, checked before anything is built.

A factory takes keyword arguments only, each with a type and a default. The types say what is allowed:

    int, float, bool, str, None         a plain value (an integer is a float; a bool is not an integer)
    Annotated[int, Range(1)]            bounds, both inclusive
    Literal["relu", "tanh"]             one of a few values
    tuple[int, ...]                     a tuple, or a list as it comes from a YAML file
    int | None                          either
"""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, TypeAlias, Union, get_args, get_origin, get_type_hints

from torch import nn

from landscope.core.errors import LandscopeError, UnknownNameError

__all__ = ["Natural", "Option", "OptionError", "OptionValue", "Probability", "Range", "check", "options_of"]

OptionValue: TypeAlias = bool | int | float | str | Sequence[int] | None


class OptionError(LandscopeError, ValueError):
    """An option of the wrong type, outside its range, or at odds with another option."""


@dataclass(frozen=True)
class Range:
    """Inclusive bounds of a number."""

    low: float
    high: float = math.inf

    def __str__(self) -> str:
        return f"≥ {self.low:g}" if self.high == math.inf else f"from {self.low:g} to {self.high:g}"


Natural: TypeAlias = Annotated[int, Range(1)]
Probability: TypeAlias = Annotated[float, Range(0, 1)]


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option: what it accepts and what it is when left out."""

    name: str
    hint: object
    default: OptionValue

    @property
    def accepts(self) -> str:
        """In words, what the option accepts."""
        return _describe(self.hint)


def options_of(factory: Callable[..., nn.Module], *, without: Sequence[str] = ()) -> dict[str, Option]:
    """Read the options of `factory`, in the order of its signature, less those named in `without`.

    >>> def net(*, classes: Natural = 10) -> nn.Module: ...
    >>> option = options_of(net)["classes"]
    >>> option.accepts, option.default
    ('an integer ≥ 1', 10)
    """
    hints = get_type_hints(factory.__init__ if inspect.isclass(factory) else factory, include_extras=True)
    parameters = inspect.signature(factory).parameters.values()
    return {
        p.name: Option(name=p.name, hint=hints[p.name], default=p.default) for p in parameters if p.name not in without
    }


def check(model: str, options: Mapping[str, Option], given: Mapping[str, OptionValue]) -> dict[str, OptionValue]:
    """Bring the given values to their types; raise for an unknown option or a value that does not fit.

    >>> def net(*, classes: Natural = 10) -> nn.Module: ...
    >>> check("net", options_of(net), {"classes": 0})
    Traceback (most recent call last):
    landscope.models.options.OptionError: option 'classes' of net must be an integer ≥ 1, but is 0
    """
    checked = {}
    for name, value in given.items():
        if name not in options:
            raise UnknownNameError.among(f"option of {model}", name, options)
        try:
            checked[name] = _conform(value, options[name].hint)
        except _MismatchError:
            expected = options[name].accepts
            raise OptionError(f"option {name!r} of {model} must be {expected}, but is {value!r}") from None
    return checked


class _MismatchError(Exception):
    """A value that does not conform to a hint."""


def _conform(value: OptionValue, hint: object) -> OptionValue:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        number = _number(_conform(value, args[0]))
        return _accept(number, when=all(bounds.low <= number <= bounds.high for bounds in args[1:]))
    if origin is Literal:
        return _accept(value, when=any(type(value) is type(choice) and value == choice for choice in args))
    if origin in (Union, types.UnionType):
        for choice in args:
            try:
                return _conform(value, choice)
            except _MismatchError:
                continue
        raise _MismatchError
    if origin is tuple:
        if not isinstance(value, list | tuple):
            raise _MismatchError
        return tuple(int(_number(_conform(item, args[0]))) for item in value)
    if hint is float:
        return float(_number(value))
    return _accept(value, when=type(value) is hint)


def _accept(value: OptionValue, *, when: bool) -> OptionValue:
    if not when:
        raise _MismatchError
    return value


def _number(value: OptionValue) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _MismatchError
    return value


def _describe(hint: object) -> str:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return " ".join([_describe(args[0]), *(str(bound) for bound in args[1:])])
    if origin is Literal:
        return "one of " + ", ".join(repr(choice) for choice in args)
    if origin in (Union, types.UnionType):
        return " or ".join(_describe(choice) for choice in args)
    if origin is tuple:
        return f"a list, each entry {_describe(args[0])}"
    words = {int: "an integer", float: "a number", bool: "true or false", str: "a text", types.NoneType: "nothing"}
    return words[hint] if isinstance(hint, type) else str(hint)
