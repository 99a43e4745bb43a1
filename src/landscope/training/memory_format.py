"""How images lie in memory: channels last where a spec asks for it, never where that is not safe."""

from __future__ import annotations

import torch
from torch import nn

from landscope.core.strided_pointwise import overruns
from landscope.training.spec import TrainingSpec

__all__ = ["memory_format"]


def memory_format(spec: TrainingSpec, model: nn.Module, device: torch.device) -> torch.memory_format:
    """The layout of the model's weights and of its images; as they came, if nothing speaks for another.

    With a convolution that overruns its workspace on a CPU it is the usual one, whatever is asked for and however the model
    came: there none overruns, and but for rounding the numbers are the same.

    >>> from landscope.training.spec import ModelSpec
    >>> shortcut = nn.Conv2d(8, 16, 1, stride=2)
    >>> memory_format(TrainingSpec(model=ModelSpec(name="mlp"), channels_last=True), shortcut, torch.device("cpu"))
    torch.contiguous_format
    """
    if device.type == "cpu" and any(overruns(module) for module in model.modules()):
        return torch.contiguous_format
    return torch.channels_last if spec.channels_last else torch.preserve_format
