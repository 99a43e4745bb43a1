"""The most memory that a process uses at once."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import torch


class Memory:
    """Bytes that are used at the peak, from now on."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == "cuda"
        if self._cuda:
            torch.cuda.reset_peak_memory_stats()
            return
        with suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")  # forgets the peak so far
        self._before = self._read("VmRSS")

    def peak(self) -> int:
        """Above what was in use; on a GPU, all of it."""
        return torch.cuda.max_memory_allocated() if self._cuda else max(self._read("VmHWM") - self._before, 0)

    @staticmethod
    def _read(what: str) -> int:
        try:
            lines = Path("/proc/self/status").read_text().splitlines()
        except OSError:
            return 0
        return next((1024 * int(line.split()[1]) for line in lines if line.startswith(what)), 0)
