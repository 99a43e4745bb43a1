"""What a report reads from `MeasuredModel.extras`, the plain data for figures that a run leaves beside its estimates.

    "reliability"   {"before": table, "after": table}: before and after temperature scaling, each as
                    `Reliability.to_frame().to_dict("list")`: lower, upper, count, confidence, accuracy (null where empty).
                    A bare table counts as "before" at temperature 1 and as "after" at any other
    "landscape"     `Landscape.to_dict()` with the other splits in its `others`, or {split: Landscape.to_dict()}
    "layers"        `LayerReport.to_frame().reset_index().to_dict("list")`: layer, and for every measure MEASURE and
                    MEASURE_stderr (null where it does not apply)
    "invariance"    {measure: {transformation: {"change": |after − before|/|before|, "error": its standard error} or null}},
                    as `landscope.invariance.movements` finds them
    "corruptions"   {"names": [k], "severities": [s], "accuracy": [k][s], "clean": accuracy without corruption}

Spectra and the curve of IGS over rank are in the details of their estimates. A key may be absent; one that cannot
be read is named in the report, and the others are shown.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from landscope.core.json import Plain
from landscope.core.text import counted
from landscope.measures.calibration.reliability import Reliability
from landscope.planes import Landscape
from landscope.report.data.cohorts import Cohort, Cohorts
from landscope.report.page.blocks import Prose
from landscope.studies.record import MeasuredModel

T = TypeVar("T")
Calibration = dict[str, Reliability]
"""By "before" and "after"."""
Landscapes = dict[str, Landscape]
Layers = dict[str, dict[str, tuple[float, float]]]
"""Measure → layer → value and standard error."""
Movements = dict[str, dict[str, tuple[float, float] | None]]
"""Measure → transformation → relative change and its error."""


@dataclass(frozen=True, eq=False)
class Corrupted:
    """Accuracy (corruptions, severities), and on the clean images."""

    names: list[str]
    severities: list[int]
    accuracy: NDArray[np.float64]
    clean: float


def fault_notes(faults: Sequence[str]) -> list[Prose]:
    """A sentence about what is missing from the figures above it."""
    shown = "; ".join(faults[:3]) + ("; …" if len(faults) > 3 else "")
    return [Prose(f"{counted(len(faults), 'model')} could not be shown here: {shown}.", tone="note")] if faults else []


def gather(
    study: Cohorts, key: str, read: Callable[[Plain, MeasuredModel], T], cohorts: Sequence[Cohort] | None = None
) -> tuple[dict[int, T], list[str]]:
    """What `read` makes of `extras[key]`, by run, in the first cohort that has any of it; and why some could not be read."""
    for cohort in study.cohorts if cohorts is None else cohorts:
        found: dict[int, T] = {}
        faults: list[str] = []
        for run, subject in cohort.members.items():
            plain = subject.extras.get(key)
            if plain is None:
                continue
            try:
                found[run] = read(plain, subject)
            except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
                faults.append(f"{study.run_name(run)} ({type(error).__name__}: {error})")
        if found or faults:
            return found, faults
    return {}, []


def spread_over_conditions(study: Cohorts, runs: Mapping[int, T], most: int) -> dict[int, T]:
    """At most this many, taken in turn from every condition."""
    queues: dict[int, list[int]] = {}
    for run in runs:
        queues.setdefault(study.condition_of[run], []).append(run)
    chosen: list[int] = []
    for place in range(max(map(len, queues.values()), default=0)):
        chosen += [queue[place] for _, queue in sorted(queues.items()) if place < len(queue)]
    kept = set(chosen[:most])
    return {run: value for run, value in runs.items() if run in kept}


def read_reliability(plain: Plain, subject: MeasuredModel) -> Calibration:
    """The tables by "before" and "after"."""
    tables = cast("dict[str, Plain]", plain)
    if "lower" in tables:
        tables = {"before" if subject.temperature == 1.0 else "after": plain}
    return {when: _table(cast("dict[str, Plain]", tables[when])) for when in ("before", "after") if tables.get(when)}


def _table(plain: Mapping[str, Plain]) -> Reliability:
    lower, upper, count, confidence, accuracy = (
        np.array(plain[name], dtype=np.float64) for name in ("lower", "upper", "count", "confidence", "accuracy")
    )
    if not len(lower) == len(upper) == len(count) == len(confidence) == len(accuracy) > 0 or not count.sum() > 0:
        raise ValueError("the columns of a reliability table must be equally long and count at least one sample")
    return Reliability(np.append(lower, upper[-1]), count.astype(np.int64), confidence, accuracy)


def read_landscape(plain: Plain, _: MeasuredModel) -> Landscapes:
    """Landscapes of one value each, by the name of the split."""
    given = cast("dict[str, dict[str, Plain]]", plain)
    whole = {"": given} if "axes" in given else given
    found: Landscapes = {}
    for split, each in whole.items():
        landscape = Landscape.from_dict(cast("dict[str, Plain]", each))
        for number, (name, values) in enumerate(landscape.series().items()):
            first = split or (name if name != "probe" else "train")
            shown = first if number == 0 else name
            found[shown] = Landscape(landscape.axes, values, directions=landscape.directions)
            if values.loss.shape != tuple(len(axis) for axis in reversed(landscape.axes)):
                raise ValueError(f"{shown}: the loss has shape {values.loss.shape}, which is not that of its axes")
    return found


def read_layers(plain: Plain, _: MeasuredModel) -> Layers:
    """Value and standard error by measure and layer; without those that do not apply."""
    columns = cast("dict[str, list[Plain]]", plain)
    layers = [str(layer) for layer in columns["layer"]]
    found: Layers = {}
    for name, values in columns.items():
        if name == "layer" or (name.endswith("_stderr") and name.removesuffix("_stderr") in columns):
            continue
        errors = columns.get(f"{name}_stderr", [0.0] * len(layers))
        rows = {
            layer: (_number(value), _number(error)) for layer, value, error in zip(layers, values, errors, strict=True)
        }
        found[name] = {layer: pair for layer, pair in rows.items() if math.isfinite(pair[0])}
    return found


def read_corruptions(plain: Plain, _: MeasuredModel) -> Corrupted:
    """Accuracy by corruption and severity."""
    table = cast("dict[str, list[Plain]]", plain)
    found = Corrupted(
        [str(name) for name in table["names"]],
        [cast(int, severity) for severity in table["severities"]],
        np.array(table["accuracy"], dtype=np.float64),
        _number(cast("dict[str, Plain]", plain)["clean"]),
    )
    if found.accuracy.shape != (len(found.names), len(found.severities)):
        raise ValueError(f"the accuracies have shape {found.accuracy.shape}, which is not that of names and severities")
    return found


def read_invariance(plain: Plain, _: MeasuredModel) -> Movements:
    """Relative change and its error by measure and transformation; `None` where the model has no place for one."""
    measures = cast("dict[str, dict[str, dict[str, Plain] | None]]", plain)
    return {
        measure: {
            transformation: None if moved is None else (_number(moved["change"]), _number(moved.get("error", 0.0)))
            for transformation, moved in movements.items()
        }
        for measure, movements in measures.items()
    }


def _number(value: Plain) -> float:
    return math.nan if value is None else float(cast(float, value))
