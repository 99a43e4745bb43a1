"""The directory of one run, as the process that works on it sees it.

    runs/3f2a90c1d4e5b678/
      spec.json            what is to be done; its hash is the name of the folder (see `identity`)
      attempts/0001.json   who tried, since when, how it ended (see `locks`)
      state/               what resuming needs, removed when the run is done
      history.json, weights/*.safetensors, log.txt, …
      failure.txt          the traceback of the last failure
      record.json          the result, whole or not at all; once it is there, the run is done

`record.json` carries the SHA-256 of its own content in its first line. A record that does not fit its hash is moved to
`quarantine/` with everything beside it when the next process claims the run.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
import traceback
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from textwrap import shorten
from typing import Literal, cast

from landscope.core.errors import (
    ClaimError,
    DamagedFileError,
    DataFileError,
    MissingExtraError,
    RunStoppedError,
    StoreError,
    StoreGoneError,
)
from landscope.core.files import (
    LARGEST_DOCUMENT,
    LARGEST_RECORD,
    check_regular,
    is_full,
    read_regular,
    store_errors,
    sweep,
    write_in_store,
    writing_in_store,
)
from landscope.core.json import OBJECT, Plain, checked, parse_json
from landscope.specs.canonical import strict
from landscope.studies.store import locks
from landscope.studies.store.identity import legacy_keys, run_key
from landscope.studies.store.locks import Owner

SECONDS = "state/seconds.json"
"""What a run has cost so far."""


class RunFolder:
    """A run's files. To write them, this process must hold the run's claim.

    >>> import tempfile
    >>> from landscope.studies.store import Store
    >>> with tempfile.TemporaryDirectory() as root:
    ...     run = Store(root).add({"seed": 1})
    ...     with run.claim():
    ...         run.write_json("history.json", [{"loss": 0.5}])
    ...         run.finish({"loss": 0.5})
    ...     run.done(), run.record(), run.attempts
    (True, {'loss': 0.5}, 1)
    """

    def __init__(self, folder: Path | str, stale_after: float = locks.STALE_AFTER) -> None:
        self.folder = Path(folder)
        self.key = self.folder.name
        self.stale_after = stale_after
        self._attempts = self.folder / "attempts"

    def path(self, name: str) -> Path:
        """Where a file of this run lies; name it with forward slashes, as in `weights/final.safetensors`."""
        return self.folder / name

    def spec(self) -> dict[str, Plain]:
        try:
            spec = checked(parse_json(read_regular(self.path("spec.json"), LARGEST_DOCUMENT)), "a spec", {})
            if self.key != run_key(spec) and self.key not in legacy_keys(spec):
                raise ValueError("it does not give the key that its folder is named for")
        except (OSError, ValueError) as error:
            raise StoreError(
                f"{self.path('spec.json')} cannot be read: {error}. Add the spec to the store again"
            ) from error
        return cast(dict[str, Plain], spec)

    @property
    def attempts(self) -> int:
        last = self.latest()
        return last.number if last else 0

    def latest(self) -> locks.Attempt | None:
        return locks.latest(self._attempts)

    def held(self) -> bool:
        """Whether a living process works on this run."""
        last = self.latest()
        return last is not None and last.held(locks.filesystem_now(self._attempts), self.stale_after)

    def failure(self) -> str:
        """The traceback of the last failure, or nothing."""
        with suppress(FileNotFoundError):
            try:
                return read_regular(self.path("failure.txt"), LARGEST_DOCUMENT).decode(errors="replace")
            except ValueError as error:
                return f"{self.path('failure.txt')}: {error}"
        return ""

    @contextmanager
    def claim(self, to: Literal["run", "prepare"] = "run") -> Iterator[RunFolder]:
        """Hold this run while the block lasts; `ClaimError` if another process does. What is only prepared keeps waiting.

        What dead writers left is swept up, and a damaged record quarantined. A block that ends in an error leaves a failed run
        with its traceback; one that ends before `finish`, by a request to stop, or for lack of disk space, of a data file or of
        a package, leaves a run that can be resumed.
        """
        self._check_there()
        attempt = locks.take(self._attempts, self.stale_after)
        outcome: locks.Outcome = "stopped" if to == "run" else "prepared"
        said = ""
        try:
            with locks.beating(self._attempts, attempt, self.stale_after):
                sweep(self.folder)
                if self.done():
                    self._drop_what_was_for_resuming()
                elif self.trouble():
                    self._quarantine()
                try:
                    yield self
                except Exception as error:
                    self._check_there()
                    said = "" if isinstance(error, RunStoppedError) else _one_line(error)  # it was asked to
                    if not isinstance(error, RunStoppedError | ClaimError) and not is_full(error):
                        self._write_failure(error)
                        if not isinstance(error, DataFileError | MissingExtraError):  # which may be here the next time
                            outcome = "failed"
                    raise
        finally:
            self._check_there()
            if not locks.read(self._attempts, attempt.number).outcome:
                locks.close(self._attempts, attempt, "done" if self.done() else outcome, said)

    def writing(self, name: str) -> AbstractContextManager[Path]:
        """A path for a library to write to, which becomes the file `name` when the block ends without an error."""
        self._check_claim()
        return writing_in_store(self.path(name), inside=self.folder)

    def write_bytes(self, name: str, content: bytes) -> None:
        """Write a file, whole or not at all."""
        self._check_claim()
        write_in_store(self.path(name), content, inside=self.folder)

    def write_json(self, name: str, value: object) -> None:
        """Write plain values as JSON, whole or not at all."""
        self.write_bytes(name, json.dumps(strict(value, name), indent=1, ensure_ascii=False).encode())

    def finish(self, record: Mapping[str, object]) -> None:
        """Write the record, after which the run is done, and remove its checkpoints."""
        body = f'"record": {json.dumps(strict(record, "record"), ensure_ascii=False)}\n}}\n'.encode()
        self.write_bytes("record.json", _header(self.key, body) + body)
        self._drop_what_was_for_resuming()

    def fail(self, error: BaseException | str) -> None:
        """Leave the claimed run as failed, with the traceback of an error, or with the line that another folder has for it."""
        attempt = self._check_claim()
        self._write_failure(error)
        locks.close(self._attempts, attempt, "failed", _one_line(error))

    def tidy(self) -> None:
        """Clean up after a process that was killed when its run was just done."""
        last = self.latest()
        if last and last.outcome != "done" and self.done():
            with suppress(ClaimError), self.claim():
                pass

    def done(self) -> bool:
        """Whether the record is there and intact."""
        return self._record_bytes() is not None

    def trouble(self) -> str:
        """What is wrong with the record of a run that is not done; nothing where there is none."""
        path = self.path("record.json")
        if not os.path.lexists(path):
            return ""
        try:
            check_regular(path, LARGEST_RECORD)
        except (OSError, ValueError) as error:
            return f"record.json: {error}"
        return "the record is not what was written"

    def checksum(self) -> str:
        """The SHA-256 of an intact record; otherwise nothing."""
        content = self._record_bytes()
        return "" if content is None else content.partition(b"\n")[0].split(b'"')[-2].decode()  # see `_header`

    def record(self) -> dict[str, Plain]:
        """The result of a run that is done."""
        content = self._record_bytes()
        if content is None:
            raise StoreError(f"the run {self.key} has no whole record; run the study again to make it")
        try:
            found = checked(parse_json(content), "what `finish` wrote", {"record": OBJECT})
        except ValueError as error:
            raise DamagedFileError(
                f"{self.path('record.json')} is not the record of a run: {error}. Move the folder away and run the study again"
            ) from error
        return cast(dict[str, Plain], found["record"])

    def _record_bytes(self) -> bytes | None:
        try:
            content = read_regular(self.path("record.json"), LARGEST_RECORD)
        except (FileNotFoundError, NotADirectoryError, ValueError):
            return None
        start = content.find(b"\n") + 1
        return content if content[:start] == _header(self.key, content[start:]) else None

    def _drop_what_was_for_resuming(self) -> None:
        shutil.rmtree(self.path("state"), ignore_errors=True)
        self.path("failure.txt").unlink(missing_ok=True)

    def _write_failure(self, error: BaseException | str) -> None:
        text = error if isinstance(error, str) else "".join(traceback.format_exception(error))
        with suppress(StoreError):  # the attempt still says in one line what happened
            write_in_store(self.path("failure.txt"), text.encode(errors="replace"), inside=self.folder)

    def _check_there(self) -> None:
        """Refuse to recreate a vanished folder by writing to it."""
        try:
            self.path("spec.json").stat()
        except (FileNotFoundError, NotADirectoryError):
            raise StoreGoneError(
                f"the folder of the run {self.key} is not there any more: {self.folder} was removed, renamed or unmounted. "
                "Put it back, or run the study again to start this run over"
            ) from None
        except OSError:
            pass

    def _check_claim(self) -> locks.Attempt:
        self._check_there()
        attempt = self.latest()
        if attempt is None or attempt.outcome or attempt.owner != Owner.this_process():
            raise ClaimError(
                f"this process does not hold the run {self.key}"
                + (f"; {attempt.owner} does" if attempt and not attempt.outcome else "")
                + ". Write within `with run.claim():`; a claim is lost when its process stands still for too long"
            )
        return attempt

    def _quarantine(self) -> None:
        place = (
            self.folder.parent.parent
            / "quarantine"
            / f"{self.key}-{time.strftime('%Y%m%dT%H%M%S')}-{uuid.uuid4().hex[:6]}"
        )
        with store_errors(place):
            place.parent.mkdir(exist_ok=True)
            place.mkdir()
            # The record last: until it has moved, whoever comes after a crash here still sees that everything is in doubt.
            for entry in sorted(self.folder.iterdir(), key=lambda entry: entry.name == "record.json"):
                if entry.name not in ("attempts", "spec.json"):
                    entry.rename(place / entry.name)


def _header(key: str, body: bytes) -> bytes:
    return f'{{"key": "{key}", "sha256": "{hashlib.sha256(body).hexdigest()}",\n'.encode()


def _one_line(error: BaseException | str) -> str:
    """The first line of an error, 300 characters at most; failure.txt has it whole."""
    text = error if isinstance(error, str) else f"{type(error).__name__}: {error}"
    return shorten(text.partition("\n")[0], 300, placeholder=" …")
