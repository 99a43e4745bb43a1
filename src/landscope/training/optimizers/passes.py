"""One evaluation of a loss with its gradients, as sharpness-aware steps need two of."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.nn.parallel import DistributedDataParallel

__all__ = ["accumulate_gradients", "without_averaging"]


def accumulate_gradients(closure: Callable[[], Tensor], scaler: GradScaler | None = None, share: float = 1.0) -> Tensor:
    """Add the gradients of `share` times the loss, scaled where there is a scaler; the plain loss is returned.

    >>> w = torch.tensor(3.0, requires_grad=True)
    >>> accumulate_gradients(lambda: w * w, share=0.5), w.grad
    (tensor(9.), tensor(3.))
    """
    with torch.enable_grad():
        loss = closure()
        weighted = share * loss
        (weighted if scaler is None else scaler.scale(weighted)).backward()
    return loss.detach()


def without_averaging(model: nn.Module | None) -> AbstractContextManager[None]:
    """Inside, each process of a `DistributedDataParallel` keeps its gradients to itself."""
    return model.no_sync() if isinstance(model, DistributedDataParallel) else nullcontext()
