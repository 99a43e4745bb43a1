"""The tables of `docs/measures.md`, made from the measures themselves.

python docs/tables.py            # print what the page should hold
python docs/tables.py --write    # and write it between its markers
"""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

from landscope import MEASURES
from landscope.measures.invariance import TRANSFORMATIONS

PAGE = Path(__file__).parent / "measures.md"
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"


def settings_table() -> str:
    """Key, first sentence of the docstring, settings with their defaults."""
    rows = ["| key | what | settings |", "|---|---|---|"]
    for key in MEASURES:
        kind = MEASURES[key]
        first = (kind.__doc__ or "").strip().split("\n\n")[0].replace("\n", " ").replace("|", "\\|")
        settings = ", ".join(f"`{f.name}={f.default!r}`" for f in fields(kind))
        rows.append(f"| `{key}` | {' '.join(first.split())} | {settings} |")
    return "\n".join(rows)


def invariance_table() -> str:
    """Which function-preserving transformations leave which measure unchanged."""
    names = list(TRANSFORMATIONS)
    rows = ["| measure | " + " | ".join(names) + " |", "|---|" + "---|" * len(names)]
    for key in MEASURES:
        marks = ["●" if name in MEASURES[key].invariant_to else "" for name in names]
        rows.append(f"| `{key}` | " + " | ".join(marks) + " |")
    return "\n".join(rows)


def tables() -> str:
    """All that stands between the markers."""
    return f"{BEGIN}\n\n{settings_table()}\n\n## Invariances\n\n{invariance_table()}\n\n{END}"


if __name__ == "__main__":
    if "--write" in sys.argv:
        page = PAGE.read_text()
        head, rest = page.split(BEGIN)
        PAGE.write_text(head + tables() + rest.split(END)[1])
    else:
        sys.stdout.write(tables() + "\n")
