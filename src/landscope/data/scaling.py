"""From bytes to the numbers a network sees: [0, 1], [−1, 1], or mean 0 and deviation 1 per channel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from landscope.core.errors import NotApplicableError

__all__ = ["Pixels", "scaled"]

Pixels = Literal["unit", "raw", "standard", "symmetric"]


def scaled(x: Tensor, pixels: Pixels, mean: Tensor | Sequence[float], std: Tensor | Sequence[float]) -> Tensor:
    """Inputs on a scale; bytes are divided by 255 first, row numbers and token ids stay as they are.

    >>> scaled(torch.tensor([[[[0, 255]]]], dtype=torch.uint8), "symmetric", (), ())
    tensor([[[[-1.,  1.]]]])
    """
    if pixels == "raw" or not (x.dtype == torch.uint8 or x.is_floating_point()):
        return x
    unit = x.float().div_(255) if x.dtype == torch.uint8 else x
    if pixels == "symmetric":
        if x.ndim != 4:
            raise NotApplicableError(f'pixels="symmetric" is for images; these inputs have shape {tuple(x.shape[1:])}')
        return unit * 2 - 1
    if pixels == "standard":
        shape = (1, -1) + (1,) * (x.ndim - 2)
        centre, width = (torch.as_tensor(m, dtype=torch.float32, device=x.device).reshape(shape) for m in (mean, std))
        # A channel or column that never changes is left at 0 instead of being divided by 0.
        return (unit - centre) / torch.where(width > 0, width, torch.ones_like(width))
    return unit
