"""Runs of a store that a study does not name: what they hold is taken over, and they can be removed.

Editing a spec, or the code that it names, makes new runs of some conditions; the former ones stay in the store. Whatever they
hold that the new runs ask for, a training or an estimate, is taken over (`store/parts` says what is the same): one more measure
costs that measure, not the trainings. There is no index that could be wrong: the specs of the orphans are read when there is
work to do.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from landscope.core.errors import ClaimError, LandscopeError
from landscope.core.json import Plain
from landscope.specs.names import public_names
from landscope.specs.overlay import differing, get
from landscope.studies.grid import WEIGHTS
from landscope.studies.store.identity import POOL, canonical
from landscope.studies.store.parts import TAKEN, TakenParts, model_key, part_keys, parts_of_record
from landscope.studies.store.run_folder import SECONDS, RunFolder
from landscope.studies.study import Study
from landscope.studies.work.pools import members_of
from landscope.training.spec import DataSpec

FINISHED, BEGUN = "training/history.json", "training/state.safetensors"
CODE = {"versions.networks": "networks", "versions.measures": "measures", "versions.data": "data"}


@dataclass(frozen=True)
class Orphan:
    """A run that no condition of a study names."""

    folder: RunFolder
    spec: Mapping[str, Plain]

    @property
    def title(self) -> str:
        """What the run trained or took, in a few words."""
        if POOL in self.spec:
            return f"training {len(members_of(self.spec))} runs together"
        found = canonical(self.spec)
        source = found.get("training") or found.get("checkpoint")
        if not isinstance(source, dict):
            return "no run of a study"
        files = source.get("files")
        what = str(files[0]) if isinstance(files, list) else f"seed {source.get('seed', 0)}"
        return f"{get(source, 'model.name')} on {get(source, 'data.name') or DataSpec().name}, {what}"

    @property
    def size(self) -> int:
        """Bytes that removing it frees: what another run took over stays."""
        return sum(
            found.st_size
            for path in self.folder.folder.rglob("*")
            if (found := path.lstat()).st_nlink == 1 and not path.is_dir()
        )


@dataclass(frozen=True)
class TakenOver:
    """What a study's runs took over from the store."""

    runs: int
    trainings: int
    estimates: int


def orphans_of(*studies: Study) -> Iterator[Orphan]:
    """The runs of the studies' store, and the pools of them, that none of the studies names."""
    named = {key for study in studies for key in study.runs}
    store = studies[0].store
    for key in sorted({*store.keys()} - named):
        folder = store.run(key)
        try:
            spec = folder.spec()
        except LandscopeError:  # damaged, or of a later version
            continue
        if POOL not in spec or named.isdisjoint(members_of(spec)):
            yield Orphan(folder, spec)


def remove(orphan: Orphan) -> bool:
    """Remove an orphan, unless a living process works on it."""
    if orphan.folder.held():
        return False
    shutil.rmtree(orphan.folder.folder)
    return True


# What is taken over.


@dataclass(frozen=True)
class Holding:
    """What orphans hold for a run that has not begun."""

    training: RunFolder | None
    parts: Mapping[str, Plain]
    """What was measured, by the keys of this run."""
    estimates: int
    seconds: float
    """What they cost."""


def held_by_orphans(study: Study, keys: Collection[str]) -> dict[str, Holding]:
    """What is there for those runs that have not begun."""
    wanted: dict[str, list[tuple[str, Mapping[str, Plain]]]] = {}
    for key in keys:
        begun = any(os.path.lexists(study.store.run_path(key, name)) for name in ("training", "record.json", TAKEN))
        for spec in () if begun else _spellings(study, study.runs[key].plain):
            wanted.setdefault(model_key(spec) or "", []).append((key, spec))
    having: dict[str, list[RunFolder]] = {}
    for orphan in orphans_of(study) if wanted else ():
        if (model := model_key(orphan.spec)) in wanted:
            having.setdefault(model, []).append(orphan.folder)
    found: dict[str, Holding] = {}
    for model, folders in having.items():
        for key, spec in wanted[model]:
            holding = _holding(study.runs[key].plain, spec, folders)
            if holding.training or holding.parts:
                found.setdefault(key, holding)
    return found


def _spellings(study: Study, plain: Mapping[str, Plain]) -> Iterator[Mapping[str, Plain]]:
    """The spec of a run, and the same with the versions by which its code was known to an older version of Landscope."""
    yield plain
    if plain["versions"] == public_names(study.versions):
        yield from ({**plain, "versions": public_names(dict(versions))} for versions in study.former)


def _holding(spec: Mapping[str, Plain], spelling: Mapping[str, Plain], folders: Sequence[RunFolder]) -> Holding:
    there: dict[str, Plain] = {}
    seconds = 0.0
    for folder in folders:
        try:
            record = folder.record()
            there |= parts_of_record(record)
            seconds = max(seconds, float(str(record["seconds"])))
        except (LandscopeError, KeyError, TypeError, ValueError, AttributeError):  # not done, or not as we write it
            continue
    theirs = part_keys(spelling)
    parts = {key: there[theirs[place]] for place, key in part_keys(spec).items() if theirs[place] in there}
    finished = [folder for folder in folders if folder.path(FINISHED).exists()]
    begun = [folder for folder in folders if folder.path(BEGUN).exists() and not folder.held()]
    return Holding(next(iter(finished + begun), None), parts, len(TakenParts(spec, parts)), seconds)


def take_over(study: Study, keys: Collection[str]) -> TakenOver:
    """Give those runs that have not begun what orphans hold for them."""
    held = held_by_orphans(study, keys)
    given = [holding for key, holding in held.items() if _hand(holding, study.store.add(study.runs[key].plain))]
    trainings = sum(holding.training is not None for holding in given)
    return TakenOver(len(given), trainings, sum(holding.estimates for holding in given))


def _hand(holding: Holding, run: RunFolder) -> bool:
    """Write what is held into the folder of a run, unless somebody else has begun it."""
    try:
        with run.claim(to="prepare"):
            if run.done() or run.path("training").exists():
                return False
            if holding.parts:
                run.write_json(TAKEN, holding.parts)
            run.write_json(SECONDS, holding.seconds)
            if holding.training is not None:
                _link(holding.training.path("training"), run.path("training"))
    except ClaimError:
        return False
    return True


def _link(there: Path, here: Path) -> None:
    """A folder with the same files, whole or not at all; files are hard-linked where possible."""
    aside = here.with_name(f"{here.name}.new")
    shutil.rmtree(aside, ignore_errors=True)
    shutil.copytree(there, aside, copy_function=_link_file)
    os.rename(aside, here)


def _link_file(there: str, here: str) -> None:
    try:
        os.link(there, here)  # files of a run are never changed in place: a new one is renamed over them
    except OSError:
        shutil.copy2(there, here)


# Why runs are new.


def why_changed(before: Study, after: Study) -> dict[str, list[str]]:
    """Why runs of a condition and a seed that the study had before are others now: reason → their keys."""
    old = {(run.condition, run.seed): (key, run.plain) for key, run in before.runs.items()}
    found: dict[str, list[str]] = {}
    for key, run in after.runs.items():
        there, plain = old.get((run.condition, run.seed), (key, {}))
        if there != key:
            if plain["versions"] in [public_names(dict(versions)) for versions in after.former]:
                plain = {**plain, "versions": run.plain["versions"]}
            reasons = dict.fromkeys(_reasons(canonical(plain), canonical(run.plain), before, after))
            found.setdefault("; ".join(reasons), []).append(key)
    return found


def _reasons(old: Plain, new: Plain, before: Study, after: Study) -> Iterator[str]:
    for key, was, now in differing(old, new):
        if key == f"versions.{WEIGHTS}":
            yield "the file of weights has changed"
        elif key in CODE:
            yield from _code(was, now, before, after)
        elif isinstance(was, list) and isinstance(now, list):
            more, less = ([str(one) for one in a if one not in b] for a, b in ((now, was), (was, now)))
            words = [f"{', '.join(some)} {what}" for some, what in ((more, "added"), (less, "removed")) if some]
            yield f"{key}: {' and '.join(words) or 'in another order'}"
        elif key == "figures":
            yield "another seed comes first, and figures are made for the first"
        else:
            yield f"{key} was {_word(was)} and is {_word(now)}"


def _code(was: Plain, now: Plain, before: Study, after: Study) -> Iterator[str]:
    """Which functions of the user's own have changed, and which of their definitions."""
    olds, news = (
        {str(one).partition(" ")[0]: one for one in (of if isinstance(of, list) else [of])} for of in (was, now)
    )
    for name in dict.fromkeys([*olds, *news]):
        if name not in olds or name not in news:
            yield f"{name} {'added' if name in news else 'removed'}"
        elif olds[name] != news[name]:
            there, here = dict(before.code.get(name, {})), dict(after.code.get(name, {}))
            parts = [part for part in sorted(there | here) if there.get(part) != here.get(part)] if there else []
            yield f"the code of {name} has changed" + (f" ({', '.join(parts)})" if parts else "")


def _word(value: Plain) -> str:
    return "not set" if value is None else json.dumps(value, ensure_ascii=False)
