"""Numbers and counts in words: plurals, durations, bytes, p-values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

# Numbers of things in sentences.


def counted(count: int, thing: str) -> str:
    """A number of things whose plural ends in s.

    >>> counted(1, "model"), counted(0, "model"), counted(1200, "run")
    ('1 model', '0 models', '1,200 runs')
    """
    return f"{count:,} {thing}{'' if count == 1 else 's'}"


def listed(names: Sequence[str], word: str = "and") -> str:
    """Names in a sentence.

    >>> listed(["a"]), listed(["a", "b", "c"]), listed(["a", "b"], "or")
    ('a', 'a, b and c', 'a or b')
    """
    *first, last = names
    return f"{', '.join(first)} {word} {last}" if first else last


def some(names: Iterable[str], most: int = 5, comma: str = ", ") -> str:
    """The first of many names, and how many more there are.

    >>> some("abcdefg"), some("ab")
    ('a, b, c, d, e and 2 more', 'a, b')
    """
    held = list(names)
    return comma.join(held[:most]) + (f" and {len(held) - most} more" if len(held) > most else "")


def first_line(error: BaseException) -> str:
    r"""The first line of another library's error message; the error's kind where it has none.

    >>> first_line(RuntimeError("no kernel\nat line 3")), first_line(ValueError())
    ('no kernel', 'ValueError')
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def capital(text: str) -> str:
    """The text with a capital first letter, the rest as it is.

    >>> capital("the ECE")
    'The ECE'
    """
    return text[:1].upper() + text[1:]


# Numbers as people write them.


SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
MINUS = "−"


def significant(value: float | None, digits: int = 3) -> str:
    """A number by itself.

    >>> significant(0.000012345), significant(1234.5), significant(-0.51234), significant(None)
    ('1.23×10⁻⁵', '1230', '−0.512', '–')
    """
    if value is None or not math.isfinite(value):
        return "–"
    if value == 0:
        return "0"
    size = math.floor(math.log10(abs(value)))
    if -4 <= size < 6:
        rounded = round(value, digits - 1 - size)
        return f"{rounded:.{max(0, digits - 1 - size)}f}".replace("-", MINUS)
    lead, _, power = f"{value:.{digits - 1}e}".partition("e")
    return f"{lead}×10{str(int(power)).translate(SUPERSCRIPTS)}".replace("-", MINUS)


def decimal(value: float | None, form: str = ".2f") -> str:
    """A number in a form of Python's, with a minus sign.

    >>> decimal(-0.345), decimal(0.345, "+.1f"), decimal(None)
    ('−0.34', '+0.3', '–')
    """
    return "–" if value is None else f"{value:{form}}".replace("-", MINUS)


def p_value(p: float | None) -> str:
    """A p-value with its sign of relation.

    >>> p_value(0.0312), p_value(0.00001), p_value(None)
    ('= 0.031', '< 0.001', '–')
    """
    if p is None or not math.isfinite(p):
        return "–"
    return "< 0.001" if p < 0.001 else f"= {p:.3f}" if p < 0.1 else f"= {p:.2f}"


# Texts of the help, and how numbers are written for people.


def examples(*lines: str) -> str:
    r"""The examples at the end of a command's help; `\b` keeps the line breaks.

    >>> examples("landscope models")
    '\x08\nExamples:\n  landscope models'
    """
    return "\b\nExamples:\n" + "\n".join(f"  {line}" for line in lines)


def size(n_bytes: int) -> str:
    """Bytes in a suitable unit.

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
    """A length of time in suitable units.

    >>> duration(0.25), duration(60), duration(75), duration(3700), duration(200_000)
    ('0.25 s', '1 min', '1 min 15 s', '1 h 2 min', '2 d 8 h')
    """
    if seconds < 59.5:
        return f"{seconds:.2g} s" if seconds < 9.5 else f"{seconds:.0f} s"
    for limit, unit, smaller in ((3_570, "min", "s"), (86_370, "h", "min"), (float("inf"), "d", "h")):
        if seconds < limit:
            per = {"s": 1, "min": 60, "h": 3600}[smaller]
            most = {"min": 60, "h": 60, "d": 24}[unit]
            count = round(seconds / per)
            rest = f" {count % most} {smaller}" if count % most else ""
            return f"{count // most} {unit}{rest}"
    raise AssertionError("days take anything")
