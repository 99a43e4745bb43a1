"""The largest rise of the loss in a scaled ball around θ, on all data or batch by batch, by projected ascent.

    max_{‖δ ⊘ c‖_p ≤ ρ} L_S(θ + δ) − L_S(θ),   S all samples, or each batch of m samples in turn

by ascent from several starts: the first at θ itself, the others random in the ball. What is found is a lower bound of the
maximum, and never below zero, since δ = 0 is allowed. Starts and batches climb together as one program where that is
faster (see `landscope.probe.perturbed`), one by one otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Literal

import torch
import torch.distributed as dist
from torch import Tensor

from landscope.core.distributed import processes
from landscope.core.errors import BudgetSpentError
from landscope.core.estimate import Estimate, Status
from landscope.core.seeding import generator, normal
from landscope.measures.norm_ball import NormBall
from landscope.probe.batches import Batch
from landscope.probe.perturbed import RowLosses, losses_at, losses_on_all_data, losses_on_batches
from landscope.probe.points import together, width
from landscope.probe.probe import Probe
from landscope.probe.samples import gather_values, m_batches

__all__ = [
    "AscentResult",
    "Method",
    "Search",
    "WorstCase",
    "affordable",
    "ascend",
    "ascent_estimate",
    "check_effort",
    "checkpoints",
    "worst_case",
]

# Ascent in a ball, many starts at once: plain projected steps and Auto-PGD (Croce & Hein 2020).
#
# Each row of a block (k, P) climbs its own function; rows share nothing but the program. The points are scaled, u = δ ⊘ c, so
# that the ball is ‖u‖_p ≤ ρ whatever the scaling c, and a coordinate with c = 0 simply does not move: nothing is ever
# divided by c. `steps` gradients and one last value per row.

Method = Literal["pga", "apgd"]
Evaluate = Callable[[Tensor, bool], tuple[Tensor, Tensor]]
"""(points (k, P), whether slopes are wanted) → values (k,) in float64, slopes (k, P) or anything where they are not."""

MOMENTUM = 0.75
"""Auto-PGD's α: the weight of the new step against the last one."""
PROGRESS = 0.75
"""Auto-PGD's threshold: the share of steps since the last checkpoint that must have raised the value."""


@dataclass(frozen=True)
class AscentResult:
    """The best point of each row, its value, the step at which it was seen (0: the start), and whether all steps were taken."""

    point: Tensor
    value: Tensor
    step: Tensor
    first: Tensor
    """The values at the starts."""
    complete: bool
    stationary: Tensor
    """Where the slope at the start is zero, so that the first step went along the kick."""


def checkpoints(steps: int) -> list[int]:
    """After which steps Auto-PGD looks back: 22 % of them, then at intervals that shrink to 6 %.

    >>> checkpoints(20)
    [5, 9, 12, 14, 16, 18, 19, 20]
    """
    points = [0.0, 0.22]
    while points[-1] < 1:
        points.append(points[-1] + max(points[-1] - points[-2] - 0.03, 0.06))
    return sorted({math.ceil(round(steps * share, 6)) for share in points[1:] if share <= 1} | {steps})


def ascend(
    evaluate: Evaluate,
    start: Tensor,
    kick: Tensor,
    ball: NormBall,
    steps: int,
    method: Method,
    plain: Tensor | None = None,
) -> AscentResult:
    """Climb from `start` and remember the best point seen.

    `apgd` begins with steps of 2ρ, halves them where progress stalls and goes back to the best point then. `pga` takes
    constant steps of 2.5ρ/steps, or, with `plain`, unnormalised ones: u + plain ⊙ slope. Where the slope at the start is
    exactly zero, the first step goes along `kick`. Values that are not finite are never the best.

    >>> bowl = lambda u, slopes: (u.square().sum(1).double(), 2 * u)
    >>> ascend(bowl, torch.zeros(1, 2), torch.tensor([[3.0, 4.0]]), NormBall(1.0, 2), 1, "apgd").value
    tensor([1.], dtype=torch.float64)
    """
    x = before = best_x = start
    value, slope = _finite(*evaluate(x, True))
    first, best, best_slope = value, value, slope
    found = torch.zeros_like(best, dtype=torch.long)
    stationary = ~slope.any(1)
    slope = torch.where(stationary[:, None], kick, slope)
    stride = torch.full_like(best, 2.0 * ball.radius if method == "apgd" else 2.5 * ball.radius / steps)
    looks = set(checkpoints(steps)) if method == "apgd" else set()
    rises, last_look, stride_then, best_then = torch.zeros_like(best), 0, stride, best
    for k in range(1, steps + 1):
        move = stride[:, None].to(x.dtype) * ball.steepest(slope) if plain is None else plain * slope
        ahead = ball.project(x + move)
        if method == "apgd" and k > 1:
            ahead = ball.project(x + MOMENTUM * (ahead - x) + (1 - MOMENTUM) * (x - before))
        before, x = x, ahead
        try:
            new, slope = _finite(*evaluate(x, k < steps))
        except BudgetSpentError:
            return AscentResult(best_x, best, found, first, False, stationary)
        rises, value = rises + (new > value), new
        better = value > best
        best = torch.where(better, value, best)
        found = torch.where(better, k, found)
        best_x = torch.where(better[:, None], x, best_x)
        if k == steps:
            break
        best_slope = torch.where(better[:, None], slope, best_slope)
        if k in looks:
            stalled = (rises < PROGRESS * (k - last_look)) | ((stride == stride_then) & (best == best_then))
            rises, last_look, stride_then, best_then = torch.zeros_like(rises), k, stride, best
            stride = torch.where(stalled, stride / 2, stride)
            x, before = (torch.where(stalled[:, None], best_x, y) for y in (x, before))
            slope = torch.where(stalled[:, None], best_slope, slope)
            value = torch.where(stalled, best, value)
    return AscentResult(best_x, best, found, first, True, stationary)


def _finite(values: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
    return values.nan_to_num(-math.inf, -math.inf, -math.inf), slopes.nan_to_num(0.0, 0.0, 0.0)


# The worst case of a probe: which starts climb together, and what they found.


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


def worst_case(
    probe: Probe,
    scale: Tensor,
    ball: NormBall,
    search: Search,
    batch_size: int | None = None,
    batches: int | None = None,
) -> WorstCase:
    """The worst case over ‖δ ⊘ scale‖_p ≤ ρ on all data, or the one of each batch of `batch_size` samples.

    On all data, the rise at the point found is evaluated once more, sample by sample: its standard error over the data is
    that of the maximum to first order, since moving the maximiser changes the maximum only to second order.
    """
    if batch_size is None:
        return _on_all_data(probe, scale, ball, search)
    return _on_batches(probe, scale, ball, search, batch_size, batches)


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
    gain, error = max(climbs.best - climbs.base, 0.0), None
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
) -> WorstCase:
    rank, world = (dist.get_rank(), processes()) if processes() > 1 else (0, 1)
    at_once = together(probe, batch_size)
    every = (
        (index * world + rank, batch, restart)
        for index, batch in enumerate(m_batches(probe, batch_size, batches, search.seed))
        for restart in range(search.restarts)
    )
    climbs: dict[int, _Climbs] = {}
    complete = True
    for group in _groups(every, probe, batch_size if at_once else None):
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
    whole = [c for c in climbs.values() if c.complete and c.done == search.restarts]
    kept = whole or list(climbs.values())
    found = [(max(c.best - c.base, 0.0), c.base, c.restart, c.step, c.failed / c.done, c.stationary) for c in kept]
    gains, bases, restarts, steps, fails, still = (gather_values([float(row[i]) for row in found]) for i in range(6))
    spread = torch.tensor(gains, dtype=torch.float64)
    error = float(spread.std() / len(gains) ** 0.5) if len(gains) > 1 else None
    failed = sum(fails) / len(fails)
    return WorstCase(
        gains, bases, failed, [int(r) for r in restarts], [int(s) for s in steps], error, complete, any(still)
    )


def _groups(
    rows: Iterator[tuple[int, Batch, int]], probe: Probe, samples: int | None
) -> Iterator[list[tuple[int, Batch, int]]]:
    """As many ascents as fit into memory together; one by one where `samples` is `None`."""
    at_once = 1 if samples is None else width(probe, 4096, VECTORS_HELD, samples)
    while group := list(islice(rows, at_once)):
        yield group


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


def affordable(passes: float, steps: int, restarts: int) -> tuple[int, int]:
    """(steps, restarts) that about this many passes allow: fewer restarts first, then fewer steps.

    >>> affordable(30, steps=20, restarts=4), affordable(8, steps=20, restarts=4)
    ((20, 1), (7, 1))
    """
    fewer = max(1, min(restarts, int(passes / (steps + 1))))
    return max(1, min(steps, int(passes / fewer) - 1)), fewer


def ascent_estimate(
    found: WorstCase, value: float, rho: float, search: Search, parameters: int, defined: bool = False
) -> Estimate:
    """The estimate of a worst case, with how it was found: a lower bound, unless the search itself defines the value."""
    exact = defined and found.complete
    status, reason = Status.LOWER_BOUND, f"what {_ascents(search)} found; more restarts can only find more"
    if not found.complete:
        status, reason = Status.BUDGET_SPENT, "the budget ended before all ascents were done; the maximum may be larger"
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
