"""The plain convolutional network that most people write first, for the studies of this folder."""

from torch import nn


def convolutional(channels: int = 16, hidden: int = 64) -> nn.Module:
    """Two 3×3 convolutions of stride 2, a hidden layer, ten classes; for 1×28×28."""
    return nn.Sequential(
        nn.Conv2d(1, channels, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(2 * channels * 7 * 7, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 10),
    )
