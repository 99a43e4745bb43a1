"""Some of the runs of a study: by seed, by condition, by the level of an axis."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from landscope.core.errors import SpecError, UnknownNameError
from landscope.studies.grid import RunSpec

__all__ = ["chosen"]


def chosen(runs: Mapping[str, RunSpec], only: Sequence[str]) -> set[str]:
    """Keys of the runs that have, of every name in `only` ("seed=2", "AXIS=LEVEL", "condition=NAME"), one of its values.

    >>> def run(rate, seed):
    ...     return RunSpec(condition=f"rate {rate}", axes={"rate": rate}, seed=seed, plain={})
    >>> runs = {"a": run(0.1, 0), "b": run(0.1, 1), "c": run(0.2, 0), "d": run(0.2, 1)}
    >>> sorted(chosen(runs, ["rate=0.1"])), sorted(chosen(runs, ["seed=1", "rate=0.1", "rate=0.2"])), len(chosen(runs, []))
    (['a', 'b'], ['b', 'd'], 4)
    """
    wanted: dict[str, set[str]] = {}
    levels = {key: _levels(run) for key, run in runs.items()}
    known: dict[str, list[str]] = {}
    for own in levels.values():
        for name, level in own.items():
            if level not in known.setdefault(name, []):
                known[name].append(level)
    for text in only:
        name, equals, level = text.partition("=")
        if not equals:
            raise SpecError(
                f"{text!r} names no runs; NAME=VALUE was expected, such as seed=0 or condition={_some(known)}"
            )
        if name not in known:
            raise UnknownNameError.among("axis", name, known)
        if level not in known[name]:
            raise UnknownNameError.among(f"value of {name}", level, known[name])
        wanted.setdefault(name, set()).add(level)
    return {key for key, own in levels.items() if all(own.get(name) in some for name, some in wanted.items())}


def _levels(run: RunSpec) -> dict[str, str]:
    return {"condition": run.condition, **{name: str(level) for name, level in run.axes.items()}, "seed": str(run.seed)}


def _some(known: Mapping[str, Sequence[str]]) -> str:
    return known.get("condition", ["NAME"])[0]
