"""What a run is made of: its model and each thing that is measured on it have keys of their own.

The key of a run changes with anything in its spec. Its training depends on less, and each estimate on less again: a run with one
more measure has the same training and, apart from that measure, the same estimates. It takes them over from a run that has them
(`studies/orphans`), in a store of any version.

    model      the training, or the file; the versions of the data and of the network's code
    estimate   the model, which of its weights, at which temperature; the split, its samples, mode, dtype, budget; the measure,
               its settings, the version of its code
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import TypeAlias, cast

from landscope.core.estimate import Estimate, Status
from landscope.core.json import Plain
from landscope.specs.canonical import canonical_json, text_key
from landscope.specs.names import is_import, public_name
from landscope.specs.schema import parse, to_plain
from landscope.studies.spec import MeasuringSpec, SplitSpec
from landscope.studies.store.identity import POOL, SCHEMA, canonical

Place: TypeAlias = tuple[str, int, str, str]
"""Checkpoint, which of its temperatures, report, and name in it; a report without a name is what it is about, a name without a
report is data for a figure."""
TAKEN = "state/taken.json"
"""Of a run's folder: what was taken from another run, and what this one has measured so far, by key."""
WHOLE = frozenset({Status.EXACT, Status.CONVERGED, Status.LOWER_BOUND, Status.UPPER_BOUND, Status.SATURATED,
                   Status.NOT_APPLICABLE, Status.BUDGET_SPENT})  # fmt: skip
"""Statuses of estimates that would end the same way again."""


def model_key(spec: Mapping[str, Plain]) -> str | None:
    """The key of what a run trains or takes; None for a pool, and for what is not the spec of a run.

    >>> spec = {"training": {"model": {"name": "mlp"}}, "measuring": {}, "versions": {"data": "1", "measures": ["my:Own 1"]}}
    >>> model_key(spec) == model_key({**spec, "measuring": {"seed": 1}, "versions": {"data": "1"}})
    True
    >>> model_key(spec) == model_key({**spec, "versions": {"data": "2"}})
    False
    """
    found = canonical(spec)
    source = found.get("training") or found.get("checkpoint")
    if POOL in spec or "measuring" not in spec or not isinstance(source, dict):
        return None
    versions = _versions(found)
    model = source["model"]
    name = str(model.get("name") if isinstance(model, dict) else model)
    kept: dict[str, Plain] = {
        "data": [versions.get("data"), versions.get("data on axes")],
        "weights": versions.get("weights"),
        "network": _version_of(name, versions.get("networks")),
        "source": source,
    }
    return _key(kept)


def part_keys(spec: Mapping[str, Plain]) -> dict[Place, str]:
    """The key of everything that a run may measure, by its place in the record."""
    model, plain = model_key(spec), canonical(spec)
    return {} if model is None else dict(_keys(model, cast(Mapping[str, Plain], plain["measuring"]), _versions(plain)))


def parts_of_record(record: Mapping[str, Plain]) -> dict[str, Plain]:
    """What was measured in a finished run, by key; not what failed or was cut short."""
    keys = part_keys(cast(Mapping[str, Plain], record["spec"]))
    found: dict[str, Plain] = {}
    numbers: dict[str, int] = {}
    for subject in cast(list[dict[str, Plain]], record["subjects"]):
        checkpoint = str(subject["checkpoint"])
        numbers[checkpoint] = numbers.get(checkpoint, -1) + 1
        found |= {keys[place]: part for place, part in _places(subject, numbers[checkpoint]) if place in keys}
    return found


def _places(subject: Mapping[str, Plain], number: int) -> Iterator[tuple[Place, Plain]]:
    """What was measured of a model at one of its temperatures, by place."""
    checkpoint = str(subject["checkpoint"])
    for split, report in cast(dict[str, dict[str, dict[str, Plain]]], subject["reports"]).items():
        yield (checkpoint, number, split, ""), report["about"]
        for name, estimate in report["estimates"].items():
            if _is_whole(estimate):
                yield (checkpoint, number, split, name), estimate
    for name, extra in cast(dict[str, Plain], subject["extras"]).items():
        yield (checkpoint, number, "", name), extra


class TakenParts:
    """What another run has measured of what this one asks for, or this one before it was stopped.

    >>> spec = {"training": {"model": {"name": "mlp"}}, "measuring": {"splits": {"train": {"measures": ["loss"]}}}}
    >>> key = part_keys(spec)["final", 0, "train", "loss"]
    >>> TakenParts(spec, {key: Estimate(0.25).to_dict()}).estimates("final", 0, "train")
    {'loss': Estimate(0.25, exact)}
    """

    def __init__(self, spec: Mapping[str, Plain], parts: Mapping[str, Plain]) -> None:
        self._keys = part_keys(spec)
        self._found = {place: parts[key] for place, key in self._keys.items() if key in parts}

    @property
    def parts(self) -> dict[str, Plain]:
        return {self._keys[place]: part for place, part in self._found.items()}

    def add(self, subject: Mapping[str, Plain], number: int) -> None:
        """Whatever was measured of a model at one of its temperatures."""
        self._found |= {place: part for place, part in _places(subject, number) if place in self._keys}

    def __len__(self) -> int:
        return sum(bool(report and name) for *_, report, name in self._found)

    def estimates(self, checkpoint: str, number: int, report: str) -> dict[str, Estimate]:
        """The estimates of a report, by name."""
        named = {
            name: plain for (*of, name), plain in self._found.items() if of == [checkpoint, number, report] and name
        }
        return {name: Estimate.from_dict(cast(dict[str, Plain], plain)) for name, plain in named.items()}

    def about(self, checkpoint: str, number: int, report: str) -> dict[str, Plain] | None:
        """What a report is about, if it was taken over."""
        return cast("dict[str, Plain] | None", self._found.get((checkpoint, number, report, "")))

    def extra(self, checkpoint: str, number: int, name: str) -> Plain:
        return self._found.get((checkpoint, number, "", name))


def _is_whole(estimate: Plain) -> bool:
    return isinstance(estimate, dict) and estimate.get("status") in WHOLE


def _keys(model: str, measuring: Mapping[str, Plain], versions: Mapping[str, Plain]) -> Iterator[tuple[Place, str]]:
    spec = _measuring(canonical_json(measuring))
    for checkpoint in spec.checkpoints:
        for number, temperature in enumerate(spec.temperature_fits):
            point: dict[str, Plain] = {
                "model": model, "checkpoint": checkpoint, "temperature": temperature, "mode": spec.mode,
                "batch": spec.batch_size, "dtype": spec.dtype, "seed": spec.seed,
            }  # fmt: skip
            if spec.statistics != "kept":
                point["statistics"] = spec.statistics
            for split, wanted in spec.splits.items():
                where: dict[str, Plain] = {**point, "split": split, "samples": wanted.samples}
                yield (checkpoint, number, split, ""), _key(where)
                for name, what in _measures(wanted, versions):
                    yield (checkpoint, number, split, name), _key({**where, "seconds": spec.seconds, **what})
            for name, of in _extras(spec, versions):
                yield (checkpoint, number, "", name), _key({**point, "extra": name, "of": of})
            yield (
                (checkpoint, number, "corrupted", "accuracy"),
                _key({**point, "corrupted": to_plain(spec.corruptions)}),
            )


@lru_cache(maxsize=64)
def _measuring(text: str) -> MeasuringSpec:
    """The thousands of runs of a study are all measured alike."""
    return parse(MeasuringSpec, json.loads(text))


def _measures(wanted: SplitSpec, versions: Mapping[str, Plain]) -> Iterator[tuple[str, dict[str, Plain]]]:
    for name, (measure, settings) in wanted.written().items():
        taking = wanted.taking(name)
        what: dict[str, Plain] = {
            "measure": public_name(measure), "settings": to_plain(settings), "samples": taking.rows,
            "version": _version_of(measure, versions.get("measures")),
        }  # fmt: skip
        if taking.mode is not None:
            what["mode"] = taking.mode
        if taking.augmented:
            what["augmented"] = True
        yield name, what


def _extras(spec: MeasuringSpec, versions: Mapping[str, Plain]) -> Iterator[tuple[str, Plain]]:
    train = spec.splits.get("train", SplitSpec())
    yield "reliability", None
    yield "corruptions", to_plain(spec.corruptions)
    yield "layers", [train.samples, spec.seconds]
    yield "invariance", [train.samples, to_plain(dict(_measures(train, versions)))]
    yield "landscape", to_plain(spec.landscape)


def _versions(spec: Mapping[str, Plain]) -> Mapping[str, Plain]:
    versions = spec.get("versions")
    return versions if isinstance(versions, dict) else {}


def _version_of(name: str, versions: Plain) -> Plain:
    """The version of one function of the user's own, among those of all that a study names."""
    own = versions if isinstance(versions, list) and is_import(name) else []
    return next((version for version in own if str(version).partition(" ")[0] == public_name(name)), None)


def _key(what: Mapping[str, Plain]) -> str:
    return text_key(canonical_json({"schema": SCHEMA, **what}))
