"""Names that mean exactly one thing.

A registry maps exact keys to objects. Nothing is guessed from fragments of a string; an unknown key is answered with
the choices and the nearest of them. A name GROUP/NAME belongs to a group whose module registers it: that module is imported
when the name is asked for, and what it registers is never listed among the rest.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from landscope.core.errors import UnknownNameError

T = TypeVar("T")


class Registry(Generic[T]):
    """An exact-key registry of one kind of thing.

    >>> shapes = Registry[type]("shape")
    >>> @shapes.register("square")
    ... class Square: ...
    >>> shapes["square"].__name__, list(shapes)
    ('Square', ['square'])
    >>> shapes["sqare"]
    Traceback (most recent call last):
    landscope.core.errors.UnknownNameError: unknown shape 'sqare'; did you mean 'square'? Choices: square
    """

    def __init__(self, kind: str, groups: str = "") -> None:
        """`groups` says which module registers the names of a group: "package.{}.module", its dashes as underscores."""
        self.kind, self._groups = kind, groups
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that registers its argument under `name`; raises `ValueError` where the name is taken."""

        def file(entry: T) -> T:
            if name in self._entries:
                raise ValueError(f"the {self.kind} {name!r} is registered already")
            self._entries[name] = entry
            return entry

        return file

    def __getitem__(self, name: str) -> T:
        if name in self:
            return self._entries[name]
        group, slash, _ = name.partition("/")
        same = [entry for entry in self._entries if entry.startswith(group + slash)] if slash else []
        raise UnknownNameError.among(self.kind, name, same or self)

    def __contains__(self, name: object) -> bool:
        if name not in self._entries and isinstance(name, str) and "/" in name and self._groups:
            group = name.partition("/")[0].replace("-", "_")
            module = self._groups.format(group)
            try:
                if group.isidentifier():
                    importlib.import_module(module)
            except ModuleNotFoundError as error:
                if not module.startswith(str(error.name)):
                    raise
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(name for name in self._entries if "/" not in name))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"Registry({self.kind!r}: {', '.join(self) or 'empty'})"
