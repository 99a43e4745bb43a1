"""A folder of runs that many processes, studies and machines may share.

    store.json            the format
    runs/<key>/           one folder per run (see `run_folder`)
    quarantine/<key>-…/   what was found damaged

There is no index that could be wrong: the state of a run is what its own folder says.
"""

from __future__ import annotations

import json
import os
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from landscope.core.errors import StoreError, StoreGoneError, UnknownNameError
from landscope.core.files import LARGEST_DOCUMENT, read_regular, store_errors, write_in_store
from landscope.core.json import WHOLE, Plain, checked, parse_json
from landscope.specs.canonical import canonical_json, canonical_text, strict
from landscope.studies.store import locks
from landscope.studies.store.identity import canonical, legacy_keys, run_key
from landscope.studies.store.locks import Owner
from landscope.studies.store.run_folder import RunFolder

__all__ = ["RunState", "RunStatus", "Store"]

FORMAT = 1


class RunState(StrEnum):
    """The state of a run."""

    WAITING = "waiting"
    """Nobody has started it."""
    RUNNING = "running"
    """A living process works on it."""
    INTERRUPTED = "interrupted"
    """It was started and nobody works on it; it resumes from its last checkpoint."""
    FAILED = "failed"
    """It raised an error; it is run again only when asked."""
    DAMAGED = "damaged"
    """Its record is not what was written; it will be quarantined and run again."""
    DONE = "done"
    """Its record is there and whole."""


@dataclass(frozen=True)
class RunStatus:
    """The state of a run, and who works on it; times are seconds since 1970."""

    key: str
    state: RunState
    attempts: int = 0
    owner: Owner | None = None
    since: float = 0.0
    heartbeat: float = 0.0
    error: str = ""
    outcome: str = ""
    """How the last attempt ended: done, failed, stopped or prepared; empty while it lasts, or where its process was killed."""
    checksum: str = ""
    """The SHA-256 of the record, where the run is done."""

    @property
    def settled(self) -> bool:
        """Whether nothing is left to do: the record is there, and its process ended by itself and cleaned up."""
        return self.state is RunState.DONE and self.outcome == "done"


class Store:
    """The runs in a folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as root:
    ...     store = Store(root)
    ...     first, second = store.add({"seed": 1}), store.add({"seed": 2})
    ...     with first.claim():
    ...         first.finish({"loss": 0.25})
    ...     print(store.status(first.key).state.value, store.status(second.key).state.value)
    done waiting
    """

    def __init__(self, root: Path | str, *, stale_after: float = locks.STALE_AFTER) -> None:
        self.root = Path(root).absolute()
        self.stale_after = stale_after
        self._runs = self.root / "runs"
        self._seen = False
        self._names: frozenset[str] | None = None
        self._keys: dict[str, str] = {}
        """Keys by the text of their spec: a study asks several times for each run."""
        self._check_format()

    def add(self, spec: Mapping[str, object]) -> RunFolder:
        """The run of a spec, waiting if it is new."""
        run = RunFolder(self._runs / self.key(spec), self.stale_after)
        path = run.path("spec.json")
        if not self._same(spec, self._spec_there(path)):
            if not (self.root / "store.json").exists():
                write_in_store(self.root / "store.json", json.dumps({"format": FORMAT}).encode())
            content = (json.dumps(strict(spec, "spec"), indent=1, ensure_ascii=False) + "\n").encode()
            write_in_store(path, content, flush=False)  # a later attempt writes it again
        self._seen = True
        return run

    def run_path(self, key: str, name: str) -> Path:
        """Where a file of a run lies, whether or not the run exists."""
        return self._runs / key / name

    def _spec_there(self, path: Path) -> bytes:
        try:
            return read_regular(path, LARGEST_DOCUMENT)
        except FileNotFoundError:
            return b""
        except ValueError as error:
            raise StoreError(f"{path}: {error}. Move it away; it is written again") from error

    def key(self, spec: Mapping[str, object]) -> str:
        """The key of the run of a spec in this store: what an older version made keeps the name that it had there."""
        text = canonical_json(spec)
        if text not in self._keys:
            self._keys[text] = run_key(spec)
        key = self._keys[text]
        if not (names := self._first_names()) or key in names:
            return key
        former = [old for old in legacy_keys(spec) if old in names]
        if not former or (self._runs / key / "spec.json").exists():
            return key
        return next((old for old in former if (self._runs / old / "record.json").exists()), former[0])

    def _first_names(self) -> frozenset[str]:
        """The folders that were here at the first question: only what comes later is new."""
        if self._names is None:
            with store_errors(self._runs):
                self._names = frozenset(os.listdir(self._runs) if self._runs.exists() else ())
        return self._names

    def holds(self, key: str) -> bool:
        """Whether the folder of a run was here when first asked."""
        return key in self._first_names()

    def check_there(self) -> None:
        """Raise `StoreGoneError` if the folder existed and no longer does; other disk errors may be temporary."""
        try:
            (self.root / "store.json").stat()
            self._runs.stat()
            self._seen = True
        except (FileNotFoundError, NotADirectoryError):
            if self._seen:
                raise StoreGoneError(
                    f"the store {self.root} is not there any more: its folder was removed, renamed or unmounted. Put it back and "
                    "run the same command to resume; if it is lost, that command starts over"
                ) from None
        except OSError:
            pass

    def keys(self, among: Container[str] | None = None) -> list[str]:
        """Every run, or those with certain keys, by key. A folder without a spec is just being made."""
        with store_errors(self._runs):
            if not self._runs.exists():
                return []
            with os.scandir(self._runs) as entries:
                return sorted(
                    entry.name
                    for entry in entries
                    if (among is None or entry.name in among) and os.path.exists(f"{entry.path}/spec.json")
                )

    def run(self, key: str) -> RunFolder:
        if not (self._runs / key / "spec.json").exists():
            self.check_there()
            raise UnknownNameError.among("run", key, self.keys())
        return RunFolder(self._runs / key, self.stale_after)

    def status(self, key: str) -> RunStatus:
        return next(self.statuses([self.run(key).key]))

    def statuses(self, keys: Iterable[str] | None = None) -> Iterator[RunStatus]:
        """Where each run stands, by reading its record and its last attempt: some 0.1 ms per run on a local disk."""
        now = locks.filesystem_now(self._runs)
        for key in self.keys() if keys is None else keys:
            yield _status(RunFolder(self._runs / key, self.stale_after), now)

    def records(self, keys: Iterable[str] | None = None) -> Iterator[tuple[str, dict[str, Plain]]]:
        """Key and record of each run that is done."""
        for key in self.keys() if keys is None else keys:
            try:
                record = RunFolder(self._runs / key, self.stale_after).record()
            except StoreError:
                continue
            yield key, record

    def _check_format(self) -> None:
        try:
            content = read_regular(self.root / "store.json", LARGEST_DOCUMENT)
        except FileNotFoundError:
            return
        except (ValueError, OSError) as error:
            raise StoreError(f"{self.root / 'store.json'} cannot be read: {error}. Take another folder") from error
        try:
            found = checked(parse_json(content), "a store", {"format": WHOLE})["format"]
        except ValueError:
            found = "a damaged one"
        if found != FORMAT:
            raise StoreError(
                f"{self.root / 'store.json'} says format {found}; this version reads format {FORMAT}. "
                "Use another folder, or the version of landscope that wrote it"
            )

    def _same(self, spec: Mapping[str, object], there: bytes) -> bool:
        try:
            other = parse_json(there)
        except ValueError:
            return False  # none, or torn by a disk: it is written again
        if not isinstance(other, dict):
            return False
        if canonical_text(other) == canonical_json(spec):  # most often it is the very same
            return True
        if canonical_json(canonical(other)) == canonical_json(canonical(spec)):
            return True
        if run_key(other) == (key := run_key(spec)):
            raise StoreError(f"two different specs have the key {key}; add any field (a comment) to one of them")
        return False


def _status(run: RunFolder, now: float) -> RunStatus:
    last = run.latest()
    attempts = last.number if last else 0
    if checksum := run.checksum():
        return RunStatus(run.key, RunState.DONE, attempts, outcome=last.outcome if last else "", checksum=checksum)
    if last is None:
        trouble = run.trouble()
        return RunStatus(run.key, RunState.DAMAGED if trouble else RunState.WAITING, error=trouble)
    if last.held(now, run.stale_after):
        return RunStatus(run.key, RunState.RUNNING, attempts, last.owner, last.since, last.beat)
    if trouble := run.trouble():
        return RunStatus(run.key, RunState.DAMAGED, attempts, error=trouble, outcome=last.outcome)
    state = {"failed": RunState.FAILED, "prepared": RunState.WAITING}.get(last.outcome, RunState.INTERRUPTED)
    return RunStatus(run.key, state, attempts, last.owner, last.since, last.beat, last.error, last.outcome)
