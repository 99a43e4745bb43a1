"""Spec files: YAML, TOML or JSON, read with the line of every key, so that an error can point at it."""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import TypeVar

import yaml

from landscope.core.errors import SpecError
from landscope.core.files import nearest_name
from landscope.core.text import counted
from landscope.specs.limits import DEEPEST, LARGEST_FILE, MOST_VALUES, toml_excess, too_deep, too_many, whole_characters
from landscope.specs.schema import Path, parse

T = TypeVar("T")


@dataclass(frozen=True)
class Document:
    """What a file holds, and where each key stands ("study.yaml:12")."""

    content: object
    place: Mapping[Path, str] = field(default_factory=dict)


class _RefusedYAMLError(yaml.MarkedYAMLError):  # type: ignore[misc]
    """Well-formed YAML that a spec may not contain."""


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """YAML as people write it: 1e-3 is a number although YAML 1.1 asks for 1.0e-3; on/off/yes/no, 1:30 and 010 are words.

    What anchors stand for is counted while the text is read, and refused before it is expanded.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._open = [[0, 0]]
        """For each node that is being read: the values in it so far, and the levels below it."""
        self._sizes: dict[yaml.Node, list[int]] = {}

    def compose_node(self, parent: yaml.Node | None, index: object) -> yaml.Node | None:
        """The next node, or the one that an alias stands for."""
        start = self.peek_event()
        if len(self._open) > DEEPEST + 1:
            raise _RefusedYAMLError(problem=too_deep, problem_mark=start.start_mark)
        self._open.append([1, 0])
        node = super().compose_node(parent, index)
        size = self._open.pop()
        if isinstance(start, yaml.AliasEvent):
            if node not in self._sizes:
                raise _RefusedYAMLError(
                    problem=f"*{start.anchor} refers to a value that contains it", problem_mark=start.start_mark
                )
            size = self._sizes[node]
        self._sizes[node] = size
        outer = self._open[-1]
        outer[0], outer[1] = outer[0] + size[0], max(outer[1], size[1] + 1)
        if len(self._open) + size[1] > DEEPEST + 1:
            raise _RefusedYAMLError(problem=too_deep, problem_mark=start.start_mark)
        if outer[0] > MOST_VALUES:
            raise _RefusedYAMLError(problem=too_many, problem_mark=start.start_mark)
        return node

    def compose_scalar_node(self, anchor: str | None) -> yaml.ScalarNode:
        """A text with whole characters."""
        node = super().compose_scalar_node(anchor)
        try:
            node.value = whole_characters(node.value)
        except ValueError as error:
            raise _RefusedYAMLError(problem=str(error), problem_mark=node.start_mark) from error
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
        """The value of a node; a malformed date or number is reported with its line."""
        try:
            return super().construct_object(node, deep)
        except yaml.YAMLError:
            raise
        except Exception as error:  # PyYAML raises any of these for a tag that does not fit its text
            kind = str(node.tag).rpartition(":")[2]
            plain = isinstance(error, ValueError | ArithmeticError)
            said = str(error) if plain else f"{node.value!r} is not of the type !!{kind}"
            raise _RefusedYAMLError(problem=said, problem_mark=node.start_mark) from error


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag.rpartition(":")[2] not in ("int", "float", "bool")]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:int", re.compile(r"^[-+]?(?:0|[1-9][\d_]*|0x[\da-fA-F_]+)$"), list("-+0123456789")
)
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


def read_document(path: str | os.PathLike[str], *, any_name: bool = False) -> Document:
    """Read a `.yaml`, `.yml`, `.json` or `.toml` file; with `any_name` a file of another name is YAML."""
    file = FilePath(path)
    try:
        with file.open("rb") as stream:
            content = stream.read(LARGEST_FILE + 1)
        if len(content) > LARGEST_FILE:
            line = content.count(b"\n") + 1
            raise SpecError(
                f"{file}:{line}: the file is longer than {LARGEST_FILE / 2**20:g} MiB, the limit for a spec"
            )
        text = content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except OSError as error:
        raise SpecError(f"{file}: {error.strerror}{nearest_name(file)}") from error
    except UnicodeDecodeError as error:
        raise SpecError(f"{file}: is not text in UTF-8") from error
    if file.suffix == ".toml":
        return _toml(file, text)
    if not any_name and file.suffix not in (".yaml", ".yml", ".json"):
        raise SpecError(f"{file}: a spec is written in YAML, TOML or JSON (.yaml, .yml, .toml, .json)")
    return _yaml(file, text)


def read_spec(cls: type[T], path: str | os.PathLike[str]) -> T:
    """The dataclass `cls` from a file; an error names file, line and key of every mistake."""
    document = read_document(path)
    return parse(cls, document.content, document.place)


def _yaml(file: FilePath, text: str) -> Document:
    place: dict[Path, str] = {(): str(file)}

    def walk(node: yaml.Node | None, path: Path) -> None:
        if isinstance(node, yaml.MappingNode):
            seen = set()
            for key, value in node.value:
                name = str(key.value)
                line = f"{file}:{key.start_mark.line + 1}"
                if name in seen:
                    raise SpecError(f"{line}: the key {name!r} is given twice")
                seen.add(name)
                place[(*path, name)] = line
                walk(value, (*path, name))
        elif isinstance(node, yaml.SequenceNode):
            for at, value in enumerate(node.value):
                place[(*path, at)] = f"{file}:{value.start_mark.line + 1}"
                walk(value, (*path, at))

    try:
        loader = _Loader(text)
        node = loader.get_single_node()
        walk(node, ())
        return Document(None if node is None else loader.construct_document(node), place)
    except yaml.YAMLError as error:
        if not isinstance(error, yaml.MarkedYAMLError):
            raise SpecError(f"{file}: is not YAML: {error}") from error
        line, problem = (
            (error.problem_mark.line, error.problem) if isinstance(error, _RefusedYAMLError) else _words(error, text)
        )
        raise SpecError(f"{file}:{line + 1}: {problem}") from error


def _words(error: yaml.MarkedYAMLError, text: str) -> tuple[int, str]:
    """The line that a parser's complaint is about, counted from 0, and what is wrong with it."""
    lines = text.split("\n")
    at, problem = error.problem_mark.line, str(error.problem)
    opened = error.context_mark.line if error.context_mark else at
    own = lines[at] if at < len(lines) else ""
    above = next((number for number in range(at - 1, -1, -1) if _bare(lines[number])), at)
    before, indent = lines[above], _indent(own)
    if "\t" in own[: len(own) - len(own.lstrip())]:
        return at, "is indented with a tab; YAML takes spaces"
    if "found character" in problem:
        return at, f"a value that begins with {problem.split(chr(39))[1]} must be in quotes"
    if problem.startswith("expected ',' or"):
        return opened, f"the bracket that opens here is not closed before line {at + 1}"
    if "end of stream" in problem and "quoted" in str(error.context):
        return opened, "the quotation mark that opens here is not closed"
    if problem == "could not find expected ':'":
        return above, f"expected `key: value`, got {before.strip()!r}; a colon and a space are missing"
    if problem.startswith("expected <block end>"):
        return at, _misfit(lines, at)
    if problem == "mapping values are not allowed here":
        if missing := re.match(r"\s*[\w.\-]+:(?=\S)", before):
            return above, f"a space is missing after {missing[0].strip()!r}"
        if above != at and indent > _indent(before) and not before.rstrip().endswith(":"):
            return at, _misfit(lines, at)
        return at, "there is a second ': ' in this line; write a value that contains one in quotes"
    return at, f"is not YAML: {problem}"


def _misfit(lines: list[str], at: int) -> str:
    """That the keys of one mapping do not begin in one column, and in which ones they could."""
    open_at: list[int] = []
    for line in filter(_bare, lines[:at]):
        indent = _indent(line)
        open_at = [*(other for other in open_at if other < indent), indent]
    columns = " or ".join(str(indent) for indent in reversed(open_at))
    return f"is indented by {counted(_indent(lines[at]), 'space')}, which fits no line above it; expected {columns}"


def _bare(line: str) -> str:
    return line.strip() if not line.lstrip().startswith("#") else ""


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _toml(file: FilePath, text: str) -> Document:
    if (found := toml_excess(text)) is not None:
        line, problem = found
        raise SpecError(f"{file}:{line}: {problem}")
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, or a number of too many digits
        raise SpecError(f"{file}: is not TOML: {error}") from error
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
