"""Averages of the iterates.

    swa   the plain mean of the weights at the ends of epochs (Izmailov et al. 2018); with Adam, decoupled decay and half the
          learning rate it is Gadam (Granziol et al. 2020)
    ema   a ← decay·a + (1 − decay)·w after every optimizer step

The average has weights of its own only; BatchNorm statistics belong to weights, so they are computed afresh for it, from
the un-augmented training data, each batch weighing as many rows as it has.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from landscope.training.task import Forward

__all__ = ["Average", "averaged_model", "recompute_statistics"]


class Average:
    """A running average of a model's parameters: equal weights, or exponential with `decay`.

    >>> net = nn.Linear(1, 1, bias=False)
    >>> average = Average(net)
    >>> for value in (1.0, 2.0, 6.0):
    ...     _ = nn.init.constant_(net.weight, value)
    ...     average.take()
    >>> average.weights[0], average.count
    (tensor([[3.]]), 3)
    """

    def __init__(self, model: nn.Module, decay: float | None = None) -> None:
        self._parameters: list[Tensor] = list(model.parameters())
        self._decay = decay
        self.weights: list[Tensor] = []
        self.count = 0

    @torch.no_grad()
    def take(self) -> None:
        """Take the present weights into the average."""
        self.count += 1
        if self.count == 1:
            self.weights = [parameter.detach().clone() for parameter in self._parameters]
            return
        share = 1 / self.count if self._decay is None else 1 - self._decay
        torch._foreach_lerp_(self.weights, self._parameters, share)

    def load(self, weights: Sequence[Tensor], count: int) -> None:
        """Go on from an average of `count` iterates."""
        self.count = count
        self.weights = (
            [torch.empty_like(here).copy_(value) for here, value in zip(self._parameters, weights, strict=True)]
            if count
            else []
        )


def averaged_model(
    model: nn.Module, weights: Sequence[Tensor], forward: Forward, x: Tensor, batch_size: int
) -> nn.Module:
    """A copy of the model with averaged weights and BatchNorm statistics that belong to them."""
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for parameter, value in zip(twin.parameters(), weights, strict=True):
            parameter.copy_(value)
    recompute_statistics(twin, forward, x, batch_size)
    return twin


@torch.no_grad()
def recompute_statistics(model: nn.Module, forward: Forward, x: Tensor, batch_size: int) -> None:
    """BatchNorm's running mean and variance as the mean over the batches of x, by their sizes; nothing else moves.

    Dropout and the like are off meanwhile. A last batch of one row is left to the batch before it, since one row has no variance.
    Cost: one forward pass over x.

    >>> layer = nn.BatchNorm1d(1)
    >>> recompute_statistics(layer, lambda net, x: net(x), torch.tensor([[0.0], [2.0], [4.0]]), batch_size=2)
    >>> layer.running_mean
    tensor([2.])
    """
    layers = [m for m in model.modules() if isinstance(m, _BatchNorm) and m.track_running_stats]
    if not layers:
        return
    momenta = [layer.momentum for layer in layers]
    was_training = [(module, module.training) for module in model.modules()]
    model.eval()
    for layer in layers:
        layer.reset_running_stats()
        layer.train()
    seen = 0
    try:
        for batch in _batches(x, batch_size):
            seen += len(batch)
            for layer in layers:
                layer.momentum = len(batch) / seen
            forward(model, batch)
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum
        for module, mode in was_training:
            module.training = mode


def _batches(x: Tensor, batch_size: int) -> Sequence[Tensor]:
    starts = list(range(0, len(x), batch_size))
    if len(starts) > 1 and len(x) - starts[-1] == 1:
        starts.pop()
    return [x[start:stop] for start, stop in zip(starts, [*starts[1:], len(x)], strict=True)]
