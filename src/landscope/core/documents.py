"""Spec files: YAML, TOML or JSON, read with the line of every key, so that an error can point at it."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import TypeVar

import yaml

from landscope.core.errors import MissingExtraError, SpecError
from landscope.core.schema import Path, build

__all__ = ["Document", "read_document", "read_spec"]

T = TypeVar("T")


@dataclass(frozen=True)
class Document:
    """What a file holds, and where each key stands ("study.yaml:12")."""

    content: object
    place: Mapping[Path, str] = field(default_factory=dict)


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML as people write it: 1e-3 is a number although YAML 1.1 asks for 1.0e-3, and on/off/yes/no are words."""


_Loader.yaml_implicit_resolvers = {
    first: [
        (tag, pattern) for tag, pattern in resolvers if tag not in ("tag:yaml.org,2002:float", "tag:yaml.org,2002:bool")
    ]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(
        r"^[-+]?(?:\d[\d_]*\.[\d_]*(?:[eE][-+]?\d+)?|\d[\d_]*[eE][-+]?\d+|\.\d+(?:[eE][-+]?\d+)?|\.(?:inf|nan))$"
    ),
    list("-+0123456789."),
)
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:bool", re.compile(r"^(?:true|True|TRUE|false|False|FALSE)$"), list("tTfF")
)


def read_document(path: str | os.PathLike[str]) -> Document:
    """Read a `.yaml`, `.yml`, `.json` or `.toml` file."""
    file = FilePath(path)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(f"{file}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{file}: is no text in UTF-8") from error
    if file.suffix == ".toml":
        return _toml(file, text)
    if file.suffix not in (".yaml", ".yml", ".json"):
        raise SpecError(f"{file}: a spec is written in YAML, TOML or JSON (.yaml, .yml, .toml, .json)")
    return _yaml(file, text)


def read_spec(cls: type[T], path: str | os.PathLike[str]) -> T:
    """The dataclass `cls` from a file; an error names file, line and key of every mistake."""
    document = read_document(path)
    return build(cls, document.content, document.place)


def _yaml(file: FilePath, text: str) -> Document:
    place: dict[Path, str] = {(): str(file)}

    def walk(node: yaml.Node | None, path: Path) -> None:
        if isinstance(node, yaml.MappingNode):
            seen = set()
            for key, value in node.value:
                name = str(key.value)
                line = f"{file}:{key.start_mark.line + 1}"
                if name in seen:
                    raise SpecError(f"{line}: the key {name!r} stands here twice")
                seen.add(name)
                place[(*path, name)] = line
                walk(value, (*path, name))
        elif isinstance(node, yaml.SequenceNode):
            for at, value in enumerate(node.value):
                place[(*path, at)] = f"{file}:{value.start_mark.line + 1}"
                walk(value, (*path, at))

    try:
        walk(yaml.compose(text, Loader=_Loader), ())
        return Document(yaml.load(text, Loader=_Loader), place)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{file}:{mark.line + 1}" if mark else str(file)
        raise SpecError(f"{where}: is no YAML: {getattr(error, 'problem', None) or error}") from error


def _toml(file: FilePath, text: str) -> Document:
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib
        except ImportError as error:
            raise MissingExtraError(
                "TOML files need Python 3.11, or the package tomli: pip install tomli. YAML works everywhere"
            ) from error
    try:
        content = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{file}: is no TOML: {error}") from error
    return Document(content, {(): str(file), **_toml_lines(file, text)})


def _toml_lines(file: FilePath, text: str) -> dict[Path, str]:
    """Where plain `[table]` headings and `key =` lines stand; other notations fall back to their table's line."""
    place: dict[Path, str] = {}
    table: Path = ()
    for number, line in enumerate(text.splitlines(), 1):
        if heading := re.match(r"\s*\[+\s*([\w.\- \"]+?)\s*\]+\s*(#.*)?$", line):
            table = tuple(part.strip(' "') for part in heading[1].split("."))
            for end in range(1, len(table) + 1):
                place.setdefault(table[:end], f"{file}:{number}")
        elif key := re.match(r"\s*([\w.\-]+)\s*=", line):
            place[(*table, *key[1].split("."))] = f"{file}:{number}"
    return place
