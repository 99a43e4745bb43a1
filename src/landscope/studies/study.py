"""A study: its runs in a store, their records, and the table that is analysed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path as FilePath
from statistics import median
from typing import TYPE_CHECKING

from landscope.core.errors import DamagedFileError, DataFileError, SpecError
from landscope.core.files import LARGEST_DOCUMENT, read_regular, write_in_store
from landscope.core.json import OBJECT, TEXT, Plain, checked, parse_json
from landscope.data import status as data_status
from landscope.specs.documents import read_document
from landscope.specs.names import is_import, public_name, source_version
from landscope.specs.schema import Path, parse, to_plain
from landscope.studies.executors.base import Job, Resources
from landscope.studies.grid import RunSpec, runs_of
from landscope.studies.record import Failure, Record, wide_table, with_consistency
from landscope.studies.spec import StudySpec
from landscope.studies.store import RunState, RunStatus, Store
from landscope.studies.work.pools import pools_of
from landscope.training.spec import DataSpec

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Progress", "Study", "has_mark", "report_mark"]


STUDY_FILE = "study.json"
_KEPT = {"store": TEXT, "versions": OBJECT, "spec": OBJECT}
TIMED_RUNS = 32
"""About this many finished runs are read to estimate how long one takes."""


@dataclass(frozen=True)
class Progress:
    """How far a study is."""

    total: int
    by_state: Mapping[RunState, int]
    seconds_per_run: float | None
    """The median of some that are done."""

    @property
    def done(self) -> int:
        """Runs that have their record."""
        return self.by_state.get(RunState.DONE, 0)

    @property
    def left(self) -> int:
        """Runs that are still to be run; failed ones are not run again unless asked for."""
        return self.total - self.done - self.by_state.get(RunState.FAILED, 0)

    @property
    def seconds_left(self) -> float | None:
        """At one run at a time."""
        return None if self.seconds_per_run is None else self.seconds_per_run * self.left


class Study:
    """A spec, its runs by their keys in the store that holds them; without `imports`, nothing that the spec names is run.

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
        imports: bool = True,
    ) -> None:
        self.spec = spec
        self.store = Store(FilePath(root))
        self.versions = dict(_versions(spec, place, imports) if versions is None else versions)
        self.runs = {self.store.key(run.plain): run for run in runs_of(spec, place, self.versions, imports=imports)}

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
        return cls(parse(StudySpec, document.content, document.place), root, document.place)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> Study:
        """The study that `save` kept in a folder; its data need not be there any more."""
        place = FilePath(folder) / STUDY_FILE
        try:
            kept = checked(parse_json(read_regular(place, LARGEST_DOCUMENT)), "a study", _KEPT)
            spec, versions = kept["spec"], dict(kept["versions"])
            root = (FilePath(folder) / kept["store"]).resolve()
        except FileNotFoundError:
            raise SpecError(
                f"{folder} holds no study (it has no {STUDY_FILE}); `landscope study run` makes one"
            ) from None
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise SpecError(f"{place} cannot be read: {error}") from error
        return cls(parse(StudySpec, spec, {(): str(place)}), root, versions=versions, imports=False)

    def save(self, folder: str | os.PathLike[str]) -> FilePath:
        """Keep the spec in a folder, so that `open` finds the study there."""
        place = FilePath(folder) / STUDY_FILE
        store = os.path.relpath(self.store.root, FilePath(folder).absolute())
        kept = {"name": self.spec.name, "store": store, "versions": self.versions, "spec": to_plain(self.spec)}
        write_in_store(place, json.dumps(kept, indent=2, ensure_ascii=False).encode())
        return place

    def jobs(self, resources: Resources) -> list[Job]:
        """What an executor is given, seed by seed: a study that is cut short has every condition."""
        order = {seed: at for at, seed in enumerate(self.spec.seed_numbers)}
        runs = sorted(self.runs.items(), key=lambda item: order.get(item[1].seed, 0))
        return [Job(key, run.plain, resources) for key, run in runs]

    def pools(self, resources: Resources) -> list[Job]:
        """Trainings that an executor may do together before the runs; see `work/pools`."""
        specs = pools_of(self)
        if specs:
            for run in self.runs.values():  # members are handed their training, so they must be there
                self.store.add(run.plain)
        return [Job(self.store.key(spec), spec, resources) for spec in specs]

    def statuses(self, keys: Collection[str] | None = None) -> dict[str, RunStatus]:
        """Where each run of this study, or some of them, stands; those that the store does not know yet are waiting."""
        keys = self.runs if keys is None else keys
        found = {status.key: status for status in self.store.statuses(self.store.keys(keys))}
        return {key: found.get(key, RunStatus(key, RunState.WAITING)) for key in keys}

    def progress(self, statuses: Mapping[str, RunStatus] | None = None) -> Progress:
        """How many runs are where, and how long one takes; from `statuses` that have just been read, if they are given."""
        statuses = self.statuses() if statuses is None else statuses
        states = [status.state for status in statuses.values()]
        done = [key for key, status in statuses.items() if status.state is RunState.DONE]
        some = done[:: max(1, len(done) // TIMED_RUNS)]
        times = [record.get("seconds") for _, record in self.store.records(some)]
        seconds = [float(time) for time in times if isinstance(time, int | float)]
        counts = {state: states.count(state) for state in RunState if state in states}
        return Progress(len(self.runs), counts, median(seconds) if seconds else None)

    def _stored(self) -> Iterator[tuple[str, dict[str, Plain]]]:
        known = set(self.store.keys(self.runs))
        return self.store.records(key for key in self.runs if key in known)

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
        """The runs that failed, in the order of the study; from `statuses` that have just been read, if they are given."""
        return [
            Failure(self.runs[key].condition, self.runs[key].seed, status.error)
            for key, status in (self.statuses() if statuses is None else statuses).items()
            if status.state is RunState.FAILED
        ]

    def table(self) -> pd.DataFrame:
        """One row per measured model."""
        return wide_table(self.records())


def _versions(spec: StudySpec, place: Mapping[Path, str] | None, imports: bool) -> dict[str, Plain]:
    """Versions of the data and of the user's own code, part of every run's key; data that is missing is reported now."""
    taken = spec.checkpoints
    named = taken.data if taken is not None else parse(DataSpec, (spec.training or {}).get("data", {}))
    versions: dict[str, Plain] = {"data": _data_version(named, place, imports)}
    if others := sorted({name for name in _named(spec.axes, "data") if name != named.name}):
        versions["data on axes"] = [_data_version(DataSpec(name=name), place, imports) for name in others]
    written: object = {"model": taken.model.name} if taken is not None else (spec.training, spec.axes)
    for what, names in {"networks": _named(written, "model"), "measures": _measures(spec)}.items():
        own = sorted({public_name(name) for name in names if is_import(name)})
        with suppress(SpecError):  # one that cannot be imported is reported with the runs, by the line it stands on
            versions |= {what: [source_version(name, imports=imports) for name in own]} if own else {}
    return versions


def _data_version(named: DataSpec, place: Mapping[Path, str] | None, imports: bool) -> Plain:
    where = (place or {}).get(("training", "data"), "")
    prefix = f"{where}: " if where else ""
    if is_import(named.name):
        try:
            return source_version(named.name, imports=imports)
        except SpecError as error:
            raise SpecError(f"{prefix}{error}") from error
    found = data_status(named.name, root=named.options.get("root"), verify=False)  # type: ignore[arg-type]
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


# A mark in the head of a report: a digest of everything it is made from. A study of thousands of runs in which nothing is left
# to do need not read and draw them all again. It lives here, not with the pages, because those take long to import.


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
