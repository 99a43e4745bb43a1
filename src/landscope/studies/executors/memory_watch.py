"""How much memory the workers took, and whether another one would fit."""

from __future__ import annotations

from pathlib import Path

import torch

from landscope.core.memory import available_bytes

__all__ = ["MemoryWatch", "oom_kills"]


class MemoryWatch:
    """The largest peak that any worker has had.

    >>> watch = MemoryWatch(expected=10**18)
    >>> watch.allows(), MemoryWatch().allows()
    (False, True)
    """

    def __init__(self, expected: int = 0) -> None:
        self.peak = expected

    def observe(self, pid: int) -> None:
        """Take note of a worker's peak so far."""
        self.peak = max(self.peak, _bytes(pid, "VmHWM"))

    def allows(self, pid: int | None = None) -> bool:
        """Whether a run as large as the largest fits into what is free, in a new worker or in one that is there."""
        present = 0 if pid is None else _bytes(pid, "VmRSS")
        return available_bytes(torch.device("cpu")) >= self.peak - present


def oom_kills() -> int:
    """How many processes the kernel has killed so far because memory ran out; 0 where it does not tell."""
    count = 0
    for counters in (Path("/proc/vmstat"), Path("/sys/fs/cgroup/memory.events")):
        try:
            lines = counters.read_text().splitlines()
        except OSError:
            continue
        count += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return count


def _bytes(pid: int, field: str) -> int:
    """A field of the kernel's account of a process; 0 where there is none."""
    try:
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    return 0
