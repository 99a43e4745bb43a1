"""Attempts at a run: who tries, since when, and how it ended. The latest open one is the lock.

    attempts/0001.json    {"owner": …, "since": …, "outcome": "stopped"}
    attempts/0002.json    {"owner": …, "since": …, "outcome": ""}         ← held, for as long as its owner lives

Taking a run means creating the file with the next number, which a filesystem lets exactly one process do. Numbers are never
reused and files never removed, so that breaking the lock of a dead owner is the same step as taking a free one, and a process
that was too slow finds the number taken: there is nothing to race for in between.

For an owner on this machine the process itself is looked up: once it is dead the run is free. One on another machine counts as
alive as long as its heartbeat, the file's time of change, is younger than `stale_after` seconds on the filesystem's own clock.
"""

from __future__ import annotations

import json
import os
import re
import socket
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

from landscope.core.errors import ClaimError, StoreFullError
from landscope.core.files import LARGEST_DOCUMENT, create, read_regular, store_errors, write_in_store
from landscope.core.json import Plain

# Which process this is, and whether another one still lives.
#
# A process number means something on one machine until it is used again. An owner is therefore named by the machine (its boot
# and its process namespace, so that containers are not taken for one another), the number, and when that process began.


@dataclass(frozen=True)
class Owner:
    """A process on some machine.

    >>> Owner.this_process().alive()
    True
    """

    host: str
    machine: str
    pid: int
    born: str

    @classmethod
    def this_process(cls) -> Owner:
        return _owner(os.getpid())

    @classmethod
    def from_dict(cls, plain: Mapping[str, Plain]) -> Owner:
        """The inverse of `to_dict`; `KeyError` or `TypeError` where it is none."""
        return cls(str(plain["host"]), str(plain["machine"]), int(str(plain["pid"])), str(plain["born"]))

    def to_dict(self) -> dict[str, Plain]:
        return asdict(self)

    def alive(self) -> bool | None:
        """Whether the process lives; None where only its own machine could say."""
        if self.machine != _machine() or os.name != "posix":
            return None
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:
            pass  # another user's, so the number is in use
        return _born(self.pid) in ("", self.born)

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


@lru_cache(maxsize=1)
def _owner(pid: int) -> Owner:
    return Owner(socket.gethostname(), _machine(), pid, _born(pid))


@lru_cache(maxsize=1)
def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}/{os.readlink('/proc/self/ns/pid')}"
    except OSError:  # not Linux
        return f"{socket.gethostname()}/{uuid.getnode():x}"


def _born(pid: int) -> str:
    """When a process began, in the kernel's ticks; empty where that is not known, "gone" for a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "gone" if fields[0] in "ZX" else fields[19]


STALE_AFTER = 120.0
"""Seconds without a heartbeat after which the owner on another machine counts as dead."""
BEATS = 8
"""Heartbeats in that time: a few may be late."""

Outcome = Literal["done", "failed", "stopped", "prepared"]
"""How an attempt ended; `prepared` was not an attempt, but a process that brought what the run starts from."""


@dataclass(frozen=True)
class Attempt:
    """One attempt at a run; `owner` is None where the file is empty or torn, `outcome` empty while it lasts."""

    number: int
    owner: Owner | None
    since: float
    beat: float
    outcome: str = ""
    error: str = ""

    def held(self, now: float, stale_after: float = STALE_AFTER) -> bool:
        if self.outcome or self.beat == 0:
            return False
        alive = self.owner.alive() if self.owner else None
        return now - self.beat < stale_after if alive is None else alive


def latest(folder: Path) -> Attempt | None:
    """The last attempt, from a folder of attempts."""
    try:
        number = max((int(name[:-5]) for name in os.listdir(folder) if re.fullmatch(r"\d+\.json", name)), default=0)
    except FileNotFoundError:
        return None
    return read(folder, number) if number else None


def read(folder: Path, number: int) -> Attempt:
    """One attempt and its current state."""
    path = _path(folder, number)
    beat = path.lstat().st_mtime
    try:
        plain = json.loads(read_regular(path, LARGEST_DOCUMENT))
        owner = Owner.from_dict(plain["owner"])
        return Attempt(number, owner, float(plain["since"]), beat, str(plain["outcome"]), str(plain["error"]))
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return Attempt(number, None, beat, beat)


def take(folder: Path, stale_after: float = STALE_AFTER) -> Attempt:
    """Begin the next attempt; `ClaimError` if somebody works on this one or is faster."""
    with store_errors(folder):
        folder.mkdir(exist_ok=True)
        last = latest(folder)
        if last and last.held(filesystem_now(folder), stale_after):
            raise ClaimError(
                f"the run {folder.parent.name} is being worked on by {last.owner or 'a process just starting'}"
            )
        mine = Attempt(last.number + 1 if last else 1, Owner.this_process(), time.time(), beat=time.time())
        if not create(_path(folder, mine.number), _content(mine)):
            raise ClaimError(f"the run {folder.parent.name} has just been taken by another process")
        return mine


def close(folder: Path, attempt: Attempt, outcome: Outcome, error: str = "") -> None:
    """End an attempt, unless a later one has begun."""
    ended = Attempt(attempt.number, attempt.owner, attempt.since, attempt.beat, outcome, error)
    try:
        write_in_store(_path(folder, attempt.number), _content(ended), flush=False, inside=folder)
    except StoreFullError:
        os.utime(_path(folder, attempt.number), (0, 0))  # takes no room; how it ended is lost, that it ended is not


@contextmanager
def beating(folder: Path, attempt: Attempt, stale_after: float = STALE_AFTER) -> Iterator[None]:
    """Renew the heartbeat of an attempt, from a thread, for as long as the block lasts."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(stale_after / BEATS):
            with suppress(OSError):  # a server that does not answer now may answer at the next beat
                os.utime(_path(folder, attempt.number))

    thread = threading.Thread(target=beat, name="landscope heartbeat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def filesystem_now(folder: Path) -> float:
    """The time by the clock that stamps the files of a folder, which on a network is the server's."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            return os.fstat(file.fileno()).st_mtime
    except OSError:  # to be read only
        return time.time()


def _path(folder: Path, number: int) -> Path:
    return folder / f"{number:04d}.json"


def _content(attempt: Attempt) -> bytes:
    owner = attempt.owner.to_dict() if attempt.owner else None
    plain = {"owner": owner, "since": attempt.since, "outcome": attempt.outcome, "error": attempt.error}
    return json.dumps(plain, indent=1).encode()
