"""Where and with what a run was made: versions, hardware, the commit of the code, and how much memory it took."""

from __future__ import annotations

import contextlib
import functools
import os
import platform
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import torch

from landscope.core.json import Plain

PACKAGES = ("torch", "numpy", "scipy")


def environment(device: torch.device) -> dict[str, Plain]:
    """Versions, hardware and commit, as plain values.

    >>> sorted(environment(torch.device("cpu")))
    ['commit', 'device', 'host', 'landscope', 'numpy', 'platform', 'processor', 'python', 'scipy', 'threads', 'torch']
    """
    import landscope

    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    return {
        "landscope": landscope.__version__,
        "commit": _commit(),
        "python": platform.python_version(),
        **{package: _version(package) for package in PACKAGES},
        "platform": platform.platform(),
        "processor": _processor(),
        "device": name,
        "threads": torch.get_num_threads(),
        "host": platform.node(),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


@functools.cache
def _commit() -> str | None:
    """The commit of the source tree that landscope is imported from, with "+" where files differ from it."""
    here = Path(__file__).resolve().parent

    def git(*words: str) -> str:
        done = subprocess.run(["git", "-C", str(here), *words], capture_output=True, text=True, timeout=10, check=True)
        return done.stdout.strip()

    try:
        if Path(git("rev-parse", "--show-toplevel")) not in here.parents:
            return None
        changed = git("status", "--porcelain", "--untracked-files=no", "--", str(here.parent))
        return git("rev-parse", "HEAD") + ("+" if changed else "")
    except (OSError, subprocess.SubprocessError):
        return None


@functools.cache
def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
        return f"{names[0]} × {os.cpu_count()}" if names else platform.processor()
    except OSError:
        return platform.processor()


def forget_peak_memory(device: torch.device) -> None:
    """Reset the peak, so that earlier runs of this process do not count."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with contextlib.suppress(OSError):  # only Linux can; elsewhere the peak is that of the process
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory(device: torch.device) -> int:
    """Bytes: of the accelerator where one is used, otherwise of the process."""
    if device.type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM"))
    except (OSError, StopIteration):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return int(peak if sys.platform == "darwin" else peak * 1024)
