"""Layers of a network that was left in evaluation mode: they train for some steps, then stand still for good.

A loop that calls `model.eval()` to test after its first epoch, and never `model.train()` again, keeps updating the weights with
dropout off and with BatchNorm normalising by the running statistics of that first epoch. The network then fits those statistics,
and they drift away from those of its own activations: the first pass in training mode replaces them and raises the loss.

The layers count their steps in buffers, so that a checkpoint holds the count and many members of a pool can share one program.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout

__all__ = ["leave_in_evaluation", "return_to_training"]


class LeftBatchNorm2d(nn.BatchNorm2d):
    """BatchNorm that normalises by its running statistics, which no longer move, after `steps` batches in training mode."""

    steps: int | None = None

    def forward(self, input: Tensor) -> Tensor:
        """Of images (n, channels, height, width)."""
        if not self.training or self.steps is None:
            return super().forward(input)
        assert self.running_mean is not None
        assert self.running_var is not None
        assert self.num_batches_tracked is not None
        assert self.momentum is not None
        left = self.num_batches_tracked >= self.steps
        var, mean = torch.var_mean(input, (0, 2, 3), correction=0)
        rows = input.numel() // input.shape[1]
        with torch.no_grad():
            share = self.momentum * (~left).to(input.dtype)
            now = (self.running_mean.clone(), self.running_var.clone())
            self.running_mean.copy_(torch.lerp(now[0], mean, share))
            self.running_var.copy_(torch.lerp(now[1], var * (rows / (rows - 1)), share))
            self.num_batches_tracked.add_((~left).long())
        mean, var = torch.where(left, now[0], mean), torch.where(left, now[1], var)
        scale = self.weight * (var + self.eps).rsqrt()
        return input * scale[:, None, None] + (self.bias - mean * scale)[:, None, None]


class LeftDropout(nn.Dropout):
    """Dropout that lets everything through after `steps` batches in training mode."""

    steps: int | None = None
    seen: Tensor

    def __init__(self, p: float) -> None:
        super().__init__(p)
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, input: Tensor) -> Tensor:
        """The input with a share p of its entries set to 0 and the others scaled up, or as it is."""
        if not self.training or self.steps is None:
            return super().forward(input)
        left = self.seen >= self.steps
        with torch.no_grad():
            self.seen.add_((~left).long())
        return torch.where(left, input, dropout(input, self.p))


def leave_in_evaluation(model: nn.Module, steps: int) -> nn.Module:
    """The model, its BatchNorm2d and dropout layers exchanged for ones that stand still after `steps` training steps.

    >>> net = leave_in_evaluation(nn.Sequential(nn.BatchNorm2d(1), nn.Dropout(0.5)), steps=1).train()
    >>> x = torch.arange(4.0).reshape(2, 1, 1, 2)
    >>> _ = net(x)                                            # the only step that moves the statistics
    >>> net(x).equal(net.eval()(x)), net[0].running_mean, int(net[0].num_batches_tracked)
    (True, tensor([0.1500]), 1)
    """
    for name, child in model.named_children():
        new: LeftBatchNorm2d | LeftDropout
        if type(child) is nn.BatchNorm2d:
            new = LeftBatchNorm2d(child.num_features, child.eps, child.momentum)
            new.load_state_dict(child.state_dict())
        elif type(child) is nn.Dropout:
            new = LeftDropout(child.p)
        else:
            leave_in_evaluation(child, steps)
            continue
        new.steps = steps
        setattr(model, name, new)
    return model


def return_to_training(model: nn.Module) -> None:
    """Put the model into training mode; layers that were left in evaluation mode are ordinary ones from now on."""
    model.train()
    for module in model.modules():
        if isinstance(module, LeftBatchNorm2d | LeftDropout):
            module.steps = None
