"""Texts of the help, and how numbers are written for people."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["examples", "shape", "size"]


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
