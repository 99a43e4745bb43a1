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
    >>> sorted(chosen(runs, ["rate=1e-1"])), sorted(chosen(runs, ["seed=1", "rate=0.1", "rate=0.2"])), len(chosen(runs, []))
    (['a', 'b'], ['b', 'd'], 4)
    """
    levels = {key: _levels(run) for key, run in runs.items()}
    known: dict[str, dict[object, str]] = {}
    for own in levels.values():
        for name, level in own.items():
            known.setdefault(name, {}).setdefault(_value(level), level)
    wanted: dict[str, set[str]] = {}
    for text in only:
        name, level = _divided(text, known)
        if name not in known:
            raise UnknownNameError.among("axis", name, known)
        if _value(level) not in known[name]:
            choices = ", ".join(f'"{each}"' for each in known[name].values())
            raise UnknownNameError(f"no run has {name}={level}. Choices: {choices}")
        wanted.setdefault(name, set()).add(known[name][_value(level)])
    return {key for key, own in levels.items() if all(own.get(name) in some for name, some in wanted.items())}


def _levels(run: RunSpec) -> dict[str, str]:
    return {"condition": run.condition, **{name: str(level) for name, level in run.axes.items()}, "seed": str(run.seed)}


def _divided(text: str, known: Mapping[str, object]) -> tuple[str, str]:
    """Name and value; a name may have "=" in it, too."""
    name = max((name for name in known if text.startswith(f"{name}=")), key=len, default=text.partition("=")[0])
    if "=" not in text:
        raise SpecError(f"{text!r} names no runs; NAME=VALUE was expected, such as seed=0")
    return name, text[len(name) + 1 :]


def _value(level: str) -> object:
    """What is the same however it is written: 0.001 and 1e-3, True and true.

    >>> _value("1e-3") == _value("0.001"), _value("True") == _value("true"), _value("sam")
    (True, True, 'sam')
    """
    try:
        return float(level)
    except ValueError:
        return level.lower() if level.lower() in ("true", "false") else level
