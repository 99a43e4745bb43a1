"""What a user can name: public names, options of commands, registered names, keys of specs, settings of measures."""

from __future__ import annotations

import importlib
import pkgutil
import types
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields, is_dataclass
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import typer

from golden import where
from golden.stored import Values

__all__ = ["command_options", "public_names", "registered_names", "spec_keys"]


def public_names() -> Values:
    """Package → the names it exports; nothing where a package has no `__all__`."""
    package = where.landscope
    found = [module.name for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}.") if module.ispkg]
    modules = [importlib.import_module(name) for name in (package.__name__, *found)]
    return {module.__name__: sorted(getattr(module, "__all__", ())) for module in modules}


def command_options() -> Values:
    """Command and option → how it is written, what it takes, and its default; help texts are left out."""
    return dict(_options(typer.main.get_command(where.app), ()))


def _options(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, object]]:
    place = " ".join(path) or "(top)"
    inner = getattr(command, "commands", {})
    yield place, sorted(inner)
    for option in command.params:
        words = _words(option)
        yield (
            f"{place} {option.opts[0]}",
            {
                "written": sorted([*option.opts, *option.secondary_opts]),
                "required": option.required,
                "repeated": option.multiple or option.nargs != 1,
                "flag": getattr(option, "is_flag", False),
                "default": _plain(option.default),
                **({"words": words} if words else {}),
            },
        )
    for name in sorted(inner):
        yield from _options(inner[name], (*path, name))


def _words(option: Any) -> list[str]:
    """What an option chooses among: versions of typer keep it in different places."""
    if hasattr(option, "type_descriptor"):
        return _inside(option.type_descriptor.annotation)[1]
    return [str(word) for word in getattr(option.type, "choices", ())]


def registered_names() -> Values:
    """Kind → names; for a measure also its settings with their defaults, and what leaves it unchanged."""
    found: Values = {kind: sorted(registry) for kind, registry in where.REGISTRIES.items()}
    for name in where.MEASURES:
        kind = where.MEASURES[name]
        found[f"measure {name}"] = {"settings": kind().settings, "invariant to": sorted(kind.invariant_to)}
    for name in where.EXECUTORS:
        found[f"executor {name}"] = {field.name: _default(field) for field in fields(where.EXECUTORS[name])}
    return found


def spec_keys() -> Values:
    """Every key of a training and of a study → its default and, where it is one of some words, those; and the schema's number."""
    keys = {**dict(_keys(where.TrainingSpec, "training")), **dict(_keys(where.StudySpec, "study"))}
    return {"schema": where.SCHEMA, **keys}


def _keys(spec: type, path: str) -> Iterator[tuple[str, object]]:
    hints = get_type_hints(spec, include_extras=True)
    for field in fields(spec):
        if not field.init:
            continue
        inner, words = _inside(hints[field.name])
        yield f"{path}.{field.name}", {"default": _default(field), **({"words": words} if words else {})}
        for kind in inner:
            yield from _keys(kind, f"{path}.{field.name}")


def _inside(hint: object) -> tuple[list[type], list[str]]:
    """The dataclasses and the words in a type."""
    if get_origin(hint) is Literal:
        return [], [str(word) for word in get_args(hint)]
    if is_dataclass(hint) and isinstance(hint, type):
        return [hint], []
    parts = get_args(hint)[:1] if get_origin(hint) is Annotated else get_args(hint)
    found = [_inside(part) for part in parts if not isinstance(part, types.EllipsisType)]
    return [kind for kinds, _ in found for kind in kinds], [word for _, words in found for word in words]


def _default(field: Field[Any]) -> object:
    if field.default_factory is not MISSING:
        return _plain(field.default_factory())
    return "required" if field.default is MISSING else _plain(field.default)


def _plain(value: object) -> object:
    """Plain values; what is none of them (a flag that was not given, a function) by its kind."""
    try:
        return where.to_plain(value)
    except Exception:
        return type(value).__name__
