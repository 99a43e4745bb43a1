"""Names that mean exactly one thing.

A registry maps exact keys to objects. Nothing is guessed from fragments of a string; an unknown key is answered with
the choices and the nearest of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from landscope.core.errors import UnknownNameError

__all__ = ["Registry"]

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

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._entries: dict[str, T] = {}

    def register(self, name: str) -> Callable[[T], T]:
        """Decorator that files its argument under `name`, once."""

        def file(entry: T) -> T:
            if name in self._entries:
                raise ValueError(f"the {self.kind} {name!r} is registered already")
            self._entries[name] = entry
            return entry

        return file

    def __getitem__(self, name: str) -> T:
        try:
            return self._entries[name]
        except KeyError:
            raise UnknownNameError.among(self.kind, name, self._entries) from None

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._entries))

    def __len__(self) -> int:
        return len(self._entries)

    def __repr__(self) -> str:
        return f"Registry({self.kind!r}: {', '.join(self) or 'empty'})"
