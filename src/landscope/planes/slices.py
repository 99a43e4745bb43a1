"""A slice through the space of parameters: a point, and one or two directions from it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvTransposeNd

from landscope.core.errors import NonFiniteWeightsError, OperandError, UnknownNameError
from landscope.core.json import Plain
from landscope.core.registry import Registry
from landscope.probe.frozen import unwrap
from landscope.probe.perturbed import Include, direction, included
from landscope.probe.probe import Probe

# The length of a direction, filter by filter (Li et al. 2018).
#
#     d_f ← d_f ‖θ_f‖ / ‖d_f‖        f: a filter (`"filter"`), or a whole tensor (`"layer"`)
#
# A filter is what feeds one output: a row of a linear weight, an output channel of a convolution, one entry of a bias or
# of a normalisation layer. A filter that is zero gets a zero direction. So a step of 1 is as long as each filter itself.
#
# What it is for: the same draw gives the same losses after filters before a BatchNorm, or whole layers of a ReLU network,
# have been rescaled without changing the function. Rescaling single neurons of a ReLU network changes proportions *within*
# the filters of the next layer, which no scaling by filters undoes: the losses along the direction then differ. Where
# one-dimensional parameters take part, Li et al.'s code takes θ itself as the direction; here the signs are drawn.


Norms = Callable[[Tensor, nn.Module | None], Tensor]
"""(tensor, layer that holds it) → norms that broadcast against the tensor."""

NORMALISATIONS: Registry[Norms] = Registry("normalisation of directions")
UNITS = {"filter": "in filter norms", "layer": "in layer norms", "none": "as drawn"}
"""What a step of 1 along a random direction is."""


@NORMALISATIONS.register("filter")
def filter_norms(tensor: Tensor, layer: nn.Module | None = None) -> Tensor:
    """The norm of the filter that each entry belongs to.

    >>> filter_norms(torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor([[5.],
            [1.]])
    """
    if tensor.dim() < 2:
        return tensor.abs()
    if isinstance(layer, _ConvTransposeNd) and tensor.shape == layer.weight.shape:
        grouped = tensor.reshape(layer.groups, -1, *tensor.shape[1:])  # (groups, in/groups, out/groups, kernel …)
        axes = [1, *range(3, grouped.dim())]
        norms = torch.linalg.vector_norm(grouped, dim=axes, keepdim=True)
        return norms.expand(grouped.shape[:3] + norms.shape[3:]).reshape(*tensor.shape[:2], *[1] * (tensor.dim() - 2))
    return torch.linalg.vector_norm(tensor, dim=list(range(1, tensor.dim())), keepdim=True)


@NORMALISATIONS.register("layer")
def _layer_norm(tensor: Tensor, layer: nn.Module | None = None) -> Tensor:  # noqa: ARG001 (the shape says it all)
    return torch.linalg.vector_norm(tensor)


@NORMALISATIONS.register("none")
def _as_they_are(tensor: Tensor, layer: nn.Module | None = None) -> Tensor:  # noqa: ARG001
    return torch.ones((), dtype=tensor.dtype, device=tensor.device)


def normalised(probe: Probe, direction: Mapping[str, Tensor], how: str) -> dict[str, Tensor]:
    """The direction with the norms that the parameters of the probe have.

    >>> probe = Probe(nn.Linear(2, 2, bias=False), (torch.randn(4, 2), torch.tensor([0, 1, 0, 1])))
    >>> d = normalised(probe, {"weight": torch.ones(2, 2)}, "filter")
    >>> bool(torch.allclose(filter_norms(d["weight"]), filter_norms(probe.params["weight"])))
    True
    """
    norms, layers = NORMALISATIONS[how], probe.modules
    out = {}
    for name, tensor in direction.items():
        layer = layers.get(name.rpartition(".")[0])
        own = norms(tensor, layer)
        scale = torch.where(own > 0, norms(probe.params[name], layer) / own, 0.0)
        out[name] = tensor * scale
    return out


Direction = Tensor | Mapping[str, Tensor]
"""A vector (P,) over the probe's parameters, or tensors by parameter name, the others zero."""

ORDINALS = ("1st", "2nd")


@dataclass(frozen=True, eq=False)
class Slice:
    """θ + a d₁ (+ b d₂): what moves, at the origin, and the directions, by the names of parameters and buffers.

    `labels` name the axes for people; `details` say what the directions are.
    """

    kind: str
    origin: Mapping[str, Tensor]
    directions: tuple[Mapping[str, Tensor], ...]
    labels: tuple[str, ...]
    details: Mapping[str, Plain] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for d in self.directions:
            for name, tensor in d.items():
                if tensor.shape != self.origin[name].shape or not bool(torch.isfinite(tensor).all()):
                    raise OperandError(f"the direction of {name} must be finite numbers of its own shape")
        if any(norm == 0 for norm in self.norms):
            raise OperandError(
                "a direction of length zero spans nothing: everything that would move is zero, or left out"
            )
        if len(self.directions) == 2 and 1 - abs(self.cosine) < 1e-9:
            raise OperandError("the two directions are one and the same line; a plane needs two (see line() for one)")

    @cached_property
    def norms(self) -> tuple[float, ...]:
        """‖d‖₂ of each direction."""
        return tuple(math.sqrt(_inner(d, d)) for d in self.directions)

    @cached_property
    def cosine(self) -> float:
        """Cosine of the angle between both directions."""
        first, second = self.directions
        return _inner(first, second) / (self.norms[0] * self.norms[1])

    def about(self) -> dict[str, Plain]:
        """The description in plain values."""
        moved = sum(tensor.numel() for tensor in self.origin.values())
        out: dict[str, Plain] = {
            "kind": self.kind,
            "labels": list(self.labels),
            "norms": list(self.norms),
            "moved_parameters": moved,
            "origin_norm": math.sqrt(_inner(self.origin, self.origin)),
        }
        if len(self.directions) == 2:
            out["cosine"] = self.cosine
        return {**out, **self.details}


def _inner(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    return sum(float((first[name].double() * second[name].double()).sum()) for name in first)


def random_slice(
    probe: Probe, dimensions: int = 2, *, seed: int = 0, normalisation: str = "filter", include: Include = "weights"
) -> Slice:
    """Independent normal numbers, normalised; biases and the parameters of normalisation layers stay (Li et al. 2018).

    They are not made orthogonal: in many dimensions they almost are, and the cosine is recorded.

    >>> probe = Probe(torch.nn.Linear(2, 3), (torch.randn(6, 2), torch.arange(6) % 3))
    >>> random_slice(probe).about()["moved_parameters"]
    6
    """
    moved = included(probe, include)
    return Slice(
        kind="random",
        origin=moved.params,
        directions=tuple(
            normalised(moved, moved.space.unflatten(direction(moved, seed, index)), normalisation)
            for index in range(dimensions)
        ),
        labels=tuple(f"{ORDINALS[index]} random direction, {UNITS[normalisation]}" for index in range(dimensions)),
        details={"normalisation": normalisation, "include": _plain(include), "seed": seed},
    )


def given_slice(
    probe: Probe, directions: Sequence[Direction], *, normalisation: str = "none", include: Include = "all"
) -> Slice:
    """Directions of your own; what `include` leaves out does not move.

    >>> probe = Probe(torch.nn.Linear(2, 3), (torch.randn(6, 2), torch.arange(6) % 3))
    >>> abs(given_slice(probe, [probe.gradient()]).norms[0] / float(probe.gradient().norm()) - 1) < 1e-5
    True
    """
    moved = included(probe, include)
    named = [_named(probe, d) for d in directions]
    own = {**UNITS, "none": "in its own lengths"}
    return Slice(
        kind="given",
        origin=moved.params,
        directions=tuple(normalised(moved, {name: d[name] for name in moved.params}, normalisation) for d in named),
        labels=tuple(f"{ORDINALS[index]} given direction, {own[normalisation]}" for index in range(len(named))),
        details={"normalisation": normalisation, "include": _plain(include)},
    )


def _named(probe: Probe, given: Direction) -> dict[str, Tensor]:
    """A tensor for every parameter of the probe."""
    if isinstance(given, Tensor):
        return probe.space.unflatten(given.detach().to(probe.device, probe.dtype))
    if not isinstance(given, Mapping):
        raise OperandError(f"a direction is a vector (P,) or tensors by parameter name, got {type(given).__name__}")
    for name in given:
        if name not in probe.params:
            raise UnknownNameError.among("parameter of the probe", str(name), probe.params)
    out = {}
    for name, p in probe.params.items():
        tensor = given.get(name, torch.zeros_like(p))
        if tensor.shape != p.shape:
            raise OperandError(f"the direction of {name} has shape {tuple(tensor.shape)}, expected {tuple(p.shape)}")
        out[name] = tensor.detach().to(probe.device, probe.dtype)
    return out


def _plain(include: Include) -> Plain:
    return include if isinstance(include, str) else list(include)


# Other values for a model's parameters and buffers: a state dict, or a model of the same architecture.


State = Mapping[str, Tensor] | nn.Module
"""A state dict or a model."""


def moving(probe: Probe) -> dict[str, Tensor]:
    """Every parameter and real-valued buffer of the probe's model, measured or not."""
    model = probe.modules[""]
    held = {**dict(model.named_parameters()), **dict(model.named_buffers())}
    return {name: tensor.detach() for name, tensor in held.items() if tensor.is_floating_point()}


def read_state(probe: Probe, state: State, what: str) -> dict[str, Tensor]:
    """The real-valued tensors of a state that the probe's model has too, after checking that it is of the same architecture.

    Buffers that a state lacks (they need not be saved) are left out; running statistics are ignored where the probe uses
    those of the batches.
    """
    held = unwrap(state).state_dict() if isinstance(state, nn.Module) else state
    if not isinstance(held, Mapping):
        raise OperandError(f"{what} must be a state dict or a model, got {type(state).__name__}")
    model = probe.modules[""]
    own, known = moving(probe), set(model.state_dict())
    missing = [name for name, _ in model.named_parameters() if name not in held]
    if missing:
        raise OperandError(
            f"{what} lacks {missing[0]} ({len(missing)} of the model's parameters): another architecture?"
        )
    for name in held:
        layer = probe.modules.get(name.rpartition(".")[0])
        if name not in known and not isinstance(layer, _BatchNorm):
            raise OperandError(f"{what} holds {name!r}, which the probe's model does not have: another architecture?")
    out = {}
    for name, tensor in own.items():
        if name not in held:
            continue
        other = held[name].detach()
        if other.shape != tensor.shape:
            raise OperandError(f"{name} has shape {tuple(other.shape)} in {what}, expected {tuple(tensor.shape)}")
        if not bool(torch.isfinite(other).all()):
            raise NonFiniteWeightsError(f"{name} holds NaN or infinity in {what}: a diverged model lies on no plane")
        out[name] = other
    return out


def check_same_point(origin: Mapping[str, Tensor], probe: Probe, what: str) -> None:
    """Refuse a probe at other values than the slice starts from: its losses would belong to another plane."""
    held = moving(probe)
    for name, tensor in origin.items():
        other = held.get(name)
        if other is None or other.shape != tensor.shape:
            raise OperandError(f"{what} has no {name} of shape {tuple(tensor.shape)}: it is of another architecture")
        if not torch.allclose(other.double().cpu(), tensor.double().cpu(), rtol=1e-5, atol=1e-8):
            raise OperandError(f"{what} has other values in {name} than the slice starts from: it is another model")
