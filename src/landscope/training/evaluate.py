"""Loss and error over samples, in evaluation mode, in large batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from landscope.core.distributed import processes, sum_over_processes
from landscope.data import Split
from landscope.probe.loss.answers import right_labels
from landscope.training.task import Task, evaluating

# Several processes train one model: each takes its share of every batch, and sums are added up.
#
# Gradients of all parameters travel as one vector, already weighted by the samples of the whole batch, so that the sum is the
# gradient of the batch whatever the shares: SAM's perturbation and FAM's penalty, which are functions of that gradient or
# linear in the samples, come out as in one process. (torch's DistributedDataParallel averages over processes instead, which
# weighs samples unequally when shares are, and hooks into the backward pass, of which SAM and FAM have several.)
#
# BatchNorm normalises by each process's share; its running statistics are averaged over the processes at every step.


Parts = TypeVar("Parts", Tensor, tuple[Tensor, ...])


def rank() -> int:
    """The number of this process, from 0."""
    return dist.get_rank() if processes() > 1 else 0


def share(parts: Parts) -> Parts:
    """This process's part of some samples or of a list, in runs as equal as can be.

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


ELEMENTS, SAMPLES = 2**22, 2_000
"""The numbers in one batch of inputs, and its samples, at most."""


@dataclass(frozen=True)
class SplitScore:
    """Mean loss over samples, and the share of them whose class is wrong; `None` without classes."""

    loss: float
    error: float | None = None


def autocast(task: Task, device: torch.device) -> torch.autocast:
    """The precision of the forward pass."""
    lower = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(task.spec.precision)
    return torch.autocast(device.type, dtype=lower or torch.bfloat16, enabled=lower is not None)


def precise(device: torch.device) -> torch.dtype:
    """The type that sums are kept in: float64 where the device has it."""
    return torch.float32 if device.type == "mps" else torch.float64


def mistakes(outputs: Tensor, targets: Tensor) -> Tensor:
    """How many samples get the wrong class, by the largest output, or by the sign of a single one.

    >>> mistakes(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))
    tensor(1)
    """
    if outputs.dim() == 1 or outputs.shape[1] == 1:
        return (~right_labels(outputs.reshape(len(targets)), targets, None)).sum()
    return (~right_labels(outputs, targets, 1)).sum()


@torch.no_grad()
def evaluate(task: Task, model: nn.Module, split: Split) -> SplitScore | None:
    """The score of a model on a split, shared out over the processes; `None` for a split without samples."""
    x, y = split
    if not len(y):
        return None
    size = max(1, min(SAMPLES, ELEMENTS // max(1, x[0].numel())))
    sums = torch.zeros(2, dtype=precise(y.device), device=y.device)
    with evaluating(model):
        for samples in share(torch.arange(len(y), device=y.device).split(size)):
            part, targets = x[samples], y[samples]
            with autocast(task, y.device):
                outputs = task.forward(model, part)
                loss = task.loss.sum(outputs, targets, len(samples))
            wrong = mistakes(outputs, targets) if task.classes else torch.zeros_like(loss)
            sums += torch.stack([loss.to(sums.dtype), wrong.to(sums.dtype)])
    loss, wrong = (sum_over_processes(sums) / len(y)).tolist()
    return SplitScore(loss, wrong if task.classes else None)
