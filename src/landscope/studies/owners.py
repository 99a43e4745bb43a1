"""Which process this is, and whether another one still lives.

A process number means something on one machine until it is used again. An owner is therefore named by the machine (its boot
and its process namespace, so that containers are not taken for one another), the number, and when that process began.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path

from landscope.core.schema import Plain

__all__ = ["Owner"]


@dataclass(frozen=True)
class Owner:
    """A process somewhere.

    >>> Owner.this_process().alive()
    True
    """

    host: str
    machine: str
    pid: int
    born: str

    @classmethod
    def this_process(cls) -> Owner:
        """The process that asks."""
        return _owner(os.getpid())

    @classmethod
    def from_dict(cls, plain: Mapping[str, Plain]) -> Owner:
        """The inverse of `to_dict`; `KeyError` or `TypeError` where it is none."""
        return cls(str(plain["host"]), str(plain["machine"]), int(str(plain["pid"])), str(plain["born"]))

    def to_dict(self) -> dict[str, Plain]:
        """Plain values only."""
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
    """When a process began, in the kernel's ticks; empty where that is not told, "gone" for one that is only waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "gone" if fields[0] in "ZX" else fields[19]
