"""The networks of the comparison and their data: the same weights and samples for every tool.

Data are made from a seed: a pattern for each class and noise, so that nothing has to be downloaded; one label in twenty is
wrong. A network is trained on them for a few epochs, once, and kept in a file that every process reads: curvature at random
weights is not what people measure.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Kind = Literal["mlp", "transformer", "resnet20", "resnet18"]
Size = Literal["tiny", "cpu", "gpu"]

PIXELS, TOKENS, VOCABULARY = 64, 16, 50
"""Inputs of the MLP; length of a text and number of words of the transformer."""


@dataclass(frozen=True, kw_only=True)
class Network:
    """A network, its data, and the batches in which tools are given them."""

    kind: Kind
    samples: int
    batch: int
    epochs: int
    classes: int = 10
    width: int = 32
    """Hidden units of the MLP, width of the transformer; of no meaning for the others."""
    seed: int = 0

    @property
    def key(self) -> str:
        """Changes with everything that changes the weights or the data."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:12]

    def build(self) -> nn.Module:
        """The module, with weights that depend on the seed alone."""
        torch.manual_seed(self.seed)
        match self.kind:
            case "mlp":
                return nn.Sequential(nn.Linear(PIXELS, self.width), nn.Tanh(), nn.Linear(self.width, self.classes))
            case "transformer":
                return TextClassifier(self.width, self.classes)
            case _:
                from landscope.models import build

                return build(self.kind, num_classes=self.classes)

    def data(self) -> tuple[Tensor, Tensor]:
        """Inputs and labels."""
        rng = torch.Generator().manual_seed(self.seed)
        y = torch.arange(self.samples) % self.classes
        if self.kind == "transformer":
            words = torch.rand(self.classes, VOCABULARY, generator=rng) ** 4
            x = torch.multinomial(words[y], TOKENS, replacement=True, generator=rng)
        elif self.kind == "mlp":
            x = torch.randn(self.classes, PIXELS, generator=rng)[y] + torch.randn(len(y), PIXELS, generator=rng)
        else:
            coarse = torch.randn(self.classes, 3, 4, 4, generator=rng)
            x = F.interpolate(coarse, scale_factor=8)[y] + torch.randn(len(y), 3, 32, 32, generator=rng)
        wrong = torch.rand(len(y), generator=rng) < 0.05
        y = torch.where(wrong, torch.randint(0, self.classes, y.shape, generator=rng), y)
        order = torch.randperm(len(y), generator=rng)
        return x[order], y[order]


NETWORKS: dict[Size, dict[str, Network]] = {
    "tiny": {"mlp": Network(kind="mlp", samples=40, batch=20, epochs=5, classes=3, width=4)},
    "cpu": {
        "mlp": Network(kind="mlp", samples=1000, batch=1000, epochs=15),
        "transformer": Network(kind="transformer", samples=500, batch=100, epochs=15, width=64),
        "resnet20": Network(kind="resnet20", samples=500, batch=100, epochs=10),
    },
    "gpu": {
        "resnet18": Network(kind="resnet18", samples=2000, batch=250, epochs=10),
        "resnet18_50k": Network(kind="resnet18", samples=50_000, batch=250, epochs=2),
    },
}


class Attention(nn.Module):
    """Self-attention with four heads in plain operations: fused kernels have no second derivative."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(samples, words, width) → the same."""
        q, k, v = (part.unflatten(-1, (4, -1)).transpose(1, 2) for part in self.inner(x).chunk(3, -1))
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5).softmax(-1)
        return self.outer((weights @ v).transpose(1, 2).flatten(-2))


class TextClassifier(nn.Module):
    """Two pre-norm transformer blocks over words, and a linear classifier of their mean."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.words = nn.Embedding(VOCABULARY, width)
        self.places = nn.Parameter(0.02 * torch.randn(TOKENS, width))
        self.attention = nn.ModuleList(nn.Sequential(nn.LayerNorm(width), Attention(width)) for _ in range(2))
        self.forward_parts = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(2)
        )
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Class logits."""
        x = self.words(tokens) + self.places
        for attend, apply in zip(self.attention, self.forward_parts, strict=True):
            x = x + attend(x)
            x = x + apply(x)
        return self.head(self.norm(x).mean(1))


@dataclass(frozen=True)
class Subject:
    """A trained network in evaluation mode with its data, on a device: what a tool is given."""

    network: Network
    model: nn.Module
    x: Tensor
    y: Tensor
    folder: Path
    """Where it was read from: a second process can read it again."""

    @property
    def device(self) -> torch.device:
        """Where weights and data are."""
        return self.x.device

    @property
    def parameters(self) -> list[nn.Parameter]:
        """All of them."""
        return list(self.model.parameters())

    @property
    def size(self) -> int:
        """How many numbers the parameters hold."""
        return sum(p.numel() for p in self.parameters)

    @property
    def batches(self) -> list[tuple[Tensor, Tensor]]:
        """The data in the batches that every peer is given."""
        return list(zip(self.x.split(self.network.batch), self.y.split(self.network.batch), strict=True))

    @property
    def head(self) -> tuple[str, nn.Linear]:
        """The last linear layer."""
        return [(name, layer) for name, layer in self.model.named_modules() if isinstance(layer, nn.Linear)][-1]

    def part(self, samples: int) -> Subject:
        """The first samples only."""
        return replace(self, x=self.x[:samples], y=self.y[:samples])

    def double(self) -> Subject:
        """The same in float64, with a model of its own."""
        model = self.network.build().to(self.device)
        model.load_state_dict(self.model.state_dict())
        x = self.x.double() if self.x.is_floating_point() else self.x
        return replace(self, model=model.double().eval(), x=x)

    def vectors(self, count: int = 1) -> Tensor:
        """Random vectors (P, count), the same in every process."""
        rng = torch.Generator().manual_seed(1)
        return torch.randn(count, self.size, generator=rng).T.to(self.device)

    @contextmanager
    def features(self) -> Iterator[Callable[[], Tensor]]:
        """Inside, what the last linear layer was given in the latest pass."""
        seen: list[Tensor] = []
        hook = self.head[1].register_forward_pre_hook(lambda _, given: seen.append(given[0]))
        try:
            yield lambda: seen[-1]
        finally:
            hook.remove()


def load(network: Network, folder: Path, device: str = "cpu") -> Subject:
    """The trained network: read where it was trained before, else trained now and kept in the folder."""
    path = folder / "networks" / f"{network.kind}-{network.key}.pt"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished = path.with_suffix(".unfinished")
        torch.save(_trained(network, device), unfinished)
        unfinished.replace(path)
    kept = torch.load(path, weights_only=True)
    model = network.build()
    model.load_state_dict(kept["weights"])
    return Subject(network, model.to(device).eval(), kept["x"].to(device), kept["y"].to(device), folder)


def _trained(network: Network, device: str) -> dict[str, object]:
    """Weights after a few epochs of SGD with momentum, and the data."""
    model = network.build().to(device).train()
    x, y = (part.to(device) for part in network.data())
    rate = 0.01 if network.kind == "transformer" else 0.05
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    rng = torch.Generator().manual_seed(network.seed)
    for _ in range(network.epochs):
        for rows in torch.randperm(len(y), generator=rng).split(50):
            optimizer.zero_grad()
            F.cross_entropy(model(x[rows]), y[rows]).backward()
            optimizer.step()
    return {"weights": {name: value.cpu() for name, value in model.state_dict().items()}, "x": x.cpu(), "y": y.cpu()}
