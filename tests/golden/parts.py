"""The parts of which golden files are kept, how each is made, and how exactly it must be met."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from golden.drawn import drawn
from golden.keys import kept_bundles, legacy_run_keys, old_study, run_keys
from golden.names import command_options, public_names, registered_names, spec_keys
from golden.numbers import STEADY, demo_table, measured, report_data, results
from golden.stored import Values, differences, made_here, read
from golden.trainings import pool_weights, training_weights

__all__ = ["PARTS", "Part", "compare", "refusal"]

ROUNDING = 1e-6
"""By which share of themselves steady numbers may differ on another machine."""


@dataclass(frozen=True)
class Part:
    """How the values of a golden file are made, and which of them can be met with another torch, or where rounding differs.

    All of them if `portable`; otherwise those whose names end in one of `steady`, to rounding.
    """

    make: Callable[[], Values]
    frozen: bool = False
    """What an old version made, and users have: only ever compared."""
    portable: bool = True
    steady: tuple[str, ...] = ()


PARTS = {
    "names": Part(public_names),
    "options": Part(command_options),
    "registered": Part(registered_names),
    "specs": Part(spec_keys),
    "keys": Part(run_keys),
    "legacy-keys": Part(legacy_run_keys, frozen=True),
    "old-study": Part(old_study),
    "bundles": Part(kept_bundles),
    "results": Part(results),
    "report": Part(report_data, portable=False),
    "measures": Part(measured, portable=False, steady=tuple(f" {name}" for name in STEADY)),
    "drawn": Part(drawn, portable=False),
    "trainings": Part(training_weights, portable=False),
    "pools": Part(pool_weights, portable=False),
    "demo": Part(demo_table, portable=False),
}


RUN_KEYS = ("training.", "study.measuring", "study.checkpoints")
"""Keys of specs that are part of run keys."""


def refusal(name: str, found: Values) -> str:
    """Why what a part gives now must not be kept; nothing where it may."""
    if PARTS[name].frozen:
        return "it is what an old version made, and never made again"
    if name != "specs" or (kept := read(name)[1])["schema"] != found["schema"]:
        return ""
    both = [key for key in kept if key.startswith(RUN_KEYS) and key in found]
    changed = [key for key in both if _changed(kept[key]["default"], found[key]["default"])]  # type: ignore[index]
    remedy = "run keys leave defaults out, so raise SCHEMA and keep runs of the old one findable"
    return f"other defaults under one schema: {', '.join(changed)}; {remedy}" if changed else ""


def _changed(before: object, now: object) -> bool:
    """Whether a default is another one; keys that a mapping among them has lost or gained are keys of their own."""
    if isinstance(before, dict) and isinstance(now, dict):
        return any(_changed(before[key], now[key]) for key in before.keys() & now.keys())
    return before != now


def compare(name: str, found: Values | None = None) -> list[str] | None:
    """What differs between a part and its file, a line each; `None` where the two cannot be compared on this machine.

    `found` may have some of the values only: then only these are compared.
    """
    part = PARTS[name]
    made, kept = read(name)
    exact = part.portable or made == made_here()
    if not exact and not part.steady:
        return None
    if found is None:
        found = part.make()
    else:
        kept = {key: value for key, value in kept.items() if key in found}
    if exact:
        return differences(kept, found)
    some = ({key: value for key, value in values.items() if key.endswith(part.steady)} for values in (kept, found))
    return differences(*some, rounding=ROUNDING)
