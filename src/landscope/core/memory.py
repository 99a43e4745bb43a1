"""How much memory is free, and which errors mean that there is none left."""

from __future__ import annotations

import os
from pathlib import Path

import torch

__all__ = ["GPU_SHARE", "available_bytes", "is_out_of_memory", "keep_to_gpu_share"]

GPU_SHARE = "LANDSCOPE_GPU_SHARE"
"""The part of a graphics card's memory that this process may use, where several processes work on one card."""


def keep_to_gpu_share() -> None:
    """Have torch refuse what goes beyond `GPU_SHARE`, so that processes that share a card do not starve each other."""
    if GPU_SHARE in os.environ and torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(float(os.environ[GPU_SHARE]))


def available_bytes(device: torch.device) -> int:
    """Bytes that can be allocated on a device now, container limits included.

    >>> available_bytes(torch.device("cpu")) > 0
    True
    """
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
    """What the control group still allows, where there is one."""
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
    """
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    text = str(error)
    return isinstance(error, RuntimeError) and (
        "DefaultCPUAllocator" in text or "out of memory" in text or "CUDNN_STATUS_ALLOC_FAILED" in text
    )
