"""Networks, losses and layers for FAM, and relative flatness by its definition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

F64 = torch.float64
N = 6
CLASSES = 3


class Sequences(nn.Module):
    """A linear layer at every position, and positions that act on each other behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.Linear(5, 4), nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.tanh(self.inner(x)).prod(1))


class Residual(nn.Module):
    """The layer's input also goes around it; piecewise linear behind the layer."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.layer, self.head = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        return self.head(F.relu(h + self.layer(h)))


class SideLoss(nn.Module):
    """The loss also sees the layer's output in another way than through the model's output."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.Linear(4, 5), nn.Linear(5, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        self.hidden = self.layer(x)
        return self.head(F.relu(self.hidden))


def mlp(activation: type[nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(4, 5), activation(), nn.Linear(5, 7), activation(), nn.Linear(7, CLASSES))


def batchnorm() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, CLASSES)
    )


def conv(activation: type[nn.Module]) -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1),
        activation(),
        nn.Conv2d(3, 2, 2, stride=2, padding=1, padding_mode="circular"),
        activation(),
        nn.MaxPool2d(2, 1),
        nn.Flatten(),
        nn.Linear(8, CLASSES),
    )


def grouped() -> nn.Module:
    return nn.Sequential(nn.Conv1d(4, 4, 2, groups=2), nn.Tanh(), nn.Flatten(), nn.Linear(12, CLASSES))


def volumes() -> nn.Module:
    return nn.Sequential(nn.Conv3d(1, 2, 2, stride=2), nn.Tanh(), nn.Flatten(), nn.Linear(2, CLASSES))


def cross_entropy(net: nn.Module, x: Tensor) -> Tensor:
    return F.cross_entropy(net(x), torch.arange(len(x)) % CLASSES)


def smoothed(net: nn.Module, x: Tensor) -> Tensor:
    weight = torch.tensor([1.0, 2.0, 0.5], dtype=x.dtype)
    return F.cross_entropy(net(x), torch.arange(len(x)) % CLASSES, weight, label_smoothing=0.1)


def mse(net: nn.Module, x: Tensor) -> Tensor:
    return F.mse_loss(net(x), torch.linspace(-1, 1, len(x) * CLASSES, dtype=x.dtype).view(len(x), CLASSES))


def dice(net: nn.Module, x: Tensor) -> Tensor:
    """1 − 2|p∩t| / (|p|+|t|) of every sample, averaged."""
    p, t = net(x).sigmoid(), (torch.arange(len(x) * CLASSES).view(len(x), CLASSES) % 2).to(x.dtype)
    return (1 - (2 * (p * t).sum(1) + 1) / (p.sum(1) + t.sum(1) + 1)).mean()


def contrastive(net: nn.Module, x: Tensor) -> Tensor:
    """Samples act on each other in the loss."""
    z = F.normalize(net(x), dim=1)
    return F.cross_entropy(z @ z.T / 0.5, torch.arange(len(x)).roll(1))


def with_side(net: nn.Module, x: Tensor) -> Tensor:
    return cross_entropy(net, x) + net.hidden.pow(4).mean()


def in_place(net: nn.Module, x: Tensor) -> Tensor:
    z = net(x)
    return F.cross_entropy(z.pow_(2), torch.arange(len(x)) % CLASSES)


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], nn.Module]
    layer: str
    shape: tuple[int, ...] = (4,)
    loss: Callable[[nn.Module, Tensor], Tensor] = cross_entropy

    def problem(self) -> tuple[nn.Module, Tensor]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            return self.make().to(F64), torch.randn(N, *self.shape, dtype=F64)

    def __repr__(self) -> str:
        return self.name


IMAGE = (2, 4, 4)
ALL = [
    Case("last layer", lambda: mlp(nn.Tanh), "4"),
    Case("last layer, smoothed and weighted", lambda: mlp(nn.Tanh), "4", loss=smoothed),
    Case("hidden, tanh", lambda: mlp(nn.Tanh), "2"),
    Case("hidden, fewer inputs than neurons", lambda: mlp(nn.Tanh), "0"),
    Case("hidden, ReLU", lambda: mlp(nn.ReLU), "2"),
    Case("hidden, ReLU in place", lambda: mlp(lambda: nn.ReLU(inplace=True)), "0"),
    Case("first, ReLU, mse", lambda: mlp(nn.ReLU), "0", loss=mse),
    Case("hidden, softplus, mse", lambda: mlp(nn.Softplus), "2", loss=mse),
    Case("hidden, Dice", lambda: mlp(nn.Tanh), "2", loss=dice),
    Case("hidden, ReLU, Dice", lambda: mlp(nn.ReLU), "2", loss=dice),
    Case("residual", Residual, "layer"),
    Case("a loss in place", lambda: mlp(nn.ReLU), "2", loss=in_place),
    Case("a loss on the side", SideLoss, "layer", loss=with_side),
    Case("samples mix in the loss", lambda: mlp(nn.Tanh), "2", loss=contrastive),
    Case("samples mix in the loss, ReLU", lambda: mlp(nn.ReLU), "4", loss=contrastive),
    Case("BatchNorm behind", batchnorm, "2"),
    Case("BatchNorm further behind", batchnorm, "0"),
    Case("BatchNorm in front", batchnorm, "5"),
    Case("sequences", Sequences, "inner", (2, 5)),
    Case("conv", lambda: conv(nn.Tanh), "2", IMAGE),
    Case("conv, ReLU", lambda: conv(nn.ReLU), "2", IMAGE),
    Case("first conv, more places than entries", lambda: conv(nn.Tanh), "0", (2, 5, 5)),
    Case("grouped conv1d", grouped, "0", (4, 4)),
    Case("conv3d, one place", volumes, "0", (1, 3, 3, 3)),
    Case(
        "weight norm",
        lambda: nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 3)),
        "0",
    ),
]


BY_NAME = {case.name: case for case in ALL}


def block_traces(case: Case, net: nn.Module, x: Tensor) -> Tensor:
    """tr H_st for all pairs of neurons, from the (d·m)² Hessian of the layer's weight, with its graph."""
    layer = net.get_submodule(case.layer)
    weight = layer.weight
    held = {}

    def loss_at(w: Tensor) -> Tensor:
        def use(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
            plain = (
                F.linear(args[0], w, module.bias)
                if isinstance(module, nn.Linear)
                else module._conv_forward(args[0], w, module.bias)
            )
            held["apart"] = float((plain - output).detach().abs().max())
            return plain

        handle = layer.register_forward_hook(use)
        try:
            return case.loss(net, x)
        finally:
            handle.remove()

    hessian = torch.autograd.functional.hessian(loss_at, weight, create_graph=True)
    assert held["apart"] < 1e-12
    d = len(weight)
    return torch.einsum("sata->st", hessian.reshape(d, -1, d, weight[0].numel()))


def dense_flatness(case: Case, net: nn.Module, x: Tensor, layerwise: bool = False) -> Tensor:
    """Σ_st ⟨w_s, w_t⟩ tr H_st or ‖W‖² tr H, with the graph of everything."""
    matrix, traces = net.get_submodule(case.layer).weight.flatten(1), block_traces(case, net, x)
    return matrix.square().sum() * traces.trace() if layerwise else ((matrix @ matrix.T) * traces).sum()


def gradients(of: Tensor, net: nn.Module) -> Tensor:
    found = torch.autograd.grad(
        of, list(net.parameters()), retain_graph=True, allow_unused=True, materialize_grads=True
    )
    return torch.cat([g.flatten() for g in found])


def relative(a: Tensor, b: Tensor) -> float:
    return float(((a - b).norm() / b.norm()).detach())


def vectors(dtype: torch.dtype = F64, n: int = 12) -> tuple[nn.Module, Tensor, Tensor]:
    """A network of three layers with tanh between, inputs and labels."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, CLASSES)).to(dtype)
    return net, torch.randn(n, 4, dtype=dtype), torch.arange(n) % CLASSES
