"""Small networks of different kinds, in float64, with data; and the slow way to perturb them."""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from landscope.probe.probe import Probe


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 8)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 1)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.encoder(self.embedding(tokens)).mean(1))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(4, 4)
        self.out = nn.Linear(4, 4)
        self.out.weight = self.into.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.into(x).tanh())


def networks() -> dict[str, tuple[nn.Module, Tensor, Tensor, str]]:
    """Name → (model, inputs, targets, loss)."""
    torch.manual_seed(0)
    labels = torch.arange(12) % 3
    mlp = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))
    conv = nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 3))
    norm = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))
    for _ in range(5):
        norm(torch.randn(20, 4))
    regression = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))
    x, images, tokens = torch.randn(12, 4), torch.randn(12, 1, 6, 6), torch.randint(0, 11, (12, 5))
    made = {
        "mlp": (mlp, x, labels, "cross_entropy"),
        "conv": (conv, images, labels, "cross_entropy"),
        "batchnorm": (norm, x, labels, "cross_entropy"),
        "transformer": (Attention(), tokens, labels, "cross_entropy"),
        "tied": (Tied(), x, labels, "cross_entropy"),
        "regression": (regression, x, torch.randn(12, 2), "mse"),
    }
    return {
        name: (
            model.double().eval(),
            a.double() if a.is_floating_point() else a,
            b.double() if b.is_floating_point() else b,
            loss,
        )
        for name, (model, a, b, loss) in made.items()
    }


NETWORKS = networks()


def probe_of(name: str, **options: object) -> Probe:
    model, x, y, loss = NETWORKS[name]
    return Probe(model, (x, y), loss, **options)  # type: ignore[arg-type]


def slow_losses(name: str, delta: Tensor) -> Tensor:
    """The loss of each sample with the parameters of a copied model moved by `delta`."""
    model, x, y, loss = NETWORKS[name]
    twin = copy.deepcopy(model)
    vector = nn.utils.parameters_to_vector(twin.parameters()).detach()
    nn.utils.vector_to_parameters(vector + delta, twin.parameters())
    with torch.no_grad(), nn.attention.sdpa_kernel(nn.attention.SDPBackend.MATH):
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            outputs = twin(x)
        finally:
            torch.backends.mha.set_fastpath_enabled(True)
    if loss == "mse":
        return (outputs - y).square().mean(1)
    return F.cross_entropy(outputs, y, reduction="none")


def linear_probe(weight: list[float], x: Tensor, y: Tensor | None = None, loss: object = "mse") -> Probe:
    """A linear model without bias at given weights, in float64."""
    net = nn.Linear(len(weight), 1, bias=False).double()
    with torch.no_grad():
        net.weight.copy_(torch.tensor([weight], dtype=torch.float64))
    y = torch.zeros(len(x), 1, dtype=torch.float64) if y is None else y
    return Probe(net, (x, y), loss)  # type: ignore[arg-type]


def quadratic_probe(eigenvalues: list[float]) -> Probe:
    """L(w) = ½ Σ λ_i w_i² at its minimum w = 0: a regression on orthogonal inputs."""
    n = len(eigenvalues)
    x = torch.diag(torch.tensor([v * n / 2 for v in eigenvalues], dtype=torch.float64).sqrt())
    return linear_probe([0.0] * n, x)
