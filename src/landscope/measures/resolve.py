"""From what a user asks for to measures with settings: the core set, all, names, a mapping, or measures themselves."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields
from functools import cache
from numbers import Integral, Real
from types import NoneType, UnionType
from typing import Literal, Union, get_args, get_origin, get_type_hints

from landscope.core.errors import LandscopeError, SpecError, UnknownNameError
from landscope.measures.base import MEASURES, Measure
from landscope.specs.names import import_function, is_import
from landscope.specs.schema import describe

Wanted = None | str | Measure | Iterable[str | Measure] | Mapping[str, Mapping[str, object] | Measure | None]
"""The core set (`None` or "core"), "all", names, measures, or names with settings."""

CORE = (
    *("loss", "error", "hessian_top_eigenvalue", "hessian_bottom_eigenvalue", "hessian_trace"),
    *("sam_sharpness", "average_sharpness", "adaptive_sharpness", "fisher_rao", "relative_flatness"),
    *("gradient_norm", "gradient_noise", "l2_norm", "ece", "brier"),
)
"""What is measured where nothing is asked for: two or three of each family, and what the reading of a report needs."""


def resolve_measures(wanted: Wanted, seed: int = 0) -> dict[str, Measure]:
    """Measures by the name under which they are reported; one of the user's own is written `package.module:Class`.

    >>> sorted(resolve_measures({"l2_norm": {"squared": True}, "mine": MEASURES["gradient_norm"]()}))
    ['l2_norm', 'mine']
    >>> resolve_measures(["l2_nrom"])
    Traceback (most recent call last):
    landscope.core.errors.UnknownNameError: unknown measure 'l2_nrom'; did you mean 'l2_norm'? Choices: ...
    """
    if wanted is None or wanted == "core":
        wanted = CORE
    elif wanted == "all":
        wanted = list(MEASURES)
    if isinstance(wanted, (str, Measure)):
        wanted = [wanted]
    if isinstance(wanted, Mapping):
        return {name: _with_settings(name, settings, seed) for name, settings in wanted.items()}
    found: dict[str, Measure] = {}
    for item in wanted:
        one = item if isinstance(item, Measure) else _with_settings(item, None, seed)
        name = one.key or type(one).__name__
        if name in found:
            raise LandscopeError(
                f"{name!r} is asked for twice; give each a name of its own: measures={{'first': …, 'second': …}}"
            )
        found[name] = one
    return found


def _with_settings(name: str, settings: Mapping[str, object] | Measure | None, seed: int) -> Measure:
    if isinstance(settings, Measure):
        return settings
    kind = _imported(name) if is_import(name) else MEASURES[name]
    hints, known = _hints(kind), [f.name for f in fields(kind)]
    for key, value in (settings or {}).items():
        if key not in known:
            raise UnknownNameError.among(f"setting of {name}", key, known)
        if key in hints and not _fits(value, hints[key]):
            raise SpecError(f"{name}: {key} must be {describe(hints[key])}, but is {value!r}")
    try:
        return kind(**{"seed": seed, **(settings or {})})  # type: ignore[arg-type]
    except TypeError as error:
        raise LandscopeError(
            f"{name} cannot be set up with {dict(settings or {})}: {error}. Its settings: {', '.join(known)}"
        ) from error
    except LandscopeError:
        raise
    except (ValueError, ArithmeticError) as error:
        raise SpecError(f"{name}: {error}") from error


@cache
def _hints(kind: type[Measure]) -> dict[str, object]:
    """The types of a measure's settings, as far as they are known."""
    try:
        return get_type_hints(kind)
    except Exception:  # a user's own, with names that are there for a type checker only
        return {}


def _fits(value: object, hint: object) -> bool:
    """Whether a setting is of its type, as plain values go; what is not a plain type is the measure's own to judge.

    >>> _fits(2, int), _fits(2, float), _fits(2.5, int), _fits(True, int), _fits(["fc"], str | tuple[str, ...])
    (True, True, False, False, True)
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, choice) for choice in args)
    if origin is Literal:
        return value in args
    if origin is tuple:
        same = len(args) == 2 and args[1] is ...
        return isinstance(value, list | tuple) and (not same or all(_fits(item, args[0]) for item in value))
    if hint is int or hint is float:
        if isinstance(value, bool) or not isinstance(value, Integral if hint is int else Real):
            return False
        return not math.isnan(float(value))
    if hint is bool or hint is str:
        return isinstance(value, bool if hint is bool else str)
    return value is None if hint is NoneType else True


def _imported(name: str) -> type[Measure]:
    """A measure of the user's own.

    >>> _imported("math:hypot")
    Traceback (most recent call last):
    landscope.core.errors.SpecError: math:hypot is not a measure: a class derived from landscope.Measure
    """
    kind = import_function(name)
    if not (isinstance(kind, type) and issubclass(kind, Measure)):
        raise SpecError(f"{name} is not a measure: a class derived from landscope.Measure")
    return kind
