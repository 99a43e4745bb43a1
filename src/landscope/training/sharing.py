"""Several processes train one model: each takes its share of every batch, and sums are added up.

Gradients of all parameters travel as one vector, already weighted by the rows of the whole batch, so that the sum is the
gradient of the batch whatever the shares: SAM's perturbation and FAM's penalty, which are functions of that gradient or linear
in the rows, come out as in one process. (torch's DistributedDataParallel averages over processes instead, which weighs rows
unequally when shares are, and hooks into the backward pass, of which SAM and FAM have several.)

BatchNorm normalises by each process's share; its running statistics are averaged over the processes at every step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from landscope.core.distributed import processes, sum_over_processes

Parts = TypeVar("Parts", Tensor, tuple[Tensor, ...])

__all__ = ["rank", "share", "share_statistics", "sum_gradients"]


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if processes() > 1 else 0


def share(parts: Parts) -> Parts:
    """This process's part of some rows or of a list, in runs as equal as can be.

    >>> share(torch.tensor([1, 2, 3]))
    tensor([1, 2, 3])
    """
    size, extra = divmod(len(parts), processes())
    start = rank() * size + min(rank(), extra)
    return parts[start : start + size + (rank() < extra)]


@torch.no_grad()
def sum_gradients(parameters: Sequence[nn.Parameter]) -> None:
    """Each gradient becomes the sum over the processes; one that no process has stays absent."""
    if processes() == 1:
        return
    kinds = {(p.dtype, p.device) for p in parameters}
    for dtype, device in sorted(kinds, key=str):
        alike = [p for p in parameters if (p.dtype, p.device) == (dtype, device)]
        present = torch.tensor([float(p.grad is not None) for p in alike], dtype=dtype, device=device)
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in alike]
        flat = sum_over_processes(torch.cat([present, *(g.reshape(-1) for g in gradients)]))
        found, rest = flat[: len(alike)].tolist(), flat[len(alike) :]
        for p, count, summed in zip(alike, found, rest.split([p.numel() for p in alike]), strict=True):
            # in the memory layout of the parameter, which fused optimizers rely on
            p.grad = torch.empty_like(p).copy_(summed.view(p.shape)) if count else None


@torch.no_grad()
def share_statistics(model: nn.Module) -> None:
    """Buffers become the mean over the processes; whole numbers those of process 0."""
    if processes() == 1:
        return
    for buffer in model.buffers():
        if buffer.is_floating_point():
            sum_over_processes(buffer).div_(processes())
        else:
            dist.broadcast(buffer, 0)
