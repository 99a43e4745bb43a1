"""Numbers of things in sentences."""

from __future__ import annotations

__all__ = ["counted"]


def counted(count: int, thing: str) -> str:
    """So many of a thing whose plural ends in s.

    >>> counted(1, "model"), counted(0, "model"), counted(1200, "run")
    ('1 model', '0 models', '1,200 runs')
    """
    return f"{count:,} {thing}{'' if count == 1 else 's'}"
