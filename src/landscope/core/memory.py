"""How much memory is free, and which errors mean that there is none left."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import SupportsFloat

import torch

from landscope.core.errors import SpecError

GPU_SHARE = "LANDSCOPE_GPU_SHARE"
"""The part of a graphics card's memory that this process may use, where several processes work on one card."""

SIGNS = ("DefaultCPUAllocator", "out of memory", "_STATUS_ALLOC_FAILED", "cusolverDnCreate(", "cublasCreate(")
"""What errors of libraries say where an allocation failed; the last two are those that begin a library on a card."""


def keep_to_gpu_share() -> None:
    """Have torch refuse what goes beyond `GPU_SHARE`, so that processes that share a card do not starve each other."""
    if GPU_SHARE in os.environ and torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(float(os.environ[GPU_SHARE]))


@contextmanager
def beyond_gpu_share() -> Iterator[bool]:
    """Whether this process has only a part of a card; inside the block it may use whatever its neighbours have left free.

    >>> with beyond_gpu_share() as more:
    ...     print(more)
    False
    """
    share = os.environ.get(GPU_SHARE)
    if share is None or not torch.cuda.is_available():
        yield False
        return
    _allow(1.0)
    del os.environ[GPU_SHARE]
    try:
        yield True
    finally:
        os.environ[GPU_SHARE] = share
        _allow(float(share))


def _allow(part: float) -> None:
    """Give back what torch holds and does not use, and set how much it may hold."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(part)


_allowed: ContextVar[tuple[int, int] | None] = ContextVar("allowed", default=None)


def allowance(most: SupportsFloat | None, device: torch.device) -> tuple[int, int] | None:
    """What `at_most` is given: a number of bytes, and how many are allocated on a GPU by now; `None` for no limit."""
    if most is None:
        return None
    if not float(most) > 0:
        raise SpecError(f"max_bytes must be a positive number of bytes, got {most!r}; leave it out for no limit")
    return int(float(most)), torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


@contextmanager
def at_most(allowed: tuple[int, int] | None) -> Iterator[None]:
    """Inside, no more counts as available than the first number; on a GPU, beside the second, what was allocated before.

    >>> with at_most((1000, 0)):
    ...     available_bytes(torch.device("cpu"))
    1000
    """
    before = _allowed.set(allowed)
    try:
        yield
    finally:
        _allowed.reset(before)


def available_bytes(device: torch.device) -> int:
    """Bytes that can be allocated on a device now, container limits included, and no more than is allowed (`at_most`).

    >>> available_bytes(torch.device("cpu")) > 0
    True
    """
    free, allowed = _free_bytes(device), _allowed.get()
    if allowed is None:
        return free
    most, before = allowed
    taken = torch.cuda.memory_allocated(device) - before if device.type == "cuda" else 0
    return max(1, min(free, most - taken))


def _free_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        reserved = torch.cuda.memory_reserved(device)
        allowed = float(os.environ.get(GPU_SHARE, 1.0)) * total - reserved
        return int(max(0.0, min(free, allowed)) + reserved - torch.cuda.memory_allocated(device))
    limits = [_system_available(), *_container_available()]
    return max(min(limits), 64 * 2**20)


def _system_available() -> int:
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    except (AttributeError, ValueError, OSError):
        return 4 * 2**30


def _container_available() -> list[int]:
    """What the control group still allows, if there is one."""
    root = Path("/sys/fs/cgroup")
    for limit, used in (
        (root / "memory.max", root / "memory.current"),
        (root / "memory/memory.limit_in_bytes", root / "memory/memory.usage_in_bytes"),
    ):
        try:
            return [int(limit.read_text()) - int(used.read_text())]
        except (OSError, ValueError):
            continue
    return []


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that an allocation failed, on whatever device.

    >>> is_out_of_memory(RuntimeError("[enforce fail at alloc_cpu.cpp:117] DefaultCPUAllocator: can't allocate memory"))
    True
    >>> is_out_of_memory(RuntimeError("cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(handle)`"))
    True
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in SIGNS)
