"""How a run is recognised, across versions of Landscope and wherever its code lies.

A run's key is a hash of its spec in one spelling (`canonical`): without the fields that have their defaults, so that a new field
changes no key; with public names in place of import paths; without the version of Landscope, which stands in the record's
environment. A default that changes must raise `SCHEMA`, which is part of every key.

Up to version 0.1 the key was the hash of everything that was written. `legacy_keys` gives the keys that a run could have had
then: its folder in a store keeps such a name, and is found by it.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from functools import lru_cache
from typing import cast

from landscope.core.json import Plain
from landscope.specs.canonical import canonical_text, text_key
from landscope.specs.names import former_names, public_names, renamed
from landscope.specs.schema import former_fields, map_instances, to_plain, without_defaults
from landscope.studies.spec import CheckpointsSpec, MeasuringSpec
from landscope.training.spec import TrainingSpec

SCHEMA = 1
"""Version of the defaults that a canonical spec leaves out."""
POOL = "pool"
"""The key that distinguishes the spec of a pool from that of a run."""
PARTS: dict[str, type] = {"training": TrainingSpec, "measuring": MeasuringSpec, "checkpoint": CheckpointsSpec}
"""The parts of a run's spec that have a type; a pool has a training, too."""
VERSIONS = ("0.1.0", "0+source")
"""Versions of Landscope whose keys held it; a release and a checkout of it."""
FIELDS = {
    "TrainingSpec": "model data loss epochs evaluate_every batch_size drop_last optimizer schedule sam fam averaging "
    "augmentation label_smoothing clip_norm accumulate early_stopping convergence snapshots precision channels_last compile seed",
    "ModelSpec": "name options",
    "DataSpec": "name options",
    "OptimizerSpec": "name lr momentum nesterov betas eps weight_decay decoupled",
    "ScheduleSpec": "name warmup final milestones gamma flat end",
    "SAMSpec": "rho adaptive eta micro_batch",
    "FAMSpec": "strength layer form probes gradient",
    "AveragingSpec": "kind start decay lr",
    "Augmentation": "crop flip cutout",
    "EarlyStoppingSpec": "patience metric",
    "ConvergenceSpec": "relative_change below after",
    "MeasuringSpec": "checkpoints temperature splits mode batch_size dtype seconds reliability layers invariance landscape "
    "corruptions consistency seed",
    "SplitSpec": "measures samples as_published only tempered",
    "LandscapeSpec": "resolution span samples",
    "CorruptionsSpec": "names severities samples",
    "CheckpointsSpec": "files model data loss",
}
"""The fields that those versions knew: part of their keys, and never to be changed."""
UNWRITTEN: dict[str, Mapping[str, Plain]] = {"TrainingSpec": {"evaluate_every": 1, "compile": False}}
"""Fields that those versions did not write at these values."""


def run_key(spec: Mapping[str, object]) -> str:
    """The name of the run that a spec describes: 16 hexadecimal digits; a store notices two specs that share one.

    >>> run_key({"seed": 3, "lr": 0.1}) == run_key({"lr": 1e-1, "seed": 3}) != run_key({"lr": 0.1, "seed": 3.0})
    True
    """
    return text_key(f'{{"schema":{SCHEMA},"spec":{canonical_text(canonical(spec))}}}')


def canonical(spec: Mapping[str, object]) -> dict[str, Plain]:
    """The spec of a run or of a pool in the one form that its key is made of; anything else as it is written.

    >>> training = {"model": {"name": "mlp", "options": {}}, "epochs": 10}
    >>> canonical({"training": training, "measuring": {}, "versions": {"landscope": "0.1.0"}})
    {'training': {'model': {'name': 'mlp'}}, 'measuring': {}, 'versions': {}}
    """
    plain = cast(dict[str, Plain], to_plain(spec))
    if not _is_run(plain):
        return plain
    short = _sorted(cast(dict[str, Plain], public_names(_each_part(plain, _short))))
    versions = short.get("versions")
    if isinstance(versions, dict):
        short["versions"] = {name: version for name, version in versions.items() if name != "landscope"}
    return short


def _short(part: Plain, kind: type) -> Plain:
    """A part without its defaults. The thousands of runs of a study are all measured alike, and many differ in the seed only."""
    if not isinstance(part, dict) or "seed" not in part:
        return _short_of_text(json.dumps(part), kind)
    rest = {name: value for name, value in part.items() if name != "seed"}
    seed = without_defaults({"seed": part["seed"]}, kind)
    return {**cast(dict[str, Plain], _short_of_text(json.dumps(rest), kind)), **cast(dict[str, Plain], seed)}


@lru_cache(maxsize=64)
def _short_of_text(text: str, kind: type) -> Plain:
    return without_defaults(json.loads(text), kind)


def legacy_keys(spec: Mapping[str, object]) -> list[str]:
    """The keys under which versions up to 0.1 may have made the run of a spec; the first is that of the spec as written.

    >>> legacy_keys({"seed": 1}) == [text_key('{"seed":1}')]
    True
    """
    plain = cast(dict[str, Plain], to_plain(spec))
    texts = [canonical_text(plain)]
    if _is_run(plain) and not _is_later(plain):
        before = cast(dict[str, Plain], public_names(_each_part(plain, _as_before)))
        texts += [canonical_text(_sorted(one)) for one in _with_former_names(before) for one in _with_versions(one)]
    return list(dict.fromkeys(map(text_key, texts)))


def _is_run(plain: Mapping[str, Plain]) -> bool:
    return POOL in plain or ("measuring" in plain and not plain.keys().isdisjoint(("training", "checkpoint")))


def _each_part(plain: dict[str, Plain], change: Callable[[Plain, type], Plain]) -> dict[str, Plain]:
    found = {name: change(value, PARTS[name]) if name in PARTS else value for name, value in plain.items()}
    pool = found.get(POOL)
    return {**found, POOL: _each_part(pool, change)} if isinstance(pool, dict) else found


def _sorted(plain: dict[str, Plain]) -> dict[str, Plain]:
    """Order the user's own functions by their names, whatever these are now."""
    versions = plain.get("versions")
    if not isinstance(versions, dict):
        return plain
    lists = {
        name: sorted(map(str, own)) for name in ("networks", "measures") if isinstance(own := versions.get(name), list)
    }
    return {**plain, "versions": {**versions, **cast(dict[str, Plain], lists)}}


def _is_later(plain: dict[str, Plain]) -> bool:
    """Whether a spec says something that those versions could not express."""
    later: list[str] = []

    def look(cls: type, values: dict[str, Plain]) -> dict[str, Plain]:
        known = FIELDS.get(cls.__name__, "").split()
        later.extend(name for name in values if name not in known)
        return values

    _each_part(_each_part(plain, without_defaults), lambda value, kind: map_instances(value, kind, look))
    return bool(later)


def _as_before(value: Plain, kind: type) -> Plain:
    return map_instances(value, kind, _without_later_fields)


def _without_later_fields(cls: type, values: dict[str, Plain]) -> dict[str, Plain]:
    known, unwritten = FIELDS.get(cls.__name__, "").split(), UNWRITTEN.get(cls.__name__, {})
    return {
        name: value
        for name, value in {**former_fields(cls), **values}.items()
        if name in known and not (name in unwritten and value == unwritten[name])
    }


def _with_former_names(plain: dict[str, Plain]) -> Iterator[dict[str, Plain]]:
    """The spec with each of the names that its functions had."""
    public = list(dict.fromkeys(name for name in _texts(plain) if former_names(name)))
    for former in itertools.product(*map(former_names, public)):
        yield cast(dict[str, Plain], renamed(plain, dict(zip(public, former, strict=True))))


def _texts(value: Plain) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)


def _with_versions(plain: dict[str, Plain]) -> Iterator[dict[str, Plain]]:
    """The spec itself, then with each version of Landscope in it."""
    yield plain
    versions = plain.get("versions")
    if isinstance(versions, dict):
        for version in VERSIONS:
            yield {**plain, "versions": {**versions, "landscope": version}}
