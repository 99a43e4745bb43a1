"""Small problems for sharpness-aware optimizers, and one step of theirs written out, parameter by parameter."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from landscope.training.optimizers import SAM

BASES: dict[str, tuple[type[torch.optim.Optimizer], dict[str, float | bool]]] = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 1e-3}),
    "nesterov": (torch.optim.SGD, {"lr": 0.05, "momentum": 0.9, "nesterov": True}),
    "adam": (torch.optim.Adam, {"lr": 0.01}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01, "weight_decay": 0.1}),
}


def network(dtype: torch.dtype = torch.float64, norm: bool = False) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        middle = [nn.BatchNorm1d(5)] if norm else []
        return nn.Sequential(nn.Linear(4, 5), *middle, nn.Tanh(), nn.Linear(5, 3)).to(dtype)


def batch(dtype: torch.dtype = torch.float64, n: int = 12, seed: int = 1) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=rng, dtype=torch.float64).to(dtype), torch.randint(0, 3, (n,), generator=rng)


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Callable[[], Tensor]:
    return lambda: F.cross_entropy(model(x), y)


def closure_of(optimizer: torch.optim.Optimizer, loss: Callable[[], Tensor]) -> Callable[[], Tensor]:
    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss()
        value.backward()
        return value

    return closure


def sam_for(model: nn.Module, base: str, rho: float = 0.5, **settings: object) -> SAM:
    kind, options = BASES[base]
    return SAM(model.parameters(), kind, rho=rho, **settings, **options)


def plain_for(model: nn.Module, base: str) -> torch.optim.Optimizer:
    kind, options = BASES[base]
    return kind(model.parameters(), **options)


def written_out(
    base: torch.optim.Optimizer,
    params: Sequence[Tensor],
    loss: Callable[[], Tensor],
    rho: float,
    clip: float | None = None,
) -> None:
    """One step of SAM: the definition."""
    here = [p.detach().clone() for p in params]
    grads = torch.autograd.grad(loss(), params)
    length = torch.sqrt(sum((g.double() ** 2).sum() for g in grads))
    with torch.no_grad():
        for p, w, g in zip(params, here, grads, strict=True):
            p.copy_(w + (rho * g.double() / length).to(w.dtype))
    grads = torch.autograd.grad(loss(), params)
    length = torch.sqrt(sum((g.double() ** 2).sum() for g in grads))
    with torch.no_grad():
        for p, w, g in zip(params, here, grads, strict=True):
            p.copy_(w)
            p.grad = g if clip is None else g * min(1.0, clip / (float(length) + 1e-6))
    base.step()


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def same_bits(first: nn.Module, second: nn.Module) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))


def distance(first: Tensor, second: Tensor) -> float:
    return float((first - second).abs().max())
