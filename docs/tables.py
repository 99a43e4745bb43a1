"""The tables of the pages in this folder, made from the code that they describe.

python docs/tables.py            # print what the pages should hold
python docs/tables.py --write    # and write it between their markers
"""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from spec_tables import spec_tables

from landscope import MEASURES
from landscope.measures.facts import Family
from landscope.measures.invariance import TRANSFORMATIONS

HERE = Path(__file__).parent
BEGIN, END = "<!-- tables: begin -->", "<!-- tables: end -->"


def facts_table() -> str:
    """What every measure says of itself, family by family."""
    rows = ["| key | title | family | unit | better | cost | reference |", "|---|---|---|---|---|---|---|"]
    for family in Family:
        for kind in (MEASURES[key] for key in MEASURES if MEASURES[key].family is family):
            facts = (kind.title, family.value, kind.unit, kind.better or "", kind.cost, kind.reference)
            rows.append(f"| `{kind.key}` | " + " | ".join(facts) + " |")
    return "\n".join(rows)


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


def tables() -> dict[str, str]:
    """Page → all that stands between its markers."""
    measures = (
        f"## What each one is\n\n{facts_table()}\n\n## Settings\n\n{settings_table()}\n\n"
        f"## Invariances\n\n{invariance_table()}"
    )
    made = {"measures.md": measures, "specs.md": spec_tables()}
    return {page: f"{BEGIN}\n\n{text}\n\n{END}" for page, text in made.items()}


if __name__ == "__main__":
    for name, text in tables().items():
        if "--write" in sys.argv:
            page = HERE / name
            head, rest = page.read_text(encoding="utf-8").split(BEGIN)
            page.write_text(head + text + rest.split(END)[1], encoding="utf-8")
        else:
            sys.stdout.write(f"{name}\n\n{text}\n\n")
