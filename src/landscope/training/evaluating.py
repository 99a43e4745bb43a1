"""Loss and error over rows, in evaluation mode, in large batches."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from landscope.core.distributed import sum_over_processes
from landscope.data import Split
from landscope.training.sharing import share
from landscope.training.sources import Task

__all__ = ["Score", "autocast", "evaluate", "mistakes", "precise"]

ELEMENTS, ROWS = 2**22, 2_000
"""The numbers in one batch of inputs, and its rows, at most."""


@dataclass(frozen=True)
class Score:
    """Mean loss over rows, and the share of them whose class is wrong; `None` without classes."""

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
    """How many rows are put into the wrong class: by the largest output, or by the sign of a single one.

    >>> mistakes(torch.tensor([[1.0, 0.0], [1.0, 0.0]]), torch.tensor([0, 1]))
    tensor(1)
    """
    if outputs.dim() == 1 or outputs.shape[1] == 1:
        return ((outputs.reshape(len(targets)) > 0) != (targets > 0)).sum()
    return (outputs.argmax(1) != targets).sum()


@torch.no_grad()
def evaluate(task: Task, model: nn.Module, split: Split) -> Score | None:
    """The score of a model on a split, shared out over the processes; `None` for a split without rows."""
    x, y = split
    if not len(y):
        return None
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    size = max(1, min(ROWS, ELEMENTS // max(1, x[0].numel())))
    sums = torch.zeros(2, dtype=precise(y.device), device=y.device)
    try:
        for rows in share(torch.arange(len(y), device=y.device).split(size)):
            part, targets = x[rows], y[rows]
            with autocast(task, y.device):
                outputs = task.forward(model, part)
                loss = task.loss.sum(outputs, targets, len(rows))
            wrong = mistakes(outputs, targets) if task.classes else torch.zeros_like(loss)
            sums += torch.stack([loss.to(sums.dtype), wrong.to(sums.dtype)])
    finally:
        for module, mode in modes:
            module.training = mode
    loss, wrong = (sum_over_processes(sums) / len(y)).tolist()
    return Score(loss, wrong if task.classes else None)
