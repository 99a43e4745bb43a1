"""Options of a network: read from the signature of its factory, checked before anything is built.

A factory takes keyword arguments only, each with a type and a default. The types say what is allowed, as in
`landscope.core.schema`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast, get_type_hints

from torch import nn

from landscope.core.errors import SpecError, UnknownNameError
from landscope.core.schema import MismatchError, Natural, Probability, Range, conform, describe

__all__ = ["Natural", "Option", "OptionError", "OptionValue", "Probability", "Range", "check", "options_of"]

OptionValue: TypeAlias = bool | int | float | str | Sequence[int] | None


class OptionError(SpecError):
    """An option of the wrong type, outside its range, or at odds with another option."""


@dataclass(frozen=True, kw_only=True)
class Option:
    """One option: what it accepts and what it is when left out."""

    name: str
    hint: object
    default: OptionValue

    @property
    def accepts(self) -> str:
        """In words, what the option accepts."""
        return describe(self.hint)


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
            checked[name] = cast(OptionValue, conform(value, options[name].hint))
        except MismatchError:
            expected = options[name].accepts
            raise OptionError(f"option {name!r} of {model} must be {expected}, but is {value!r}") from None
    return checked
