"""What some of the rows say about a curvature matrix of all: quadratic forms per row, and an early bracket of λ₁.

With S the first m rows in the order of `landscope.probe.rows.order`, weighed by 1/π, and (θ, v) the top Ritz pair of A_S:

- θ lies above λ₁ on average (the largest eigenvalue is convex), and to first order it scatters as vᵀA_S v does;
- v₁ found on one half of the rows and evaluated on the other, v₁ᵀA₂v₁, is an unbiased Rayleigh quotient: below λ₁ on average.

The bracket [cross-fit − t·se, θ + (t + skew)·se] held the truth in 94 to 100 % of all settings tried, where every debiased
symmetric bar failed somewhere (`docs/progressive.md`). More rows are a poor way to precision: a few per cent of the rows give
the bracket and a start vector, products on all rows the rest.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from landscope.core.errors import DifferentiationError, LandscopeError, NotApplicableError
from landscope.core.memory import is_out_of_memory
from landscope.core.seeding import generator, hashed_signs
from landscope.curvature.matrices import GaussNewtonOperator
from landscope.curvature.per_sample import TANGENT_LOAD, TANGENT_PASSES, output_tangents, second_derivatives
from landscope.measures.sharpness.matrices import MATRICES, canonical, matrix
from landscope.probe.batches import Batch
from landscope.probe.points import is_small
from landscope.probe.probe import Probe
from landscope.probe.rows.means import WIDE, RowMean, row_mean
from landscope.probe.rows.order import DrawnRows, RowOrder, look_ends
from landscope.probe.rows.outputs import outputs_of, row_order
from landscope.probe.shared import once_per_probe
from landscope.probe.totals import FORWARD
from landscope.spectra.lanczos import LONG, fresh_rows, lanczos, lanczos_steps

log = logging.getLogger(__name__)

QUADRATIC_PASSES = {"hessian": 4 * FORWARD, "ggn": TANGENT_PASSES, "fisher": TANGENT_PASSES}
"""What one quadratic form of all rows costs, in gradients."""
QUADRATIC_LOAD = {"hessian": 2.0, "ggn": TANGENT_LOAD, "fisher": TANGENT_LOAD}
AGREEMENT = 3.0
"""Allowed difference of two ways to a quadratic form, in square roots of the machine epsilon; below 0.05 of them was seen."""

STEPS, HALF_STEPS, FIRST_STEPS = 10, 6, 2
"""Lanczos steps on some of the rows, as many as their own sampling error needs; on each half of them, from where all of them led;
and on the very first ones, from their gradient."""
MOST_PRODUCTS = 1.5
"""Products on all rows that brackets may cost: beyond that, products on all rows are the better way."""
LAUNCHES = {"cuda": 2**32}
"""Bytes of activations below which a product takes as long as with this many: a GPU is then busy with launching operations."""
FEWEST_ROWS = 20
NARROW = 0.3
"""Half-width, relative to the point, below which more rows do not pay."""


def row_quadratics(probe: Probe, name: str, batch: Batch, directions: Sequence[Tensor]) -> Tensor:
    """vᵀA_i v of every row of a piece (n, k), for k directions (P,) and the named matrix A, the mean of the A_i.

    The Hessian: d²/dt² ℓ_i(θ + t v), forward mode over forward mode, about four forward passes each. Matrices JᵀBJ: one
    forward-mode derivative u = J_i v, and uᵀB_i u. Nothing is kept for a way back.

    >>> probe = Probe(torch.nn.Linear(1, 1, bias=False), (torch.tensor([[1.0], [2.0]]), torch.zeros(2, 1)), "mse")
    >>> row_quadratics(probe, "hessian", next(probe.batches()), [torch.ones(1)]).flatten()      # ℓ = (w x)²
    tensor([2., 8.])
    """
    if name == "hessian":
        probe.ledger.leave_time_for_imports()
        try:
            return torch.stack([second_derivatives(probe, batch, v) for v in directions], 1)
        except (RuntimeError, NotImplementedError, TypeError, ValueError) as error:
            if isinstance(error, LandscopeError) or is_out_of_memory(error):
                raise
            first = str(error).splitlines()[0]
            raise DifferentiationError(f"second derivatives of single rows need forward mode twice: {first}") from error
    operator = matrix(probe, name)
    assert isinstance(operator, GaussNewtonOperator)
    found = []
    for v in directions:
        z, u = output_tangents(probe, batch, probe.space.unflatten(v), f"the {name} of single rows")
        found.append((u * operator._curve(z, u, batch)).reshape(batch.size, -1).sum(1, dtype=torch.float64))
    return torch.stack(found, 1)


@once_per_probe
def has_row_quadratics(probe: Probe, name: str) -> bool:
    """Whether quadratic forms of single rows exist and are right, tried on a few telling rows against the matrix's product.

    They need a loss per sample, rows that can be taken one by one, and operations with forward derivatives.
    """
    if not probe.takes_rows or probe.loss.reduction != "per_sample" or probe.mode != "eval":
        return False
    rows = _telling_rows(probe)
    few = probe.rows(rows)
    try:
        if _agrees(probe.on_rows(rows, torch.full((few.size,), probe.n_samples / few.size)), few, name):
            return True
        return probe.dtype != torch.float64 and _agrees(probe.at_batch(few, torch.float64), few, name)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, DifferentiationError, NotApplicableError):
        return False


def _agrees(probe: Probe, few: Batch, name: str) -> bool:
    """Whether the mean quadratic form of a few rows, all that a probe has, is that of its matrix."""
    v = hashed_signs(probe.n_params, 0, "quadratics", dtype=probe.dtype, device=probe.device)
    with probe.measuring():
        with torch.no_grad():  # as they are taken: some operations have their derivatives only where gradients are on
            rows = row_quadratics(probe, name, few.prepared(probe.ready), [v]).detach()
        whole = float(v @ (MATRICES[canonical(probe, name)](probe, compile=False) @ v))
    found, size = float(rows.double().mean()), float(rows.double().abs().mean())
    return abs(found - whole) <= AGREEMENT * torch.finfo(probe.dtype).eps ** 0.5 * max(size, abs(found))


def _telling_rows(probe: Probe) -> Tensor:
    """A few rows that carry curvature: those on which the network is certain and right have little else than rounding."""
    outputs, count = outputs_of(probe), probe.few.size
    while outputs.rows < FEWEST_ROWS and outputs.advance():
        pass
    if outputs.sizes is None or outputs.order is None:
        return torch.arange(count)
    largest = outputs.sizes.topk(min(count, outputs.rows)).indices
    return largest if outputs.complete else outputs.order.rows[largest]


@dataclass(frozen=True)
class EarlyBracket:
    """[low, high] around an extreme eigenvalue of all rows, a point in it, and the vector that some rows gave."""

    point: float
    low: float
    high: float
    vector: Tensor
    rows: int
    reliable: bool

    def above(self, low: float) -> EarlyBracket | None:
        """The bracket with a lower end that is certain; `None` where it was not reliable, or does not hold that."""
        if not self.reliable or low > self.high:
            return None
        return self if low <= self.low else replace(self, low=low, point=max(low, self.point))


class _Pilot:
    """Brackets of both ends of the spectrum from more and more rows, found once for all measures that look at a matrix."""

    def __init__(self, probe: Probe, name: str, seed: int) -> None:
        self.found: list[dict[float, EarlyBracket]] = []
        self._stages = _stages(probe, name, seed)

    def advance(self) -> bool:
        """A further product or bracket; `False` where there is none, or where rows turn up that have no quadratic forms."""
        try:
            step = next(self._stages, False)
        except DifferentiationError as error:
            log.info("no further brackets from some of the rows: %s", error)
            return False
        if isinstance(step, dict):
            self.found.append(step)
        return step is not False


@once_per_probe
def _pilot(probe: Probe, name: str, seed: int) -> _Pilot:
    return _Pilot(probe, name, seed)


def early_brackets(probe: Probe, name: str, sign: float, seed: int) -> Iterator[EarlyBracket | None]:
    """Brackets of the largest eigenvalue of `sign` · A, from more and more rows; about one product on all rows.

    Nothing where a pass is cheap, where there are few rows, or where they cannot be taken one by one. `None` while work is
    under way.
    """
    pilot, seen = _pilot(probe, name, seed), 0
    while seen < len(pilot.found) or pilot.advance():
        if seen == len(pilot.found):
            yield None
        elif sign in pilot.found[seen]:
            yield pilot.found[seen][sign]
            seen += 1


@once_per_probe
def leading_direction(probe: Probe, name: str, seed: int) -> Tensor:
    """Where products on all rows start from once `early_brackets` have ended: what some rows lead to, for both ends alike."""
    ends = _pilot(probe, name, seed).found[-1].values()
    return torch.stack([end.vector / end.vector.norm() for end in ends]).sum(0)


Ends = dict[float, EarlyBracket]
"""The bracket of the largest eigenvalue under +1, that of minus the smallest under −1."""


def _stages(probe: Probe, name: str, seed: int) -> Generator[Ends | None, None, None]:
    """What ten rows say, then brackets from as many rows as are worth it.

    Where a GPU is as long over ten rows as over many and no bracket is worth it, products on all rows are the faster way from the
    start; only a budget, which may end before them, then makes it ask ten rows. No clock decides: values would depend on it.
    """
    if is_small(probe) or probe.n_samples < 4 * FEWEST_ROWS or probe.narrow or probe.n_params >= LONG:
        return
    fewest = LAUNCHES.get(probe.device.type, 0) / probe.activation_bytes
    signs = (1.0, -1.0) if name == "hessian" else (1.0,)
    counts = _worth_it(probe.n_samples, fewest, STEPS + HALF_STEPS + 3 * len(signs))
    pays = bool(counts) or fewest <= FEWEST_ROWS or probe.ledger.bounded
    if fewest > probe.n_samples / 8 or not pays or not has_row_quadratics(probe, name):
        return
    order = row_order(probe)
    if order is None:
        return
    yield (yield from _first(probe, name, signs, order))
    for count in counts:
        found = yield from _brackets(probe, name, signs, order, count, seed)
        yield found
        if all(end.reliable and (end.high - end.low) / 2 <= NARROW * end.point for end in found.values()):
            return


def _worth_it(rows: int, fewest: float, products: int) -> list[int]:
    """How many of the rows to make brackets of, one after the other, where fewer than `fewest` take no less time than these.

    >>> _worth_it(2000, 0, 22), _worth_it(2000, 230, 22), _worth_it(50_000, 230, 22)
    ([120], [], [2048])
    """
    spent, counts = 0.0, []
    for count in look_ends(rows):
        spent += products * max(count, fewest) / rows
        if spent > MOST_PRODUCTS:
            break
        if count >= 2 * FEWEST_ROWS:
            counts.append(count)
    return counts


def _first(probe: Probe, name: str, signs: Sequence[float], order: RowOrder) -> Generator[None, None, Ends]:
    """At least the curvature along vectors that a few rows lead to and as many others judge."""
    pi = order.probabilities(FEWEST_ROWS)
    leading, judging = torch.arange(0, FEWEST_ROWS, 2), torch.arange(1, FEWEST_ROWS, 2)
    part = probe.on_rows(order.rows[leading], 1 / pi[leading])
    slope = part.gradient()
    yield None
    start = slope if bool(slope.any()) else torch.ones_like(slope)
    vectors = yield from _extremes(probe, name, signs, order.rows[leading], 1 / pi[leading], start, FIRST_STEPS)
    values = _quadratics(probe, name, order.rows[judging], [vector for _, vector in vectors])
    drawn = DrawnRows(order.rows, None, (pi[judging] / 2).clamp(max=1.0))
    found: Ends = {}
    for sign, (_, vector), column in zip(signs, vectors, values.T, strict=True):
        judged = row_mean(sign * column[:, None], drawn)
        low = judged.low if name == "hessian" else max(judged.low, 0.0)
        found[sign] = EarlyBracket(judged.value, low, math.inf, vector, FEWEST_ROWS, False)
    return found


def _brackets(
    probe: Probe, name: str, signs: Sequence[float], order: RowOrder, count: int, seed: int
) -> Generator[None, None, Ends]:
    pi = order.probabilities(count)
    rows, certain = order.rows[:count], pi >= 1
    start = fresh_rows(1, probe.vector().new_zeros((0, probe.n_params)), generator(seed, "early"))[0]
    whole = yield from _extremes(probe, name, signs, rows, 1 / pi, start, STEPS)
    near = torch.stack([vector for _, vector in whole]).sum(0)
    turn = torch.arange(count) % 2 == 0
    halves = []
    for half in (certain | turn, certain | ~turn):
        weights = torch.where(certain, 1.0, 2 / pi)[half]
        halves.append((yield from _extremes(probe, name, signs, rows[half], weights, near, HALF_STEPS)))
    found: Ends = {}
    for end, sign in enumerate(signs):
        theta, v = whole[end]
        values = sign * _quadratics(probe, name, rows, [v, halves[0][end][1], halves[1][end][1]])
        yield None
        held_out = np.where(turn.numpy(), values[:, 2], values[:, 1])  # each vector on the rows that it has not seen
        both = (values[:, 1] + values[:, 2]) / 2
        crossed = row_mean(np.where(certain.numpy(), both, held_out)[:, None], order)
        plain = row_mean(values[:, :1], order)
        found[sign] = _joined(theta, v, plain, crossed, count / probe.n_samples)
    return found


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
    found = lanczos(operator, start, steps=min(2 * count, probe.n_params), seed=0)
    values, vectors = torch.linalg.eigh(found.tridiagonal()[0])
    largest = values.abs().argsort(descending=True)[:count]
    return vectors[:, largest].T.to(found.basis) @ found.basis[0]


def _extremes(
    probe: Probe, name: str, signs: Sequence[float], rows: Tensor, weights: Tensor, start: Tensor, steps: int
) -> Generator[None, None, list[tuple[float, Tensor]]]:
    """The largest Ritz value of `sign` · A on some weighed rows, and its vector, for every sign; a product a step."""
    operator = MATRICES[canonical(probe, name)](probe.on_rows(rows, weights), compile=False)
    for found in lanczos_steps(operator, start, min(steps, probe.n_params), seed=0):  # noqa: B007
        yield None
    values, vectors = torch.linalg.eigh(found.tridiagonal()[0])
    ends = [-1 if sign > 0 else 0 for sign in signs]
    return [
        (sign * float(values[end]), vectors[:, end].to(found.basis) @ found.basis[0])
        for sign, end in zip(signs, ends, strict=True)
    ]


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
