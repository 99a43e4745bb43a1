"""Process-wide state that several threads want changed at once: the first one in saves it, the last one out puts it back.

If each thread restored what it found, one would restore what another had set, and the final state would depend on who was last.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any


@dataclass
class _Holding:
    """What was found, and how many scopes of each thread hold it changed."""

    found: Any
    scopes: dict[int, int] = field(default_factory=dict)


_lock = threading.RLock()
_holdings: dict[Hashable, _Holding] = {}
_entered: dict[Hashable, tuple[int, AbstractContextManager[object]]] = {}


@contextmanager
def entered(key: Hashable, make: Callable[[], AbstractContextManager[object]]) -> Iterator[None]:
    """A context that is entered once, however many scopes of whichever threads are in it.

    >>> @contextmanager
    ... def noted():
    ...     print("in")
    ...     yield
    ...     print("out")
    >>> with entered("noted", noted), entered("noted", noted):
    ...     print("work")
    in
    work
    out
    """
    with _lock:
        count, context = _entered.get(key) or (0, make())
        if not count:
            context.__enter__()
        _entered[key] = count + 1, context
    try:
        yield
    finally:
        with _lock:
            count, context = _entered[key]
            if count > 1:
                _entered[key] = count - 1, context
            else:
                del _entered[key]
                context.__exit__(None, None, None)


@contextmanager
def held(
    key: Hashable, read: Callable[[], Any], write: Callable[[Any], object], change: Callable[[], None] | None = None
) -> Iterator[None]:
    """Within it, what `read` finds may be changed, by `change` to begin with; in the end `write` puts it back.

    A scope within another one of the same thread puts back what the outer one had set.

    >>> state = [1]
    >>> with held("state", lambda: state[0], lambda found: state.__setitem__(0, found), lambda: state.__setitem__(0, 2)):
    ...     state
    [2]
    >>> state
    [1]
    """
    me = threading.get_ident()
    with _lock:
        before = read()
        holding = _holdings.setdefault(key, _Holding(before))
        holding.scopes[me] = holding.scopes.get(me, 0) + 1
        if change is not None:
            change()
    try:
        yield
    finally:
        with _lock:
            holding.scopes[me] -= 1
            if holding.scopes[me]:
                write(before)
            else:
                del holding.scopes[me]
                if not holding.scopes:
                    del _holdings[key]
                    write(holding.found)
