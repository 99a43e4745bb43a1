"""Averages of the iterates.

    swa   the plain mean of the weights at the ends of epochs (Izmailov et al. 2018); with Adam, decoupled decay and half the
          learning rate it is Gadam (Granziol et al. 2020)
    ema   a ← decay·a + (1 − decay)·w after every optimizer step

Only weights are averaged; BatchNorm statistics belong to weights, so they are computed afresh for the average, from
the un-augmented training data, each batch weighing as many samples as it has.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from landscope.training.task import Forward, Task, evaluating


def averaged_model(task: Task, model: nn.Module, weights: Mapping[str, Tensor]) -> nn.Module:
    """A copy of the model with averaged weights and BatchNorm statistics that belong to them."""
    twin = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in twin.named_parameters():
            if name in weights:
                parameter.copy_(weights[name])
    x, size = task.train.x, task.spec.batch_size
    recompute_statistics(twin, task.forward, x, len(x) if size == "full" else size)
    return twin


@torch.no_grad()
def recompute_statistics(model: nn.Module, forward: Forward, x: Tensor, batch_size: int) -> None:
    """Set BatchNorm's running mean and variance to the mean over the batches of x, by their sizes; nothing else moves.

    Dropout and the like are off. A last batch of one sample, which has no variance, joins the batch before it.
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
    seen = 0
    try:
        with evaluating(model):
            for layer in layers:
                layer.reset_running_stats()
                layer.train()
            for batch in _batches(x, batch_size):
                seen += len(batch)
                for layer in layers:
                    layer.momentum = len(batch) / seen
                forward(model, batch)
    finally:
        for layer, momentum in zip(layers, momenta, strict=True):
            layer.momentum = momentum


def _batches(x: Tensor, batch_size: int) -> Sequence[Tensor]:
    starts = list(range(0, len(x), batch_size))
    if len(starts) > 1 and len(x) - starts[-1] == 1:
        starts.pop()
    return [x[start:stop] for start, stop in zip(starts, [*starts[1:], len(x)], strict=True)]
