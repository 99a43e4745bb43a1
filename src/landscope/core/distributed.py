"""Several processes, each with its own part of the data: sums are added up, and errors are raised everywhere."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from landscope.core.errors import LandscopeError


def processes() -> int:
    """How many processes share the work.

    >>> processes()
    1
    """
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def sum_over_processes(tensor: Tensor) -> Tensor:
    """The sum of a tensor over all processes, the same bits on each of them (in place)."""
    if processes() > 1:
        dist.all_reduce(tensor, op=dist.ReduceOp.SUM)
    return tensor


def raise_together(error: Exception | None, device: torch.device) -> None:
    """Raise `error` here; where another process failed instead, raise too instead of waiting for it forever."""
    if processes() > 1:
        failed = torch.tensor([0.0 if error is None else 1.0], device=device)
        if sum_over_processes(failed).item() > 0 and error is None:
            raise LandscopeError("another process refused its model or data; its own message says why")
    if error is not None:
        raise error


# Moving small tensors from the CPU to a device without waiting for the work queued there.


def send(tensor: Tensor, device: torch.device) -> Tensor:
    """The tensor on a device. Copying ordinary memory to CUDA waits for all work queued before; copying pinned memory does not.

    >>> send(torch.arange(3), torch.device("cpu"))
    tensor([0, 1, 2])
    """
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
