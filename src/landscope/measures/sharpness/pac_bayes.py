"""The PAC-Bayes noise scale (Neyshabur et al. 2017; Jiang et al. 2020): how much Gaussian noise the parameters tolerate.

    σ* = largest σ with  E_{z ~ N(0, I)} [ L(θ + σ c ⊙ z) ] − L(θ) ≤ target,   c = 1, or c = |θ| (`adaptive`)

σ is a standard deviation; 1/σ² is the sharpness in the bounds. The mean is taken over the same pairs ±z at every
σ, so that it is a smooth function of σ, whose first crossing of the target is bracketed by doubling, and found where the power
law through both ends meets the target. For small targets σ* ≈ √(2 target / tr H). With `metric="accuracy"` the target is a drop
in accuracy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from landscope.core.errors import BudgetSpentError, NotApplicableError
from landscope.core.estimate import Estimate, Status
from landscope.measures.base import register
from landscope.measures.facts import Better
from landscope.measures.row_measure import early_looks_pay
from landscope.measures.sharpness.random_noise import FIRST_NOISE, PartOfRows
from landscope.measures.sharpness.worst_case import RESCALINGS, PerturbationMeasure, adaptive_scale
from landscope.probe.batches import Batch
from landscope.probe.loss.answers import right_answers
from landscope.probe.perturbed import (
    RowChanges,
    Shifts,
    antithetic,
    check_positive,
    direction,
    included,
    losses_at,
    sample_losses,
)
from landscope.probe.points import SampleFunction, width
from landscope.probe.probe import Probe
from landscope.probe.rows.means import FEWEST
from landscope.probe.rows.outputs import row_order

ALMOST_ALL = 0.8
"""Part of the target that an error may be before nothing is said about the upper end."""
EARLY_TOL = 0.2
"""Relative width of the bracket from a few rows, whose own error is larger."""
DOUBLINGS = 40
"""How often the bracket is doubled or halved: a factor of 10¹² either way."""


@dataclass(frozen=True)
class Bracket:
    """rise(low) ≤ target < rise(high), and the exponent q of rise ∝ σ^q around it."""

    low: float
    high: float
    rise_low: float
    rise_high: float
    exponent: float
    evaluations: int

    def crossing(self, target: float) -> float:
        """Where the line through both ends meets the target."""
        if not math.isfinite(self.rise_high):
            return self.low
        return self.low + (self.high - self.low) * (target - self.rise_low) / (self.rise_high - self.rise_low)


def first_crossing(
    rise: Callable[[float], float], target: float, start: float, tol: float
) -> Generator[None, None, Bracket | None]:
    """Bracket the σ at which a rising function first exceeds `target`, to a relative width `tol`; `None`: it never does.

    A generator that pauses after every evaluation and returns the bracket.

    >>> search = first_crossing(lambda s: s**2, 0.25, start=10.0, tol=0.01)
    >>> try:
    ...     while True: next(search)
    ... except StopIteration as end: bracket = end.value
    >>> abs(bracket.crossing(0.25) - 0.5) < 1e-4, round(bracket.exponent, 6)
    (True, 2.0)
    """
    low = high = start
    rise_low = rise_high = rise(start)
    yield
    count = 1
    while not rise_low <= target or rise_high <= target:
        if count > DOUBLINGS:
            return None
        if rise_high <= target:
            low, rise_low, high = high, rise_high, 2 * high
            rise_high = rise(high)
        else:
            high, rise_high, low = low, rise_low, low / 2
            rise_low = rise(low)
        yield
        count += 1
    exponent = 2.0
    if rise_low > 0 and math.isfinite(rise_high):
        exponent = math.log(rise_high / rise_low) / math.log(high / low)
    widths = [math.inf, math.inf]
    while (width := high / low) > 1 + tol:
        slow = math.log(width) > math.log(widths[-2]) / 2
        widths.append(width)
        sigma = math.sqrt(low * high) if slow else _predicted(low, high, rise_low, rise_high, target, tol)
        found = rise(sigma)
        yield
        count += 1
        if found <= target:
            low, rise_low = sigma, found
        else:
            high, rise_high = sigma, found
    return Bracket(low, high, rise_low, rise_high, exponent, count)


def _power_of_two(size: float) -> float:
    """The nearest: a bracket that doubling finds does then not depend on where it started."""
    return 2.0 ** round(math.log2(size))


def _predicted(low: float, high: float, rise_low: float, rise_high: float, target: float, tol: float) -> float:
    """Where the power law through both ends meets the target, less than `tol` beyond that as seen from the nearer end.

    Where the law holds, two values close the bracket.
    """
    if not (rise_low > 0 and math.isfinite(rise_high)):
        return math.sqrt(low * high)
    met = low * (high / low) ** (math.log(target / rise_low) / math.log(rise_high / rise_low))
    beyond = 1 + tol / 3
    return (
        min(met * beyond, math.sqrt(met * high)) if met / low < high / met else max(met / beyond, math.sqrt(met * low))
    )


def sample_errors(probe: Probe, params: Mapping[str, Tensor], batch: Batch) -> Tensor:
    """The fraction of wrong predictions of each sample (n,): 0 or 1 where it has one label."""
    try:
        right = right_answers(probe.loss, probe.outputs(params, batch), probe.targets(batch), batch.size)
    except NotApplicableError as error:
        raise NotApplicableError(f"{error}; use metric='loss'") from error
    return 1 - right


@register("pac_bayes_sigma")
@dataclass(frozen=True, kw_only=True)
class PacBayesSigma(PerturbationMeasure):
    """The largest noise scale σ that raises the mean loss (or lowers the accuracy) by at most `target`.

    `samples` noise vectors (in pairs ±z) at every σ, `tol` the relative width of the bracket. The error bar is that of the mean
    over pairs, widened where there are few of them (Student), and divided by its slope in σ.

    >>> probe = Probe(torch.nn.Linear(2, 1, bias=False), (torch.eye(2), torch.zeros(2, 1)), "mse")
    >>> estimate = PacBayesSigma(target=0.01, samples=400)(probe)      # rise = σ²
    >>> abs(estimate.value - 0.1) < 4 * estimate.stderr
    True
    """

    title = "PAC-Bayes σ"
    flatter: ClassVar[Better] = "higher"
    unit = "parameter"
    cost = "about 21 forward passes for every σ that is tried"
    reference = "Neyshabur et al. 2017; Jiang et al. 2020"
    invariant_to: ClassVar[frozenset[str]] = frozenset({"logit_shift"})

    target: float = 0.1
    metric: Literal["loss", "accuracy"] = "loss"
    samples: int = 20
    tol: float = 0.02
    adaptive: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(target=self.target, tol=self.tol)
        if self.metric not in ("loss", "accuracy"):
            raise ValueError(f"metric must be 'loss' or 'accuracy', got {self.metric!r}")
        if self.samples < 4 or self.samples % 2:
            raise ValueError(
                f"samples come in pairs and an error bar needs two: an even number ≥ 4, got {self.samples}"
            )

    @property
    def invariances(self) -> frozenset[str]:
        """Noise in proportion to the weights ignores their scale, but not a shift of the logits."""
        return RESCALINGS if self.adaptive else self.invariant_to

    def at_once(self, probe: Probe) -> Estimate | None:
        """A scale is not negative."""
        return Estimate(0.0, status=Status.LOWER_BOUND, reason="no scale has been tried")

    def refine(self, probe: Probe) -> Iterator[Estimate | None]:
        """The search on the first rows, then on all."""
        moved = included(probe, self.include)
        noise = self._noise(moved)
        start = self._start(moved)
        if RowChanges.fit(moved, self.samples, self._values) and early_looks_pay(moved):
            early, near = yield from self._early(moved, noise, start)
            start = start if near is None else _power_of_two(near)
            yield early
        else:
            yield None
        seen: dict[float, float] = {}

        def shifts(sigma: float) -> Shifts:
            return losses_at(moved, noise(sigma), self.samples, self._values)

        def rise(sigma: float) -> float:
            mean = shifts(sigma).pair_mean()[0]
            seen[sigma] = mean if math.isfinite(mean) else math.inf
            return seen[sigma]

        try:
            bracket = yield from first_crossing(rise, self.target, start, self.tol)
        except BudgetSpentError:
            if (between := self._between(seen)) is not None:
                yield between
            raise
        if bracket is None:
            raise NotApplicableError(
                f"no noise scale was found that costs {self.target:g} in {self.metric}: the cost is below it, or above it, at "
                f"every scale tried. Ask for another target."
            )
        sigma = bracket.crossing(self.target)
        final = shifts(sigma)
        mean, error = final.pair_mean()
        slope = max(bracket.exponent, 0.5) * self.target / sigma
        data_error = final.data_stderr(torch.full((self.samples,), 1 / self.samples))
        yield Estimate(
            sigma,
            stderr=math.hypot(error / slope, (bracket.high - bracket.low) / 4) if math.isfinite(mean) else bracket.high,
            data_stderr=None if data_error is None else data_error / slope,
            status=Status.CONVERGED,
            details={
                "sharpness": 1 / sigma**2,
                "bracket": [bracket.low, bracket.high],
                "rise_at_value": mean if math.isfinite(mean) else None,
                "rise_exponent": bracket.exponent,
                "scales_tried": bracket.evaluations + 1,
                "at_rest": final.base,
                "parameters": moved.n_params,
            },
        )

    @property
    def _values(self) -> SampleFunction:
        return sample_losses if self.metric == "loss" else sample_errors

    def _start(self, moved: Probe) -> float:
        size = 1.0 if self.adaptive else float(moved.vector().square().mean().sqrt())
        return _power_of_two(0.1 * size or 0.01)

    def _noise(self, moved: Probe) -> Callable[[float], Callable[[int], Tensor]]:
        """δ_j at a scale σ; the same normals at every σ, kept where there is room."""
        unit = adaptive_scale(moved, 0.0) if self.adaptive else torch.ones_like(moved.vector())
        pairs = self.samples // 2
        normals: Callable[[int], Tensor] = partial(direction, moved, self.seed)
        if width(moved, pairs, vectors=1) == pairs:
            normals = cache(normals)
        return lambda sigma: antithetic(normals, sigma * unit)

    def _between(self, seen: Mapping[float, float]) -> Estimate | None:
        """What the scales tried so far say: σ* lies above those that cost too little, and below those that cost too much."""
        fine = [sigma for sigma, rise in seen.items() if rise <= self.target]
        above = [sigma for sigma, rise in seen.items() if rise > self.target]
        low = max((sigma for sigma in fine if sigma < min(above, default=math.inf)), default=None)
        if low is None:
            return None
        return Estimate(low, status=Status.LOWER_BOUND, reason=f"of {len(seen)} scales tried")

    def _early(
        self, moved: Probe, noise: Callable[[float], Callable[[int], Tensor]], start: float
    ) -> Generator[None, None, tuple[Estimate | None, float | None]]:
        """The search on the first rows: where their mean rise meets the target, with the errors of rows and of noise."""
        order = row_order(moved)
        assert order is not None, "rows can be taken"
        rows, count = order.rows[:FEWEST], min(self.samples, FIRST_NOISE)

        def part(sigma: float) -> PartOfRows:
            changes = RowChanges(moved, noise(sigma), count, self._values)
            return PartOfRows(changes.of(rows)[:, 1:].numpy(), order)

        def rise(sigma: float) -> float:
            mean = part(sigma).columns().pair_mean()[0]
            return mean if math.isfinite(mean) else math.inf

        bracket = yield from first_crossing(rise, self.target, start, EARLY_TOL)
        if bracket is None or not math.isfinite(bracket.rise_high):
            return None, None
        sigma = bracket.crossing(self.target)
        found = part(sigma)
        mean = found.mean(np.full(count, 1 / count))
        pairs = found.columns().pair_mean()[1]
        power = -1 / max(bracket.exponent, 0.5)
        above = math.hypot(mean.high - mean.value, 2 * pairs) / self.target + EARLY_TOL
        below = math.hypot(mean.value - mean.low, 2 * pairs) / self.target + EARLY_TOL
        low = sigma * (1 + above) ** power
        if not mean.reliable or below >= ALMOST_ALL:
            return Estimate(low, status=Status.LOWER_BOUND, reason=found.reason), sigma
        high = sigma * (1 - below) ** power
        return Estimate(sigma, (high - low) / 4, None, Status.RUNNING, found.reason, bracket=(low, high)), sigma
