"""Strided 1×1 convolutions of few channels, whose weight gradient corrupts memory on a CPU.

If images lie channels-last, oneDNN reduces such a convolution to stride 1 in a workspace that is too small for fewer than 16
input channels (uxlfoundation/oneDNN#6035, in torch 2.13 as in earlier ones): wrong gradients at best, a dead process at worst.

    conv(x; stride s) = conv(x[::s, ::s]; stride 1)

needs no such workspace, in any layout.
"""

from __future__ import annotations

import math

from torch import Tensor, nn
from torch.nn.functional import conv2d, pad

_BLOCK = 16
"""Channels that the kernel takes at a time."""


def overruns(module: nn.Module) -> bool:
    """Whether the weight gradient of this module may write past its workspace.

    >>> overruns(nn.Conv2d(8, 16, 1, stride=2)), overruns(nn.Conv2d(16, 32, 1, stride=2)), overruns(nn.Conv2d(8, 16, 1))
    (True, False, False)
    """
    if not isinstance(module, nn.Conv2d) or isinstance(module, _Thinned):
        return False
    strided = math.prod(module.kernel_size) == 1 and math.prod(module.stride) > 1
    return strided and module.in_channels // module.groups < _BLOCK


def avoid_overruns(model: nn.Module) -> None:
    """Make plain convolutions that overrun drop the unused rows and columns first, in place.

    >>> layer = nn.Sequential(nn.Conv2d(8, 16, 1, stride=2))
    >>> avoid_overruns(layer)
    >>> overruns(layer[0])
    False
    """
    for module in model.modules():
        if type(module) is nn.Conv2d and overruns(module):
            module.__class__ = _Thinned


class _Thinned(nn.Conv2d):
    """The same convolution of only the rows and columns that it reads."""

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if any(self._reversed_padding_repeated_twice):
            how = "constant" if self.padding_mode == "zeros" else self.padding_mode
            input = pad(input, self._reversed_padding_repeated_twice, mode=how)
        down, across = self.stride
        return conv2d(input[..., ::down, ::across], weight, bias, groups=self.groups)
