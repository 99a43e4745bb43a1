"""What some of the rows say about a curvature matrix of all: quadratic forms per row, and an early bracket of λ₁.

With S the first m rows in the order of `landscope.probe.rows.order`, weighed by 1/π, and (θ, v) the top Ritz pair of A_S:

- θ lies above λ₁ on average (the largest eigenvalue is convex), and to first order it scatters as vᵀA_S v does;
- v₁ found on one half of the rows and evaluated on the other, v₁ᵀA₂v₁, is an unbiased Rayleigh quotient: below λ₁ on average.

The bracket [cross-fit − t·se, θ + (t + skew)·se] held the truth in 94 to 100 % of all settings tried, where every debiased
symmetric bar failed somewhere (`docs/progressive.md`). More rows are a poor way to precision: a few per cent of the rows give
the bracket and a start vector, products on all rows the rest.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import jvp

from landscope.core.errors import DifferentiationError, NotApplicableError
from landscope.core.seeding import generator, hashed_signs
from landscope.curvature.matrices import GaussNewtonOperator
from landscope.curvature.per_sample import TANGENT_LOAD, TANGENT_PASSES, output_tangents
from landscope.measures.sharpness.matrices import MATRICES, canonical, matrix
from landscope.probe.batches import Batch
from landscope.probe.points import is_small
from landscope.probe.probe import Probe
from landscope.probe.rows.means import RowMean, row_mean
from landscope.probe.rows.order import RowOrder
from landscope.probe.rows.outputs import row_order
from landscope.probe.shared import once_per_probe
from landscope.probe.totals import FORWARD
from landscope.spectra.lanczos import fresh_rows, lanczos

__all__ = [
    "QUADRATIC_LOAD",
    "QUADRATIC_PASSES",
    "EarlyBracket",
    "early_brackets",
    "has_row_quadratics",
    "leading_vectors",
    "row_quadratics",
]

QUADRATIC_PASSES = {"hessian": 4 * FORWARD, "ggn": TANGENT_PASSES, "fisher": TANGENT_PASSES}
"""What one quadratic form of all rows costs, in gradients."""
QUADRATIC_LOAD = {"hessian": 2.0, "ggn": TANGENT_LOAD, "fisher": TANGENT_LOAD}
AGREEMENT = 20.0
"""Allowed difference of two ways to a quadratic form, in square roots of the machine epsilon."""

STEPS = 12
"""Lanczos steps on some of the rows: more than their own sampling error needs."""
MOST_ROWS = 0.2
"""Part of the rows beyond which products on all of them are the better way."""
FEWEST_ROWS = 20
WIDE, NARROW = 0.5, 0.3
"""Half-widths, relative to the point: above the first no number is shown; below the second more rows do not pay."""


def row_quadratics(probe: Probe, name: str, batch: Batch, directions: Sequence[Tensor]) -> Tensor:
    """vᵀA_i v of every row of a piece (n, k), for k directions (P,) and the named matrix A, the mean of the A_i.

    The Hessian: d²/dt² ℓ_i(θ + t v), forward mode over forward mode, about four forward passes each. Matrices JᵀBJ: one
    forward-mode derivative u = J_i v, and uᵀB_i u. Nothing is kept for a way back.

    >>> probe = Probe(torch.nn.Linear(1, 1, bias=False), (torch.tensor([[1.0], [2.0]]), torch.zeros(2, 1)), "mse")
    >>> row_quadratics(probe, "hessian", next(probe.batches()), [torch.ones(1)]).flatten()      # ℓ = (w x)²
    tensor([2., 8.])
    """
    if name == "hessian":
        theta = dict(probe.params)

        def along(v: Tensor) -> Tensor:
            way = probe.space.unflatten(v)
            slope = lambda at: jvp(lambda p: probe.losses(p, batch), (at,), (way,))[1]  # noqa: E731
            return jvp(slope, (theta,), (way,))[1]

        return torch.stack([along(v) for v in directions], 1)
    operator = matrix(probe, name)
    assert isinstance(operator, GaussNewtonOperator)
    found = []
    for v in directions:
        z, u = output_tangents(probe, batch, probe.space.unflatten(v), f"the {name} of single rows")
        found.append((u * operator._curve(z, u, batch)).reshape(batch.size, -1).sum(1, dtype=torch.float64))
    return torch.stack(found, 1)


@once_per_probe
def has_row_quadratics(probe: Probe, name: str) -> bool:
    """Whether quadratic forms of single rows exist and are right, tried on a few rows against the product with the matrix.

    They need a loss per sample, rows that can be taken one by one, and operations with forward derivatives.
    """
    if not probe.takes_rows or probe.loss.reduction != "per_sample" or probe.mode != "eval":
        return False
    few, v = probe.few, hashed_signs(probe.n_params, 0, "quadratics", dtype=probe.dtype, device=probe.device)
    try:
        with probe.measuring():
            rows = row_quadratics(probe, name, few, [v]).detach()
            whole = float(v @ (MATRICES[canonical(probe, name)](probe.at_batch(few, probe.dtype), compile=False) @ v))
    except (RuntimeError, NotImplementedError, TypeError, ValueError, DifferentiationError, NotApplicableError):
        return False
    found, size = float(rows.double().mean()), float(rows.double().abs().mean())
    return abs(found - whole) <= AGREEMENT * torch.finfo(probe.dtype).eps ** 0.5 * max(size, abs(found))


@dataclass(frozen=True)
class EarlyBracket:
    """[low, high] around the largest eigenvalue of all rows, a point in it, and the vector that some rows gave."""

    point: float
    low: float
    high: float
    vector: Tensor
    rows: int
    reliable: bool


def early_brackets(probe: Probe, name: str, sign: float, seed: int) -> Iterator[EarlyBracket | None]:
    """Brackets of the largest eigenvalue of `sign` · A, from more and more rows; at most about two products on all rows.

    Nothing where a pass is cheap, where there are few rows, or where they cannot be taken one by one. `None` while work is
    under way.
    """
    if is_small(probe) or probe.n_samples < 4 * FEWEST_ROWS or not has_row_quadratics(probe, name):
        return
    order = row_order(probe)
    if order is None:
        return
    spent = 0.0
    for _, count in order.looks():
        if spent and (count > MOST_ROWS * probe.n_samples or spent > 1.0):
            return
        found = yield from _bracket(probe, name, sign, order, count, seed)
        yield found
        spent += 3 * STEPS * count / probe.n_samples
        if found.reliable and (found.high - found.low) / 2 <= NARROW * found.point:
            return


def _bracket(
    probe: Probe, name: str, sign: float, order: RowOrder, count: int, seed: int
) -> Generator[None, None, EarlyBracket]:
    pi = order.probabilities(count)
    rows, certain = order.rows[:count], pi >= 1
    start = fresh_rows(1, probe.vector().new_zeros((0, probe.n_params)), generator(seed, "early"))[0]
    theta, v = _top(probe, name, sign, rows, 1 / pi, start)
    yield None
    turn = torch.arange(count) % 2 == 0
    halves = [certain | turn, certain | ~turn]
    vectors = []
    for half in halves:
        weights = torch.where(certain, 1.0, 2 / pi)[half]
        vectors.append(_top(probe, name, sign, rows[half], weights, v)[1])
        yield None
    values = sign * _quadratics(probe, name, rows, [v, *vectors])
    held_out = np.where(turn.numpy(), values[:, 2], values[:, 1])  # each vector on the rows that it has not seen
    both = (values[:, 1] + values[:, 2]) / 2
    crossed = row_mean(np.where(certain.numpy(), both, held_out)[:, None], order)
    plain = row_mean(values[:, :1], order)
    return _joined(theta, v, plain, crossed, count / probe.n_samples)


def _joined(theta: float, v: Tensor, plain: RowMean, crossed: RowMean, part: float) -> EarlyBracket:
    """The bracket from θ with the spread of its rows, and from the vectors evaluated on rows that they have not seen."""
    below = max(crossed.value - crossed.low, plain.value - plain.low)
    low, high = min(max(0.0, crossed.value - below), theta), theta + max(plain.high - plain.value, 0.0)
    gap = max(theta - crossed.value, 0.0)
    point = min(max(theta - gap * (1 - part) / (3 - 2 * part), low), high)  # unbiased to second order
    reliable = plain.reliable and crossed.value >= theta / 2 and (high - low) / 2 <= WIDE * point
    return EarlyBracket(point, low, high, v, plain.rows, reliable)


def leading_vectors(probe: Probe, name: str, seed: int, count: int) -> Tensor:
    """Orthonormal rows (count, P) along which the named matrix of the first rows is largest, in either direction."""
    order = row_order(probe)
    assert order is not None, "rows can be taken"
    _, rows = next(iter(order.looks()))
    operator = MATRICES[canonical(probe, name)](
        probe.on_rows(order.rows[:rows], 1 / order.probabilities(rows)), compile=False
    )
    start = fresh_rows(1, probe.vector().new_zeros((0, probe.n_params)), generator(seed, "leading"))[0]
    found = lanczos(operator, start, steps=min(STEPS, probe.n_params), seed=0)
    values, vectors = torch.linalg.eigh(found.tridiagonal()[0])
    largest = values.abs().argsort(descending=True)[:count]
    return vectors[:, largest].T.to(found.basis) @ found.basis[0]


def _top(probe: Probe, name: str, sign: float, rows: Tensor, weights: Tensor, start: Tensor) -> tuple[float, Tensor]:
    """The largest Ritz value of `sign` · A on some weighed rows, and its vector."""
    operator = MATRICES[canonical(probe, name)](probe.on_rows(rows, weights), compile=False)
    found = lanczos(operator, start, steps=min(STEPS, probe.n_params), seed=0)
    values, vectors = torch.linalg.eigh(sign * found.tridiagonal()[0])
    return float(values[-1]), vectors[:, -1].to(found.basis) @ found.basis[0]


def _quadratics(probe: Probe, name: str, rows: Tensor, vectors: list[Tensor]) -> np.ndarray:
    """vᵀA_i v of some rows (m, k)."""
    parts = probe.each(
        lambda batch: (row_quadratics(probe, name, batch, vectors).detach().to("cpu", torch.float64),),
        load=QUADRATIC_LOAD[name],
        passes=len(vectors) * QUADRATIC_PASSES[name],
        grad=False,
        batches=[probe.rows(rows)],
    )
    return torch.cat([part for _, (part,) in parts]).numpy()
