"""Passes that leave the running statistics of normalisation layers where they are.

Sharpness-aware steps evaluate a batch twice, the second time at perturbed weights. The running mean and variance that a network
will be evaluated with belong to the weights it keeps, so only the first pass may move them; both passes normalise by the
batch (Foret et al. 2021 do so too).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.modules.instancenorm import _InstanceNorm

__all__ = ["frozen_statistics"]


@contextmanager
def frozen_statistics(model: nn.Module | None) -> Iterator[None]:
    """Inside, no running mean, variance or count of batches moves; what the layers compute is unchanged.

    Layers in training mode normalise by the batch, layers in evaluation mode by their running statistics, also where the mode is
    changed inside. Momentum (None included) is not touched, and everything is put back whatever happens. `None` freezes
    nothing.

    >>> import torch
    >>> layer = nn.BatchNorm1d(2)
    >>> with frozen_statistics(layer):
    ...     outputs = layer(torch.tensor([[1.0, 2.0], [3.0, 6.0]]))
    >>> outputs[0], layer.running_mean, int(layer.num_batches_tracked)
    (tensor([-1.0000, -1.0000], grad_fn=<SelectBackward0>), tensor([0., 0.]), 0)
    """
    layers = [] if model is None else [m for m in model.modules() if isinstance(m, _NormBase) and m.track_running_stats]
    tracked = [layer for layer in layers if not isinstance(layer, _InstanceNorm)]
    instance = [layer for layer in layers if isinstance(layer, _InstanceNorm)]
    # an instance norm that does not track would ignore its statistics in evaluation mode: it gets copies to write to
    kept = [(layer, name, buffer) for layer in instance for name, buffer in layer.named_buffers(recurse=False)]
    try:
        for layer in tracked:
            layer.track_running_stats = False
        for layer, name, buffer in kept:
            setattr(layer, name, buffer.clone())
        yield
    finally:
        for layer in tracked:
            layer.track_running_stats = True
        for layer, name, buffer in kept:
            setattr(layer, name, buffer)
