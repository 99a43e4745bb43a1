"""Targets that are probabilities: whether those of each prediction add up to one.

With weights y_c on the classes, cross-entropy curves as (Σ_c y_c) (diag(p) − p pᵀ) in the logits: what holds for labels (the
closed form of a softmax head, the Gauss–Newton matrix being the Fisher matrix) holds for weights that add up to one.
"""

from __future__ import annotations

import torch
from torch import Tensor

from landscope.core.distributed import sum_over_processes
from landscope.core.probe import Probe
from landscope.measures.shared import once_per_probe

__all__ = ["targets_add_up_to_one"]

ROUNDING = 1e-5
"""How far the sum of float32 probabilities may be from one."""


@once_per_probe
def targets_add_up_to_one(probe: Probe) -> bool:
    """Whether all targets are class labels, or weights on the classes (dimension 1) that add up to one.

    >>> soft = torch.tensor([[0.5, 0.5], [1.0, 1.0]])
    >>> net, loss = torch.nn.Linear(2, 2), torch.nn.CrossEntropyLoss()
    >>> [targets_add_up_to_one(Probe(net, (torch.eye(2), y), loss)) for y in (soft, soft[:1].repeat(2, 1))]
    [False, True]
    """
    first = probe.targets(next(probe.batches()))
    if not (isinstance(first, Tensor) and first.is_floating_point()):
        return isinstance(first, Tensor)
    off = torch.zeros((), dtype=torch.float64, device=probe.device)
    for batch in probe.batches():
        targets = probe.targets(batch)
        assert isinstance(targets, Tensor), "of one kind in all batches"
        if targets.dim() < 2:
            return False
        off += float(((targets.double().sum(1) - 1).abs() > ROUNDING).sum())
    return float(sum_over_processes(off)) == 0
