"""Your own network and your own data, through `landscope measure` and a study.

    cd examples/own
    python bring_your_own.py                                   # trains the network your way and saves it
    landscope measure spirals.safetensors --model bring_your_own:network --data bring_your_own:spirals
    landscope study run study.yaml                             # trains it in several ways, measures all, writes a report

Landscope needs two functions: one that returns the module, one that returns the data.
"""

from __future__ import annotations

import math

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.utils.data import Dataset


class SpiralNet(nn.Module):
    """Any module will do: attention, recurrence, custom layers."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(2, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU())
        self.dropout = nn.Dropout(dropout)
        self.classifier = nn.Linear(width, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Logits of three classes."""
        return self.classifier(self.dropout(self.features(x)))


class Spirals(Dataset[tuple[Tensor, Tensor]]):
    """Any Dataset of (input, target) will do, as long as it gives the same rows every time."""

    def __init__(self, size: int, seed: int) -> None:
        rng = torch.Generator().manual_seed(seed)
        self.labels = torch.arange(size) % 3
        radius = torch.rand(size, generator=rng)
        angle = 4 * radius + self.labels * (2 * math.pi / 3) + 0.25 * torch.randn(size, generator=rng)
        self.points = torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1)

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.points[index], self.labels[index]


def network(width: int = 32, dropout: float = 0.0) -> nn.Module:
    """What `--model bring_your_own:network` and `model: bring_your_own:network` call."""
    return SpiralNet(width, dropout)


def spirals(size: int = 600) -> dict[str, Dataset[tuple[Tensor, Tensor]]]:
    """What `data: bring_your_own:spirals` calls: splits that have no row in common."""
    return {"train": Spirals(size, 0), "validation": Spirals(size // 2, 1), "test": Spirals(size, 2)}


def main() -> None:
    """Train as you always do; Landscope comes afterwards."""
    torch.manual_seed(0)
    model, train = network(), Spirals(600, 0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(train.points), train.labels)
        loss.backward()
        optimizer.step()
    save_file(model.state_dict(), "spirals.safetensors")
    print(f"training loss {loss.item():.3f}; weights in spirals.safetensors")


if __name__ == "__main__":
    main()
