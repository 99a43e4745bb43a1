"""Single-objective test functions of two variables on [−3.5, 3.5]²: regression problems with a known surface.

The second paper fits 10,000 points of each with a small network. `load("functions", function="beale")`.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from landscope.core.registry import Registry
from landscope.core.seeding import generator
from landscope.data.dataset import DataSet, Raw, Split

TEST_FUNCTIONS: Registry[Callable[[Tensor], Tensor]] = Registry("test function")
"""Functions of points (n, 2) giving values (n,), by name."""


@TEST_FUNCTIONS.register("sphere")
def sphere(p: Tensor) -> Tensor:
    """x² + y²; minimum 0 at (0, 0)."""
    return p.square().sum(1)


@TEST_FUNCTIONS.register("booth")
def booth(p: Tensor) -> Tensor:
    """(x + 2y − 7)² + (2x + y − 5)²; minimum 0 at (1, 3)."""
    x, y = p.unbind(1)
    return (x + 2 * y - 7).square() + (2 * x + y - 5).square()


@TEST_FUNCTIONS.register("three_hump_camel")
def three_hump_camel(p: Tensor) -> Tensor:
    """2x² − 1.05x⁴ + x⁶/6 + xy + y²; minimum 0 at (0, 0)."""
    x, y = p.unbind(1)
    return 2 * x**2 - 1.05 * x**4 + x**6 / 6 + x * y + y**2


@TEST_FUNCTIONS.register("himmelblau")
def himmelblau(p: Tensor) -> Tensor:
    """(x² + y − 11)² + (x + y² − 7)²; minimum 0 at four points, one of them (3, 2)."""
    x, y = p.unbind(1)
    return (x**2 + y - 11).square() + (x + y**2 - 7).square()


@TEST_FUNCTIONS.register("rosenbrock")
def rosenbrock(p: Tensor) -> Tensor:
    """(1 − x)² + 100 (y − x²)²; minimum 0 at (1, 1)."""
    x, y = p.unbind(1)
    return (1 - x).square() + 100 * (y - x**2).square()


@TEST_FUNCTIONS.register("beale")
def beale(p: Tensor) -> Tensor:
    """(1.5 − x + xy)² + (2.25 − x + xy²)² + (2.625 − x + xy³)²; minimum 0 at (3, 0.5)."""
    x, y = p.unbind(1)
    return (1.5 - x + x * y).square() + (2.25 - x + x * y**2).square() + (2.625 - x + x * y**3).square()


@TEST_FUNCTIONS.register("rastrigin")
def rastrigin(p: Tensor) -> Tensor:
    """20 + x² + y² − 10 (cos 2πx + cos 2πy); minimum 0 at (0, 0).

    >>> rastrigin(torch.zeros(1, 2))
    tensor([0.])
    """
    return 20 + (p.square() - 10 * torch.cos(2 * math.pi * p)).sum(1)


def _read(*, seed: int, function: str = "himmelblau", n: int = 10_000, bound: float = 3.5) -> Raw:
    surface = TEST_FUNCTIONS[function]

    def split(stream: str) -> Split:
        uniform = torch.rand((n, 2), generator=generator(seed, "functions", stream), dtype=torch.float64)
        points = (2 * uniform - 1) * bound
        return Split(points.float(), surface(points).float().unsqueeze(1))

    return Raw(
        train=split("train"),
        validation=split("validation"),
        evaluation=split("test"),
        notes=f"{function}: {(surface.__doc__ or '').splitlines()[0]}",
    )


FUNCTIONS = DataSet(
    name="functions",
    title="Single-objective test functions",
    task="regression",
    read=_read,
    licence="none needed: computed",
    citation="M. Jamil, X.-S. Yang. A literature survey of benchmark functions for global optimisation problems. "
    "International Journal of Mathematical Modelling and Numerical Optimisation 4(2), 2013.",
    source="computed",
)
