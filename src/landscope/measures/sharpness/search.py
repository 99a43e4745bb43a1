"""The largest rise of the loss in a scaled ball around θ, on all data or batch by batch, by projected ascent.

    max_{‖δ ⊘ c‖_p ≤ ρ} L_S(θ + δ) − L_S(θ),   S all samples, or each batch of m samples in turn

by ascent from several starts: the first at θ itself, the others random in the ball. What is found is a lower bound of the
maximum, and never below zero, since δ = 0 is allowed. Starts and batches climb together as one program where that is
faster (see `landscope.probe.perturbed`), one by one otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

import torch
import torch.distributed as dist
from torch import Tensor

from landscope.core.distributed import processes
from landscope.core.errors import BudgetSpentError
from landscope.core.estimate import Estimate, Status
from landscope.core.seeding import generator, normal
from landscope.measures.row_measure import early_looks_pay
from landscope.measures.sharpness.ascent import AscentResult, Method, NormBall, ascend
from landscope.probe.batches import Batch
from landscope.probe.perturbed import (
    RowChanges,
    RowLosses,
    losses_at,
    losses_on_all_data,
    losses_on_batches,
)
from landscope.probe.points import together, width
from landscope.probe.probe import Probe
from landscope.probe.rows.last_layer import layer_bounds
from landscope.probe.rows.means import FEWEST, FEWEST_BATCHES, RowMean, batch_mean, row_mean
from landscope.probe.rows.order import DrawnRows
from landscope.probe.rows.outputs import row_order
from landscope.probe.rows.samples import batch_count, gather_values, m_batches

VECTORS_HELD = 12
"""Vectors (P,) that one ascent keeps: points, slopes, the best of both, perturbed parameters, work space."""


@dataclass(frozen=True)
class Search:
    """How the maximum is searched for."""

    steps: int
    restarts: int
    method: Method
    step_size: float | None = None
    """Plain gradient steps δ + step_size ∇L instead of normalised ones."""
    seed: int = 0


@dataclass(frozen=True)
class WorstCase:
    """The rise of the loss on each batch (or on all data), and how it was found."""

    gains: list[float]
    losses: list[float]
    """The unperturbed losses."""
    failed: float
    """The fraction of ascents that never saw a loss above the unperturbed one."""
    restart: list[int]
    step: list[int]
    data_stderr: float | None
    complete: bool
    stationary: bool
    """Whether some ascent started where the gradient is zero, with a random step."""

    @property
    def mean(self) -> float:
        """The mean rise over batches."""
        return sum(self.gains) / len(self.gains)


@dataclass
class _Climbs:
    """The ascents on one batch so far."""

    base: float = 0.0
    best: float = 0.0
    restart: int = 0
    step: int = 0
    failed: int = 0
    done: int = 0
    complete: bool = True
    stationary: bool = False
    point: Tensor | None = None

    @property
    def gain(self) -> float:
        """The largest rise; never below zero, since θ itself is allowed."""
        return max(self.best - self.base, 0.0)

    def add(self, restart: int, ascent: AscentResult, row: int) -> None:
        if restart == 0:
            self.base = self.best = float(ascent.first[row])
        value = float(ascent.value[row])
        self.failed += value <= self.base
        self.done += 1
        self.complete = self.complete and ascent.complete
        self.stationary = self.stationary or bool(ascent.stationary[row])
        if value > self.best:
            self.best, self.restart, self.step = value, restart, int(ascent.step[row])
            self.point = ascent.point[row]


def worst_cases(
    probe: Probe,
    scale: Tensor,
    ball: NormBall,
    search: Search,
    batch_size: int | None = None,
    batches: int | None = None,
) -> Iterator[WorstCase | CrossFit | RowMean | None]:
    """The worst case over ‖δ ⊘ scale‖_p ≤ ρ on all data, or the one of each batch of `batch_size` samples, as far as known.

    First the rise over all rows at a point that some of them led to (`cross_fit`), as other rows estimate it.
    At the end the rise at the point found is evaluated once more, sample by sample: its standard error over the data is that
    of the maximum to first order, since moving the maximiser changes the maximum only to second order. On batches, what the
    first of them gave, then all. Work that the budget ends yields what it has and raises.
    """
    if early_looks_pay(probe):
        yield cross_fit(probe, scale, ball, replace(search, steps=1), FEWEST)
    if batch_size is None:
        if early_looks_pay(probe) and search.steps > 1:
            yield cross_fit(probe, scale, ball, search)
        found = _on_all_data(probe, scale, ball, search)
        yield found
        if not found.complete:
            probe.ledger.check()
    else:
        yield from _on_batches(probe, scale, ball, search, batch_size, batches)


@dataclass(frozen=True)
class CrossFit:
    """The rise over all rows at a point inside the ball, as rows estimate it that have not led there."""

    rise: RowMean


def cross_fit(probe: Probe, scale: Tensor, ball: NormBall, search: Search, rows: int | None = None) -> CrossFit | None:
    """The rise over all rows at a point that half of the first `rows` lead to, estimated by the other half.

    No row judges a point that it has led to, but for those that the order is certain to take, whose part is known exactly.
    So the mean is that of a rise inside the ball, and its lower end is below the maximum; below the mean of the maxima of
    batches, too, each of which is at least the rise of its own rows there.
    """
    order = row_order(probe)
    if order is None or probe.loss.reduction != "per_sample":
        return None
    end = next(iter(order.looks()))[1] if rows is None else min(rows, probe.n_samples)
    pi = order.probabilities(end)
    certain, drawn = (pi >= 1).nonzero()[:, 0], (pi < 1).nonzero()[:, 0]
    if len(drawn) < 4 * FEWEST_BATCHES:
        return None
    leading, judging = drawn[::2], drawn[1::2]
    weights = torch.cat([torch.ones(len(certain)), 2 / pi[leading]])
    part = probe.on_rows(order.rows[torch.cat([certain, leading])], weights)
    once = replace(search, restarts=1)
    try:
        ascent = _climb(part, losses_on_all_data(part, False), scale, ball, once, [(0, 0)])
    except BudgetSpentError:
        return None
    if not ascent.complete:
        return None
    delta = scale * ascent.point[0]
    changes = RowChanges(probe, lambda _: delta, 1)
    rises = changes.of(order.rows[torch.cat([certain, judging])])[:, 1:]
    if not bool(torch.isfinite(rises).all()):
        return None
    taken = torch.cat([torch.ones(len(certain), dtype=pi.dtype), pi[judging] / 2])
    return CrossFit(row_mean(rises.numpy(), DrawnRows(order.rows, None, taken)))


def rise_of_last_layer(probe: Probe, scale: Callable[[], Tensor], ball: NormBall) -> Estimate:
    """At least the rise for the step of the last layer in the ball that gains most to first order, where that layer is known.

    Never below 0: the point itself lies in its neighbourhood. It bounds the mean of the maxima of batches, too.
    """
    bounds = layer_bounds(probe)
    if bounds is not None and bounds.rise is not None:
        slopes = {name: torch.zeros_like(p) for name, p in probe.params.items()} | dict(bounds.gradient)
        around = scale()
        step = around * ball.radius * ball.steepest((probe.space.flatten(slopes) * around)[None])[0]
        parts = probe.space.unflatten(step)
        low = bounds.rise({name: parts[name] for name in bounds.gradient}).low
        if low > 0:
            return bounds.at_least(low)
    return Estimate(0.0, status=Status.LOWER_BOUND, reason="the point itself lies in its neighbourhood")


def _on_all_data(probe: Probe, scale: Tensor, ball: NormBall, search: Search) -> WorstCase:
    climbs = _Climbs()
    at_once = search.restarts > 1 and together(probe, probe.n_samples / processes())
    group = width(probe, search.restarts, VECTORS_HELD) if at_once else 1
    losses = losses_on_all_data(probe, at_once)
    for start in range(0, search.restarts, group):
        rows = [(0, restart) for restart in range(start, min(start + group, search.restarts))]
        try:
            ascent = _climb(probe, losses, scale, ball, search, rows)
        except BudgetSpentError:
            if not climbs.done:
                raise
            climbs.complete = False
            break
        for i, (_, restart) in enumerate(rows):
            climbs.add(restart, ascent, i)
        if not climbs.complete:
            break
    gain, error = climbs.gain, None
    if climbs.point is not None and climbs.complete:
        delta = scale * climbs.point
        try:
            shifts = losses_at(probe, lambda _: delta, 1)
        except BudgetSpentError:
            pass
        else:
            gain, error = max(float(shifts.mean[0]), 0.0), shifts.data_stderr(torch.ones(1))
    failed = climbs.failed / max(climbs.done, 1)
    return WorstCase(
        [gain], [climbs.base], failed, [climbs.restart], [climbs.step], error, climbs.complete, climbs.stationary
    )


def _on_batches(
    probe: Probe, scale: Tensor, ball: NormBall, search: Search, batch_size: int, batches: int | None
) -> Iterator[WorstCase | RowMean | None]:
    rank, world = (dist.get_rank(), processes()) if processes() > 1 else (0, 1)
    at_once = together(probe, batch_size)
    every = (
        (index * world + rank, batch, restart)
        for index, batch in enumerate(m_batches(probe, batch_size, batches, search.seed))
        for restart in range(search.restarts)
    )
    total = batch_count(probe, batch_size, batches, search.seed)
    climbs: dict[int, _Climbs] = {}
    complete = True
    for group in _groups(every, probe, search.restarts, batch_size if at_once else None):
        rows = [(index, restart) for index, _, restart in group]
        losses = losses_on_batches(probe, [batch for _, batch, _ in group], at_once)
        try:
            ascent = _climb(probe, losses, scale, ball, search, rows)
        except BudgetSpentError:
            if not climbs:
                raise
            complete = False
            break
        for i, (index, restart) in enumerate(rows):
            climbs.setdefault(index, _Climbs()).add(restart, ascent, i)
        complete = complete and ascent.complete
        if not complete:
            break
        done = _whole(climbs, search)
        if world == 1 and total != len(done):
            yield None if total is None or len(done) < 2 else batch_mean([c.gain for c in done], total)
    whole = _whole(climbs, search)
    if not complete and world == 1 and total != len(climbs):
        if total is not None and len(whole) >= 2:
            yield batch_mean([c.gain for c in whole], total)
        elif total is not None and len(climbs) >= 2:  # ascents that were cut short have found less than they would
            yield replace(batch_mean([c.gain for c in climbs.values()], total), reliable=False)
        probe.ledger.check()
    kept = list(climbs.values())
    found = [(c.gain, c.base, c.restart, c.step, c.failed / c.done, c.stationary) for c in kept]
    gains, bases, restarts, steps, fails, still = (gather_values([float(row[i]) for row in found]) for i in range(6))
    spread = torch.tensor(gains, dtype=torch.float64)
    error = float(spread.std() / len(gains) ** 0.5) if len(gains) > 1 else None
    failed = sum(fails) / len(fails)
    yield WorstCase(
        gains, bases, failed, [int(r) for r in restarts], [int(s) for s in steps], error, complete, any(still)
    )
    if not complete:
        probe.ledger.check()


def _whole(climbs: Mapping[int, _Climbs], search: Search) -> list[_Climbs]:
    """Batches whose ascents are all done."""
    return [c for c in climbs.values() if c.complete and c.done == search.restarts]


def _groups(
    rows: Iterator[tuple[int, Batch, int]], probe: Probe, restarts: int, samples: int | None
) -> Iterator[list[tuple[int, Batch, int]]]:
    """Ascents that climb together: few at first, so that they say something early, then as many as fit into memory.

    One by one where `samples` is `None`.
    """
    fitting = 1 if samples is None else width(probe, 4096, VECTORS_HELD, samples)
    at_once = FEWEST_BATCHES * restarts
    while group := list(islice(rows, min(fitting, at_once))):
        yield group
        at_once *= 2


def _climb(
    probe: Probe, losses: RowLosses, scale: Tensor, ball: NormBall, search: Search, rows: Sequence[tuple[int, int]]
) -> AscentResult:
    """One ascent for each (batch, restart): the first of a batch starts at θ, the others at random."""
    moves = scale != 0

    def normals(*stream: str | int) -> Tensor:
        drawn = normal((probe.n_params,), generator(search.seed, *stream), torch.float32, probe.device)
        return drawn.to(probe.dtype) * moves

    def evaluate(points: Tensor, slopes: bool) -> tuple[Tensor, Tensor]:
        values, gradients = losses(points * scale, slopes)
        return values, gradients * scale if slopes else gradients

    starts = [normals("start", *row) if row[1] else torch.zeros_like(scale) for row in rows]
    kicks = torch.stack([normals("kick", *row) for row in rows])
    plain = None
    if search.step_size is not None:
        plain = torch.where(moves, search.step_size / torch.where(moves, scale, 1.0).square(), 0.0)
    return ascend(evaluate, ball.random(torch.stack(starts)), kicks, ball, search.steps, search.method, plain)


def check_effort(steps: int, restarts: int, batch_size: int | None = None, batches: int | None = None) -> None:
    """Refuse counts below one."""
    for name, count in {"steps": steps, "restarts": restarts, "batch_size": batch_size, "batches": batches}.items():
        if count is not None and count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")


def early_estimate(found: CrossFit | RowMean | None, factor: float = 1.0, defined: bool = False) -> Estimate | None:
    """What is known before the end: "at least" the lower end of a rise, or of the mean over batches.

    Ascents find no more than the maximum, so that no upper end is honest, unless the search itself defines the value.
    """
    if found is None:
        return None
    if isinstance(found, CrossFit):
        reason = f"the rise at a point that {found.rise.rows:,} rows led to or judge"
        return Estimate(factor * max(found.rise.low, 0.0), status=Status.LOWER_BOUND, reason=reason)
    estimate, reason = found.estimate(), f"what {found.rows:,} batches gave"
    if not defined or estimate.status.is_bound:
        return Estimate(max(found.low, 0.0), status=Status.LOWER_BOUND, reason=reason)
    low, high = estimate.bracket or (estimate.value, estimate.value)
    return replace(estimate, bracket=(max(low, 0.0), high), reason=reason)


def ascent_estimate(
    found: WorstCase, value: float, rho: float, search: Search, parameters: int, defined: bool = False
) -> Estimate:
    """The estimate of a worst case, with how it was found: a lower bound, unless the search itself defines the value."""
    exact = defined and found.complete
    status, reason = Status.LOWER_BOUND, f"what {_ascents(search)} found; more restarts can only find more"
    if not found.complete:
        reason = "the budget ended before all ascents were done; the maximum may be larger"
    elif exact:
        status, reason = Status.EXACT, ""
    if found.complete and not any(found.gains):
        reason = "no ascent found a loss above the unperturbed one"
    return Estimate(
        value,
        stderr=0.0 if exact else None,
        data_stderr=found.data_stderr,
        status=status,
        reason=reason,
        details={
            "raw": value,
            "per_rho": value / rho,
            "per_batch": list(found.gains),
            "loss": sum(found.losses) / len(found.losses),
            "method": search.method,
            "steps": search.steps,
            "restarts": search.restarts,
            "failed_ascents": found.failed,
            "found_by_restart": list(found.restart),
            "found_at_step": list(found.step),
            "parameters": parameters,
        },
    )


def _ascents(search: Search) -> str:
    steps = "1 step" if search.steps == 1 else f"{search.steps} steps"
    return f"1 ascent of {steps}" if search.restarts == 1 else f"{search.restarts} ascents of {steps}"
