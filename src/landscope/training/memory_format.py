"""Whether images are laid out with their channels last, where a spec asks for it and that is safe."""

from __future__ import annotations

import math

import torch
from torch import nn

from landscope.training.spec import TrainingSpec

__all__ = ["channels_last"]

_BLOCK = 16
"""Channels that the kernels of a CPU take at a time."""


def channels_last(spec: TrainingSpec, model: nn.Module, device: torch.device) -> bool:
    """Whether the model and its images are channels-last: on a CPU, not with a narrow strided 1×1 convolution.

    The weight gradient of such a convolution, with fewer than 16 input channels, writes past its workspace there
    (oneDNN issue 6035, in torch 2.13 as in earlier ones): wrong gradients at best, a dead process at worst. In the usual
    layout it does not, and but for rounding the numbers are the same.

    >>> from landscope.training.spec import ModelSpec
    >>> shortcut = nn.Conv2d(8, 16, 1, stride=2)
    >>> channels_last(TrainingSpec(model=ModelSpec(name="mlp"), channels_last=True), shortcut, torch.device("cpu"))
    False
    """
    if not spec.channels_last or device.type != "cpu":
        return spec.channels_last
    return not any(_overruns(module) for module in model.modules())


def _overruns(module: nn.Module) -> bool:
    if not isinstance(module, nn.Conv2d):
        return False
    pointwise_strided = math.prod(module.kernel_size) == 1 and math.prod(module.stride) > 1
    return pointwise_strided and module.in_channels // module.groups < _BLOCK
