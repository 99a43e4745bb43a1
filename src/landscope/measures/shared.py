"""Work that several measures need is done once per probe.

A probe is a frozen point, so whatever was computed at it stays true: the gradient, the spectrum, the eigenpairs. Each kind of
shared work is a function decorated with `once_per_probe`; its results live as long as the probe.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Concatenate, ParamSpec, TypeVar, cast

from torch import Tensor

from landscope.core.probe import Probe

__all__ = ["gradient", "loss_value", "once_per_probe"]

P = ParamSpec("P")
R = TypeVar("R")


def once_per_probe(function: Callable[Concatenate[Probe, P], R]) -> Callable[Concatenate[Probe, P], R]:
    """Remember the result for each probe and each set of (hashable) arguments."""

    @wraps(function)
    def shared(probe: Probe, *args: P.args, **kwargs: P.kwargs) -> R:
        key = (function, args, tuple(sorted(kwargs.items())))
        if key not in probe.results:
            probe.results[key] = function(probe, *args, **kwargs)
        return cast(R, probe.results[key])

    return shared  # type: ignore[return-value]  # wraps() names the first argument


@once_per_probe
def gradient(probe: Probe) -> Tensor:
    """∇L as a vector (P,)."""
    return probe.gradient()


@once_per_probe
def loss_value(probe: Probe) -> float:
    """L, the mean loss."""
    return probe.value()
