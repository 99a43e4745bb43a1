"""The step uphill of sharpness-aware minimisation.

    ε = ρ T² g / ‖T g‖₂,      the maximiser of ⟨g, ε⟩ over ‖T⁻¹ ε‖₂ ≤ ρ

SAM (Foret et al. 2021) has T = 1; ASAM (Kwon et al. 2021) has T = |w| + η entry by entry, which makes the
neighbourhood follow a rescaling of the weights. The norm runs over all parameters, whatever group they are in; ρ, η and T are
each group's own.

ASAM's own code takes |w| + η for parameters with "weight" in their name (the scales of normalisation layers among them)
and T = 1 for biases. Tensors have no names, so `adaptive=True` goes by dimension: T = |w| + η from two dimensions on,
T = 1 for vectors and scalars, which are biases and the scales and shifts of normalisation layers. `adaptive="all"` takes
|w| + η for every tensor of a group: two groups, `"all"` for what is called a weight and `False` for the rest, are ASAM's code
to the letter.

Cost: one pass over the gradients for the norm, one to scale them (ASAM: four more over the weights). ε does not change when
the loss is multiplied by a positive number, so gradients of a scaled loss serve as they are.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from landscope.core.errors import NotApplicableError

Adaptive = bool | Literal["all"]
"""Which tensors of a group have T = |w| + η: none, those of at least two dimensions, or all."""
Tensors = list[Tensor] | tuple[Tensor, ...]
"""Tensors of one device and type, which operations take as one."""


@dataclass(frozen=True)
class Neighbourhood:
    """Where the loss is at its worst: the radius ρ, and the shape T = |w| + η where it is adaptive.

    >>> Neighbourhood(rho=-1.0)
    Traceback (most recent call last):
    ValueError: rho must be a finite number of at least 0, got -1.0
    """

    rho: float = 0.05
    adaptive: Adaptive = False
    eta: float = 0.01
    downhill: bool = False
    """Where the loss is maximised, its worst is downhill."""

    def __post_init__(self) -> None:
        for name, value in (("rho", self.rho), ("eta", self.eta)):
            if not (math.isfinite(value) and value >= 0):
                raise ValueError(f"{name} must be a finite number of at least 0, got {value}")
        if self.adaptive not in (True, False, "all"):
            raise ValueError(f'adaptive must be True, False or "all", got {self.adaptive!r}')

    def rescales(self, param: Tensor) -> bool:
        """Whether T = |w| + η for this tensor."""
        return self.adaptive == "all" or (bool(self.adaptive) and param.ndim >= 2)


@dataclass(frozen=True)
class Perturbation:
    """The step ε for every parameter that moves, in lists of one device and type, and ‖T g‖."""

    moves: tuple[tuple[Tensors, Tensors], ...]
    norm: Tensor


@dataclass(frozen=True)
class _Bucket:
    """Parameters of one group, device, type and T. `climb` is T g, and `metric` is T where it is not 1."""

    params: Tensors
    climb: Tensors
    metric: Tensors | None
    rho: float
    """Negative downhill."""


@torch.no_grad()
def ascent(groups: Iterable[tuple[Sequence[Tensor], Neighbourhood]]) -> Perturbation:
    """ε from the gradients that the parameters hold; parameters without one, or with ρ = 0, do not move.

    A gradient of zeros gives a step of zeros. Nothing is waited for on the device.

    >>> w = torch.tensor([1.0, 2.0], requires_grad=True)
    >>> w.grad = torch.tensor([3.0, 4.0])
    >>> ascent([([w], Neighbourhood(rho=0.5))]).moves[0][1]
    (tensor([0.3000, 0.4000]),)
    """
    buckets = [bucket for params, hood in groups for bucket in _buckets(params, hood)]
    norms = [
        norm
        for bucket in buckets
        # float32 squares overflow long before the entries do
        for norm in torch._foreach_norm(
            bucket.climb, 2, dtype=torch.promote_types(bucket.climb[0].dtype, torch.float64)
        )
    ]
    if not norms:
        return Perturbation((), torch.zeros((), dtype=torch.float64))
    total = torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device) for norm in norms]))
    return Perturbation(tuple((bucket.params, _steps(bucket, total)) for bucket in buckets if bucket.rho), total)


def _buckets(params: Iterable[Tensor], hood: Neighbourhood) -> Iterator[_Bucket]:
    alike: dict[tuple[torch.device, torch.dtype, bool], list[Tensor]] = {}
    for param in params:
        if param.grad is None:
            continue
        if param.grad.layout != torch.strided:
            raise NotApplicableError(
                f"sharpness-aware steps need dense gradients, but a parameter of shape {tuple(param.shape)} has one of "
                f"layout {param.grad.layout}. Build its layer with sparse=False, or give it to another optimizer."
            )
        alike.setdefault((param.device, param.dtype, hood.rescales(param)), []).append(param)
    rho = -hood.rho if hood.downhill else hood.rho
    for (_, _, rescaled), members in alike.items():
        grads = [param.grad for param in members if param.grad is not None]
        if not rescaled:
            yield _Bucket(members, grads, None, rho)
            continue
        metric = torch._foreach_abs(members)
        torch._foreach_add_(metric, hood.eta)
        yield _Bucket(members, torch._foreach_mul(grads, metric), metric, rho)


def _steps(bucket: _Bucket, norm: Tensor) -> Tensors:
    """ρ T (T g) / ‖T g‖, with at least float32 for the factor, and a floor for the norm below which squares underflow."""
    param = bucket.params[0]
    dtype = torch.promote_types(param.dtype, torch.float32)
    scale = (bucket.rho / norm.clamp_min(math.sqrt(torch.finfo(dtype).tiny))).to(param.device, dtype)
    if bucket.metric is None:
        return torch._foreach_mul(bucket.climb, scale)
    steps = torch._foreach_mul(bucket.climb, bucket.metric)
    torch._foreach_mul_(steps, scale)
    return steps
