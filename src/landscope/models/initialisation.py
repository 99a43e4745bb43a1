"""How the weights of convolutions and linear layers start.

    pytorch     what the layers' constructors draw: U(−1/√fan_in, 1/√fan_in), biases too
    he          N(0, 2/fan_out) for convolutions, N(0, 2/fan_in) for linear layers, biases 0     (He et al. 2015)
    xavier      N(0, 2/(fan_in + fan_out)), biases 0                                     (Glorot and Bengio 2010)

Normalisation layers start at scale 1 and shift 0 under every scheme.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from torch import nn

__all__ = ["Initialisation", "initialise"]

Initialisation: TypeAlias = Literal["pytorch", "he", "xavier"]

_CONVOLUTIONS = (nn.Conv2d, nn.Conv3d, nn.ConvTranspose3d)


def initialise(model: nn.Module, scheme: Initialisation) -> None:
    """Draw the weights of every convolution and linear layer of `model` anew, in place.

    >>> layer = nn.Linear(3, 2)
    >>> initialise(layer, "he")
    >>> layer.bias.tolist()
    [0.0, 0.0]
    """
    if scheme == "pytorch":
        return
    for layer in model.modules():
        if not isinstance(layer, (*_CONVOLUTIONS, nn.Linear)):
            continue
        if scheme == "xavier":
            nn.init.xavier_normal_(layer.weight)
        else:
            mode: Literal["fan_in", "fan_out"] = "fan_in" if isinstance(layer, nn.Linear) else "fan_out"
            nn.init.kaiming_normal_(layer.weight, mode=mode, nonlinearity="relu")
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)
