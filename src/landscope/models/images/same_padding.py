"""Convolution with TensorFlow's "same" padding: output size ⌈input/stride⌉, the odd pixel of padding after the image.

PyTorch pads both sides alike, which for stride 2 samples other positions; networks whose weights or definition come
from TensorFlow need this one.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import pad

__all__ = ["SameConv2d"]


class SameConv2d(nn.Conv2d):
    """A convolution whose padding follows the size of its input.

    >>> import torch
    >>> SameConv2d(1, 1, 3, stride=2)(torch.zeros(1, 1, 32, 32)).shape
    torch.Size([1, 1, 16, 16])
    """

    def forward(self, x: Tensor) -> Tensor:
        """Pad the input and convolve it."""
        padding: list[int] = []
        for size, kernel, stride in zip(x.shape[:-3:-1], self.kernel_size[::-1], self.stride[::-1], strict=True):
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            padding += [total // 2, total - total // 2]
        return super().forward(pad(x, padding))
