"""Several processes, each with its own part of the data: sums are added up, and errors are raised everywhere."""

from __future__ import annotations

import time
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
from torch import Tensor

from landscope.core.errors import LandscopeError, LostProcessError

PATIENCE = 60.0
"""Seconds for which a process that has failed waits for the others to hear of it."""


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


def least(number: float) -> float:
    """The smallest of the numbers that the processes give.

    >>> least(3.0)
    3.0
    """
    return -largest(-number)[0]


def largest(*numbers: float, failed: Exception | None = None) -> list[float]:
    """The largest of each of some numbers over all processes, by a connection of its own that works while others are stuck.

    Where this process has `failed`, the others are given a while to come here, too. Raises `LostProcessError` where they do not.
    """
    if processes() == 1:
        return list(numbers)
    mine = torch.tensor(numbers, dtype=torch.float64)
    try:
        if not _come(failed):
            raise RuntimeError("another process did not come to where all of them report")
        dist.all_reduce(mine, op=dist.ReduceOp.MAX, group=_reports())
    except RuntimeError as error:
        raise LostProcessError(
            f"the processes that measure a model together have lost each other: {failed or error}. Start all of them again."
        ) from failed or error
    return mine.tolist()


def _come(failed: Exception | None) -> bool:
    """Come to where all report; a process that has failed looks first whether the others come, too.

    Otherwise it would wait for them in an exchange that nothing ends, and they for it in another one.
    """
    store = dist.distributed_c10d._get_default_store()
    turn: int = store.add(f"landscope/{dist.get_rank()}", 1)
    if failed is None:
        return True
    if "gloo" in str(failed) or isinstance(failed, dist.DistError):  # the connection itself is gone
        return False
    deadline = time.monotonic() + PATIENCE
    while any(store.add(f"landscope/{rank}", 0) < turn for rank in range(processes())):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


_groups: WeakKeyDictionary[dist.ProcessGroup, dist.ProcessGroup] = WeakKeyDictionary()


def _reports() -> dist.ProcessGroup:
    """A group on the CPU for what the processes report; made when all of them first do."""
    world = dist.group.WORLD
    assert world is not None, "there are several processes"
    if world not in _groups:
        _groups[world] = dist.new_group(backend="gloo")
    return _groups[world]


def anywhere(condition: bool) -> bool:
    """Whether something holds in any process: what all of them then act on.

    >>> anywhere(False)
    False
    """
    return least(0.0 if condition else 1.0) == 0.0


def raise_together(error: Exception | None, lost: bool = False) -> None:
    """Raise `error` here; where another process failed instead, raise too instead of waiting for it forever.

    With `lost` the others may wait elsewhere, for what this process did not come to any more (`largest`).
    """
    if processes() > 1:
        (failed,) = largest(error is not None, failed=error if lost else None)
        if failed and error is None:
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
