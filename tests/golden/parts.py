"""The parts of which golden files are kept, how each is made, and how exactly it must be met."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from golden.keys import kept_bundles, old_study, run_keys
from golden.names import command_options, public_names, registered_names, spec_keys
from golden.numbers import demo_table, measured, report_data, results
from golden.stored import Values, differences, made_here, read
from golden.trainings import pool_weights, training_weights

__all__ = ["PARTS", "ROUNDING", "Part", "compare"]

ROUNDING = 1e-6
"""By which share of themselves numbers in float64 may differ on another machine."""


@dataclass(frozen=True)
class Part:
    """How the values of a golden file are made; `elsewhere`, how they are met where torch or the machine's rounding differ."""

    make: Callable[[], Values]
    elsewhere: Literal["the same", "to rounding", "not compared"] = "the same"


PARTS = {
    "names": Part(public_names),
    "options": Part(command_options),
    "registered": Part(registered_names),
    "specs": Part(spec_keys),
    "keys": Part(run_keys),
    "old-study": Part(old_study),
    "bundles": Part(kept_bundles),
    "results": Part(results),
    "report": Part(report_data, "not compared"),
    "measures": Part(measured, "to rounding"),
    "trainings": Part(training_weights, "not compared"),
    "pools": Part(pool_weights, "not compared"),
    "demo": Part(demo_table, "not compared"),
}


def compare(name: str, found: Values | None = None) -> list[str] | None:
    """What differs between a part and its file, a line each; `None` where the two cannot be compared on this machine.

    `found` may have some of the values only: then only these are compared.
    """
    part = PARTS[name]
    made, kept = read(name)
    same = made == made_here()
    if not same and part.elsewhere == "not compared":
        return None
    if found is None:
        found = part.make()
    else:
        kept = {key: value for key, value in kept.items() if key in found}
    return differences(kept, found, ROUNDING if not same and part.elsewhere == "to rounding" else 0.0)
