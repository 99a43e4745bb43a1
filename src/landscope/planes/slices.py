"""A slice through the space of parameters: a point, and one or two directions from it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from landscope.core.errors import OperandError, UnknownNameError
from landscope.core.estimate import Plain
from landscope.core.probe import Probe
from landscope.measures.sharpness.perturbation import Include, direction, included
from landscope.planes.normalisation import UNITS, normalised

__all__ = ["Direction", "Slice", "given_slice", "random_slice"]

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
