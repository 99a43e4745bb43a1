"""Work done once per probe, and the mean of per-sample numbers with its error."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Concatenate, Generic, ParamSpec, TypeVar, cast

from torch import Tensor

from landscope.probe.probe import Probe

# Work that several measures need is done once per probe.
#
# A probe is a frozen point, so whatever was computed at it stays true: the gradient, the spectrum, the eigenpairs. Each kind of
# shared work is a function decorated with `once_per_probe`, or with `shared_stream` where it comes step by step; its results live
# as long as the probe.


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


class _Stream(Generic[R]):
    """A source that several readers follow: each sees the newest of its values, and whoever has seen it makes the next.

    Where values are few and small `every` one is kept, and each reader sees all.
    """

    def __init__(self, source: Iterator[R], every: bool) -> None:
        self._source, self._kept, self._count, self._every = source, list[R](), 0, every
        self.error: BaseException | None = None

    def follow(self) -> Iterator[R]:
        """The newest value, or each from the first on, then each that follows."""
        seen = 0
        while seen < self._count or self._advance():
            seen = seen + 1 if self._every else self._count
            yield self._kept[seen - 1 if self._every else 0]

    def _advance(self) -> bool:
        if self.error is not None:
            raise self.error
        try:
            self._kept = [*(self._kept if self._every else ()), next(self._source)]
        except StopIteration:
            return False
        except BaseException as error:
            self.error = error
            raise
        self._count += 1
        return True


Source = Callable[Concatenate[Probe, P], Iterator[R]]


def shared_stream(function: Source[P, R], every: bool = False) -> Source[P, R]:
    """Let all who read the same stream at a probe (the same arguments) read one: each continues from what the others have made.

    With `every`, each sees all values from the first on. A stream that an error has ended starts over for later readers.
    """

    @wraps(function)
    def shared(probe: Probe, *args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
        key = (function, args, tuple(sorted(kwargs.items())))
        known = cast("_Stream[R] | None", probe.results.get(key))
        if known is None or known.error is not None:
            known = probe.results[key] = _Stream(function(probe, *args, **kwargs), every)
        return known.follow()

    return shared  # type: ignore[return-value]  # wraps() names the first argument


@once_per_probe
def gradient(probe: Probe) -> Tensor:
    """∇L as a vector (P,)."""
    return probe.gradient()


@once_per_probe
def loss_value(probe: Probe) -> float:
    """L, the mean loss."""
    return probe.value()


# A mean over samples and its standard error over the data, from sums that any order of samples gives.


FORWARD_LOAD = 4.0
"""Memory allowed to a forward pass, in gradients: far more than it holds, because on a CPU pieces of some 40 images run 1.4
times as fast as those that just fit (ResNet-18: fresh pages cost more than the products)."""

FORWARD_SHARE = 0.25
"""Memory of a forward pass without gradients over that of one with them."""


def sums(values: Tensor) -> tuple[Tensor, Tensor]:
    """Σ v and Σ v² of one number per sample, in float64: what adds up over pieces and processes."""
    v = values.detach().double()
    return v.sum(), v.square().sum()


def mean_and_error(total: Tensor, squares: Tensor, n: int) -> tuple[float, float | None]:
    """The mean, and the standard error of a mean of n independent samples; `None` for a single one.

    >>> import torch
    >>> mean_and_error(*sums(torch.tensor([1.0, 3.0])), 2)
    (2.0, 1.0)
    """
    mean = float(total) / n
    if n < 2:
        return mean, None
    return mean, math.sqrt(max(float(squares) / n - mean**2, 0.0) / (n - 1))
