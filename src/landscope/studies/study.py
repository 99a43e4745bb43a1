"""A study: its runs in a store, their records, and the table that is analysed."""

from __future__ import annotations

import hashlib
import html
import json
import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from statistics import median
from typing import TYPE_CHECKING, TypeAlias, cast

from landscope.core import display
from landscope.core.errors import DamagedFileError, DataFileError, SpecError, UnknownNameError
from landscope.core.files import LARGEST_DOCUMENT, nearest_name, read_regular, write_in_store
from landscope.core.json import LIST, OBJECT, TEXT, Plain, checked, parse_json
from landscope.data import status as data_status
from landscope.specs.code import code_digests, file_version, source_version
from landscope.specs.documents import read_document
from landscope.specs.names import is_import, public_name, public_names, search_also
from landscope.specs.schema import Path, parse, to_plain
from landscope.studies.executors.base import Job, Resources
from landscope.studies.grid import WEIGHTS, RunSpec, runs_of
from landscope.studies.record import Failure, Record, wide_table, with_consistency
from landscope.studies.spec import StudySpec
from landscope.studies.store import RunState, RunStatus, Store
from landscope.studies.work.pools import pools_of
from landscope.training.spec import DataSpec

if TYPE_CHECKING:
    import pandas as pd

STUDY_FILE = "study.json"
_KEPT = {"store": TEXT, "versions": OBJECT, "spec": OBJECT, "former": LIST, "code": OBJECT}
TIMED_RUNS = 32
"""About this many finished runs are read to estimate how long one takes."""


@dataclass(frozen=True)
class StudyProgress:
    """How far a study has got."""

    total: int
    by_state: Mapping[RunState, int]
    seconds_per_run: float | None
    """The median of some that are done."""

    @property
    def done(self) -> int:
        return self.by_state.get(RunState.DONE, 0)

    @property
    def left(self) -> int:
        """Runs that are still to be run; failed ones are not run again unless asked for."""
        return self.total - self.done - self.by_state.get(RunState.FAILED, 0)

    @property
    def seconds_left(self) -> float | None:
        return None if self.seconds_per_run is None else self.seconds_per_run * self.left


@dataclass(frozen=True)
class KeptStudy:
    """What the file in a study's folder says: the spec as it last ran, and what its runs are recognised by."""

    spec: Mapping[str, Plain]
    root: FilePath
    """Where its runs are."""
    versions: Mapping[str, Plain]
    former: Sequence[Mapping[str, Plain]]
    code: Mapping[str, Mapping[str, str]]

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> KeptStudy:
        """What `Study.save` wrote; `SpecError` where there is none."""
        place = FilePath(folder) / STUDY_FILE
        try:
            kept = checked(parse_json(read_regular(place, LARGEST_DOCUMENT)), "a study", _KEPT, ("former", "code"))
            former = [checked(one, "versions", {}) for one in kept.get("former", ())]
            code = {name: checked(digests, "digests", {}) for name, digests in kept.get("code", {}).items()}
            root = (FilePath(folder) / kept["store"]).resolve()
        except FileNotFoundError:
            if not FilePath(folder).exists():
                near = nearest_name(FilePath(folder)) or "; expected that of a study, such as studies/NAME"
                raise SpecError(f"{folder}: no such folder{near}") from None
            if (FilePath(folder) / "spec.json").is_file():
                raise SpecError(
                    f"{folder} holds a training, not a study; measure it: landscope measure {folder}"
                ) from None
            raise SpecError(
                f"{folder} holds no study (it has no {STUDY_FILE}); `landscope study run` makes one"
            ) from None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise SpecError(f"{place} cannot be read: {error}") from error
        return cls(kept["spec"], root, dict(kept["versions"]), former, code)

    def is_of(self, study: Study) -> bool:
        """Whether the study has not changed since."""
        return self.spec == to_plain(study.spec) and self.versions == study.versions


class Study:
    """A spec, its runs by their keys in the store that holds them; without `imports`, nothing that the spec names is run.

    `versions` are those of the data and of the user's code, which are part of the keys. Runs that an older version of Landscope
    made are found by their `former` ones, also by those that are known from `before`, the study that its folder held so far.

    >>> import tempfile
    >>> spec = {"name": "tiny", "training": {"model": "mlp"}, "axes": {"rate": {"optimizer.lr": [0.1, 0.2]}}, "seeds": 2}
    >>> with tempfile.TemporaryDirectory() as root:
    ...     study = Study.of(spec, root)
    ...     [(run.condition, run.seed) for run in study.runs.values()][:2], study.progress().done
    ([('optimizer.lr=0.1', 0), ('optimizer.lr=0.1', 1)], 0)
    """

    def __init__(
        self,
        spec: StudySpec,
        root: str | os.PathLike[str],
        place: Mapping[Path, str] | None = None,
        versions: Mapping[str, Plain] | None = None,
        *,
        former: Sequence[Mapping[str, Plain]] = (),
        before: KeptStudy | None = None,
        imports: bool = True,
    ) -> None:
        self.spec = spec
        self.store = Store(FilePath(root))
        self.code: Mapping[str, Mapping[str, str]] = {} if versions is not None else _code(spec)
        """For each function of the user's own, the digests of the definitions that it runs: which of them has changed."""
        self.versions = dict(_versions(spec, place, imports, source_version) if versions is None else versions)
        self.former = [dict(one) for one in former]
        if versions is None and spec.checkpoints is not None:
            self.versions[WEIGHTS] = _weights(spec.checkpoints.files, before)
        if versions is None and (self.code or spec.checkpoints is not None):
            self.former.append(_versions(spec, place, imports, file_version))
        if before is not None and before.versions == self.versions:
            self.former += [dict(one) for one in before.former if one not in self.former]
        self.runs = dict(map(self._found, runs_of(spec, place, self.versions, imports=imports)))

    def _found(self, run: RunSpec) -> tuple[str, RunSpec]:
        """A run with its key in the store, where it may lie under what its version was called before."""
        key = self.store.key(run.plain)
        for versions in self.former if not self.store.holds(key) else ():
            before = replace(run, plain={**run.plain, "versions": public_names(versions)})
            former = self.store.key(before.plain)
            if self.store.holds(former) and not self._outdated(run, former):
                return former, before
        return key, run

    def _outdated(self, run: RunSpec, former: str) -> bool:
        """Whether weights were written after an older version, which did not look into the file, had measured them."""
        source = run.plain.get("checkpoint")
        if not isinstance(source, dict):
            return False
        file = str(cast(list[Plain], source["files"])[0])
        with suppress(OSError):
            return os.path.getmtime(file) > os.path.getmtime(self.store.run_path(former, "record.json"))
        return False

    @classmethod
    def of(
        cls, source: StudySpec | Mapping[str, object] | str | os.PathLike[str], root: str | os.PathLike[str]
    ) -> Study:
        """A study from a spec, from plain values or from a file, with its runs in the folder `root`."""
        if isinstance(source, StudySpec):
            return cls(source, root)
        if isinstance(source, Mapping):
            return cls(parse(StudySpec, source), root)
        document = read_document(source)
        search_also(FilePath(source).absolute().parent)
        return cls(parse(StudySpec, document.content, document.place), root, document.place)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Study:
        """The study that `save` kept in a folder; its data need not be there any more."""
        kept = KeptStudy.read(folder)
        spec = parse(StudySpec, kept.spec, {(): str(FilePath(folder) / STUDY_FILE)})
        study = cls(spec, kept.root, versions=kept.versions, former=kept.former, imports=False)
        study.code = kept.code
        return study

    def save(self, folder: str | os.PathLike[str]) -> FilePath:
        """Keep the spec in a folder, so that `open` finds the study there."""
        place = FilePath(folder) / STUDY_FILE
        store = os.path.relpath(self.store.root, FilePath(folder).absolute())
        own = {"former": self.former, "code": self.code} if self.former else {}
        kept = {"name": self.spec.name, "store": store, "versions": self.versions, "spec": to_plain(self.spec), **own}
        write_in_store(place, json.dumps(kept, indent=2, ensure_ascii=False).encode())
        return place

    def jobs(self, resources: Resources) -> list[Job]:
        """The jobs for an executor, seed by seed, so that a study that is cut short has every condition."""
        order = {seed: at for at, seed in enumerate(self.spec.seed_numbers)}
        runs = sorted(self.runs.items(), key=lambda item: order.get(item[1].seed, 0))
        return [Job(key, run.plain, resources) for key, run in runs]

    def pools(self, resources: Resources, among: Collection[str] | None = None) -> list[Job]:
        """Trainings that an executor may do together before the runs, or before some of them; see `work/pools`."""
        specs = pools_of(self, among)
        if specs:
            for run in self.runs.values():  # members are handed their training, so they must be there
                self.store.add(run.plain)
        return [Job(self.store.key(spec), spec, resources) for spec in specs]

    def statuses(self, keys: Collection[str] | None = None) -> dict[str, RunStatus]:
        """The status of each run of this study, or of some; those that the store does not know yet are waiting."""
        keys = self.runs if keys is None else keys
        found = {status.key: status for status in self.store.statuses(self.store.keys(keys))}
        return {key: found.get(key, RunStatus(key, RunState.WAITING)) for key in keys}

    def progress(self, statuses: Mapping[str, RunStatus] | None = None) -> StudyProgress:
        """How many runs are in which state, and how long one takes; from `statuses` just read, if given."""
        statuses = self.statuses() if statuses is None else statuses
        states = [status.state for status in statuses.values()]
        done = [key for key, status in statuses.items() if status.state is RunState.DONE]
        some = done[:: max(1, len(done) // TIMED_RUNS)]
        times = [record.get("seconds") for _, record in self.store.records(some)]
        seconds = [float(time) for time in times if isinstance(time, int | float)]
        counts = {state: states.count(state) for state in RunState if state in states}
        return StudyProgress(len(self.runs), counts, median(seconds) if seconds else None)

    def _stored(self) -> Iterator[tuple[str, dict[str, Plain]]]:
        known = set(self.store.keys(self.runs))
        return self.store.records(key for key in self.runs if key in known)

    def _repr_html_(self) -> str:
        statuses = self.statuses()
        counted = Counter((run.condition, statuses[key].state) for key, run in self.runs.items())
        rows = [(condition, state, runs) for (condition, state), runs in counted.items()]
        return display.table(["condition", "state", "runs"], rows, self.spec.name, left=(0, 1))

    def records(self) -> list[Record]:
        """The records of the runs that are done, named as this study names them, in its order."""
        records = [self._named(key, self._record(key, plain)) for key, plain in self._stored()]
        return with_consistency(records, self.store)

    def _record(self, key: str, plain: Mapping[str, Plain]) -> Record:
        try:
            return Record.from_dict(plain)
        except SpecError as error:
            raise DamagedFileError(
                f"{self.store.run(key).path('record.json')}: {error}. Move the folder away and run the study again"
            ) from error

    def _named(self, key: str, record: Record) -> Record:
        run: RunSpec = self.runs[key]
        return replace(record, condition=run.condition, axes=run.axes)

    def failures(self, statuses: Mapping[str, RunStatus] | None = None) -> list[Failure]:
        """The runs that failed, in the order of the study; from `statuses` just read, if given."""
        return [
            Failure(self.runs[key].condition, self.runs[key].seed, status.error)
            for key, status in (self.statuses() if statuses is None else statuses).items()
            if status.state is RunState.FAILED
        ]

    def table(self) -> pd.DataFrame:
        """One row per measured model."""
        return wide_table(self.records())


Version: TypeAlias = Callable[..., str]
"""`source_version` or `file_version`."""


def _versions(spec: StudySpec, place: Mapping[Path, str] | None, imports: bool, version: Version) -> dict[str, Plain]:
    """Versions of the data and of the user's own code, part of every run's key; data that is missing is reported now."""
    taken = spec.checkpoints
    named = taken.data if taken is not None else parse(DataSpec, (spec.training or {}).get("data", {}))
    versions: dict[str, Plain] = {"data": _data_version(named, place, imports, version)}
    if others := sorted({name for name in _named(spec.axes, "data") if name != named.name}):
        versions["data on axes"] = [_data_version(DataSpec(name=name), place, imports, version) for name in others]
    for what, names in {"networks": _networks(spec), "measures": _measures(spec)}.items():
        own = sorted({public_name(name) for name in names if is_import(name)})
        with suppress(SpecError):  # one that cannot be imported is reported with the runs, by the line it stands on
            versions |= {what: [version(name, imports=imports) for name in own]} if own else {}
    return versions


def _weights(files: Sequence[str], before: KeptStudy | None) -> dict[str, Plain]:
    """A digest of each file of weights; for one that is gone, the digest that it had."""
    known = None if before is None else before.versions.get(WEIGHTS)
    found = dict(known) if isinstance(known, dict) else {}
    for name in files:
        with suppress(OSError), open(name, "rb") as file:
            found[name] = hashlib.file_digest(file, "sha256").hexdigest()[:16]
    return {name: found[name] for name in files if name in found}


def _code(spec: StudySpec) -> dict[str, dict[str, str]]:
    """What each function of the user's own that a study names executes."""
    named = [
        *_named((spec.training, spec.axes, to_plain(spec.checkpoints)), "data"),
        *_networks(spec),
        *_measures(spec),
    ]
    found = {}
    for name in sorted({public_name(name) for name in named if is_import(name)}):
        with suppress(SpecError):
            found[name] = code_digests(name)
    return {name: digests for name, digests in found.items() if digests}


def _networks(spec: StudySpec) -> Iterator[str]:
    """Names of networks, as a spec names them."""
    taken = spec.checkpoints
    return _named({"model": taken.model.name} if taken is not None else (spec.training, spec.axes), "model")


def _data_version(named: DataSpec, place: Mapping[Path, str] | None, imports: bool, version: Version) -> Plain:
    where = (place or {}).get(("training", "data"), "")
    prefix = f"{where}: " if where else ""
    if is_import(named.name):
        try:
            return version(named.name, imports=imports)
        except SpecError as error:
            raise SpecError(f"{prefix}{error}") from error
    try:
        found = data_status(named.name, root=named.options.get("root"), verify=False)  # type: ignore[arg-type]
    except UnknownNameError as error:
        raise SpecError(f"{prefix}{error}") from error
    if found.state != "present":
        problems = "; ".join(found.problems[:3])
        raise DataFileError(
            f"{prefix}{found.title} is {found.state}{': ' + problems if problems else ''}. {found.hint}"
        )
    return found.version


def _measures(spec: StudySpec) -> Iterator[str]:
    """Names of measures, as a spec names them."""
    for split in spec.measuring.splits.values():
        if isinstance(split.measures, Mapping):
            yield from (str((own or {}).get("measure", name)) for name, own in split.measures.items())
        elif split.measures != "all":
            yield from split.measures


def _named(written: object, what: str, key: str = "") -> Iterator[str]:
    """Names of networks, or of data, in what was written, wherever an axis may put them.

    >>> list(_named([{"model": {"name": "a:b"}}, {"net": {"model": ["mlp", "c:d"]}, "x": {"y": {"model.name": "e:f"}}}], "model"))
    ['a:b', 'mlp', 'c:d', 'e:f']
    """
    if isinstance(written, str):
        if key in (what, f"{what}.name"):
            yield written
    elif isinstance(written, Mapping):
        for name, value in written.items():
            yield from _named(value, what, f"{what}.{name}" if key == what else str(name))
    elif isinstance(written, list | tuple):
        for value in written:
            yield from _named(value, what, key)


# In the head of a report: a mark, the digest of everything it is made from, and its answer. A study of thousands of runs in which
# nothing is left to do need not be read and drawn again. It lives here, not with the pages, because those take long to import.


HEAD = 4096
"""Bytes of a page among which its mark stands."""
SHOWN = (RunState.DONE, RunState.FAILED)
"""The states of runs that a report shows."""


def report_mark(study: Study, statuses: Mapping[str, RunStatus], *, light: bool = False) -> str:
    """The digest of the version, the spec, each record by its checksum and each failure."""
    from landscope import __version__

    runs = {key: status.checksum or status.error for key, status in statuses.items() if status.state in SHOWN}
    made_of = [__version__, light, to_plain(study.spec), runs]
    return hashlib.sha256(json.dumps(made_of, sort_keys=True).encode()).hexdigest()


def has_mark(page: FilePath, mark: str) -> bool:
    """Whether a file is there and has the mark in its head."""
    try:
        with page.open("rb") as file:
            return mark.encode() in file.read(HEAD)
    except OSError:
        return False


def kept_answer(page: FilePath) -> str:
    """The answer of a report, from its head."""
    with suppress(OSError), page.open("rb") as file:
        found = re.search(rb'<meta name="description" content="([^"]*)"', file.read(HEAD))
        return html.unescape(found[1].decode(errors="replace")) if found else ""
    return ""
