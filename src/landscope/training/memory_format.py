"""Whether images are laid out with their channels last, where a spec asks for it and that is safe."""

from __future__ import annotations

import torch
from torch import nn

from landscope.core.strided_pointwise import overruns
from landscope.training.spec import TrainingSpec

__all__ = ["channels_last"]


def channels_last(spec: TrainingSpec, model: nn.Module, device: torch.device) -> bool:
    """Whether the model and its images are channels-last: on a CPU, not with a convolution that overruns its workspace.

    In the usual layout none does, and but for rounding the numbers are the same.

    >>> from landscope.training.spec import ModelSpec
    >>> shortcut = nn.Conv2d(8, 16, 1, stride=2)
    >>> channels_last(TrainingSpec(model=ModelSpec(name="mlp"), channels_last=True), shortcut, torch.device("cpu"))
    False
    """
    if not spec.channels_last or device.type != "cpu":
        return spec.channels_last
    return not any(overruns(module) for module in model.modules())
