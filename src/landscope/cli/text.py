"""Texts of the help, and how numbers are written for people."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["duration", "examples", "shape", "size"]


def examples(*lines: str) -> str:
    r"""The examples at the end of a command's help; `\b` keeps the line breaks.

    >>> examples("landscope models")
    '\x08\nExamples:\n  landscope models'
    """
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def size(n_bytes: int) -> str:
    """Bytes, in the unit that suits them.

    >>> size(999), size(184_000_000)
    ('999 B', '184 MB')
    """
    value = float(n_bytes)
    for unit in ("B", "kB", "MB"):
        if value < 999.5:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} GB"


def shape(dimensions: Sequence[int]) -> str:
    """The shape of one sample.

    >>> shape((3, 32, 32))
    '3×32×32'
    """
    return "×".join(map(str, dimensions)) or "a number"


def duration(seconds: float) -> str:
    """A length of time, in the units that suit it.

    >>> duration(0.25), duration(75), duration(3700), duration(200_000)
    ('0.25 s', '1 min 15 s', '1 h 2 min', '2 d 8 h')
    """
    if seconds < 59.5:
        return f"{seconds:.2g} s" if seconds < 9.5 else f"{seconds:.0f} s"
    for limit, unit, smaller in ((3_570, "min", "s"), (86_370, "h", "min"), (float("inf"), "d", "h")):
        if seconds < limit:
            per = {"s": 1, "min": 60, "h": 3600}[smaller]
            most = {"min": 60, "h": 60, "d": 24}[unit]
            count = round(seconds / per)
            return f"{count // most} {unit} {count % most} {smaller}"
    raise AssertionError("days take anything")
