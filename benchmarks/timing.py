"""The time of one call, shared by the benchmarks of this folder."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch


def seconds(function: Callable[[], object], device: torch.device) -> float:
    """Wall time of one call."""
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    function()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - start
