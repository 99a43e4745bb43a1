"""Sharpness under random noise: its mean, and along random directions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from landscope.core.estimate import Estimate, Status, student_quantile
from landscope.measures.base import register
from landscope.measures.row_measure import RowValues, early_looks_pay
from landscope.measures.sharpness.worst_case import (
    RESCALINGS,
    PerturbationMeasure,
    adaptive_scale,
    highest_loss,
    require_finite,
)
from landscope.probe.perturbed import (
    RowChanges,
    Shifts,
    antithetic,
    check_positive,
    direction,
    included,
    losses_at,
    on_sphere,
    shifts_of,
)
from landscope.probe.probe import LARGE, Probe
from landscope.probe.rows.means import FEWEST, QUANTILE, RowMean, row_mean
from landscope.probe.rows.order import RowOrder
from landscope.probe.rows.outputs import row_order

FIRST_NOISE = 6
"""Perturbations of a first look at a large network."""
LEAST_ROWS = 6
"""Rows of a first look."""


# Every noise vector on the rows read so far. What they have in common: the rows are a sample of all rows, and the vectors a
# sample of all noise. Both errors are in the bar, until every row is read and that of the noise alone is left.


@dataclass(frozen=True)
class PartOfRows:
    """The changes d_ij of the first rows of an order (m, k) under all perturbations."""

    changes: np.ndarray
    order: RowOrder

    @property
    def count(self) -> int:
        """How many perturbations there are."""
        return self.changes.shape[1]

    @property
    def reason(self) -> str:
        """How far the rows are read."""
        return f"after {len(self.changes):,} rows"

    def check(self, what: str) -> None:
        """Refuse a loss that overflows on some row: it does on all of them together, too."""
        total = torch.from_numpy(self.changes.sum(0))
        require_finite(Shifts(0.0, total, None, len(self.changes)), what)

    def mean(self, weights: np.ndarray) -> RowMean:
        """The mean over rows of Σ_j w_j d_ij."""
        return row_mean((self.changes @ weights)[:, None], self.order)

    def columns(self) -> Shifts:
        """The mean over all rows of every perturbation, as these rows estimate it."""
        pi = self.order.probabilities(len(self.changes)).numpy()
        means = (self.changes / (len(self.order.rows) * pi[:, None])).sum(0)
        return Shifts(0.0, torch.from_numpy(means), None, len(self.changes))

    def each(self) -> list[RowMean]:
        """The mean over rows of every perturbation."""
        return [row_mean(column[:, None], self.order) for column in self.changes.T]


def first_rows(probe: Probe, order: RowOrder, changes: RowChanges) -> PartOfRows:
    """The changes on the first rows: enough for an error bar, fewer where others have no patience for that."""
    fitting = 2 * probe.ledger.samples_in_time(changes.passes / probe.n_samples)
    count = min(FEWEST, probe.n_samples, max(LEAST_ROWS, int(min(fitting, FEWEST))))
    return PartOfRows(changes.of(order.rows[:count])[:, 1:].numpy(), order)


def by_rows(probe: Probe, delta: Callable[[int], Tensor], count: int, what: str) -> Iterator[PartOfRows | Shifts]:
    """The changes under `count` perturbations on the rows read so far, and at last on all of them."""
    first = min(count, FIRST_NOISE)
    if probe.n_params > LARGE and RowChanges.fit(probe, first) and early_looks_pay(probe):
        order = row_order(probe)  # drawing all the noise takes longer than the first rows
        assert order is not None, "early looks need an order"
        part = first_rows(probe, order, RowChanges(probe, delta, first))
        part.check(what)
        yield part
    if not RowChanges.fit(probe, count):
        yield require_finite(losses_at(probe, delta, count), what)
        return
    changes = RowChanges(probe, delta, count)
    rows = RowValues(probe, lambda batch, _: changes(batch), load=changes.load, passes=changes.passes)
    assert rows.order is not None, "rows can be taken: they have an order"
    for complete in rows.looks():
        found = rows.values
        if complete:
            yield require_finite(shifts_of(torch.from_numpy(found[rows.order.rows.argsort().numpy()])), what)
        else:
            part = PartOfRows(found[:, 1:], rows.order)
            part.check(what)
            yield part


def rounding(probe: Probe, shifts: Shifts) -> float:
    """What the rounding of L(θ) may add to the mean change: every perturbation shares it, so that their spread does not show it.

    Two machine epsilons of each row's loss, in random directions; of 1 where losses are those of probabilities near one, whose
    logarithm is that of 1 + something small.
    """
    size = 1.0 if probe.loss.likelihood in ("categorical", "bernoulli") else 0.0
    return 2 * torch.finfo(probe.dtype).eps * max(abs(shifts.base), size) / math.sqrt(probe.n_samples)


def with_noise(rows: RowMean, noise: float, reason: str) -> Estimate:
    """A mean over some rows with the standard error that the noise adds to it."""
    low = rows.value - math.hypot(rows.value - rows.low, 2 * noise)
    high = rows.value + math.hypot(rows.high - rows.value, 2 * noise)
    if not rows.reliable:
        return Estimate(low, status=Status.LOWER_BOUND, reason=reason)
    error = math.hypot(rows.stderr, noise)
    return Estimate(rows.value, error, rows.data_stderr, Status.RUNNING, reason, bracket=(low, high))


def above_a_loss_of_zero(probe: Probe) -> Estimate | None:
    """A known loss is not negative anywhere: no change can be below −L."""
    loss = highest_loss(probe) if probe.loss.likelihood is not None else None
    return None if loss is None else Estimate(-loss, status=Status.LOWER_BOUND, reason="no loss is below zero")


# Average-case sharpness (Andriushchenko et al. 2023): the expected rise of the loss under Gaussian noise.
#
#     E_{δ ~ N(0, ρ² diag(c²))} [ L(θ + δ) − L(θ) ],   c = 1 (plain) or c = |θ| + η (adaptive)
#
# ρ is the standard deviation of each coordinate, so that ‖δ‖₂ ≈ ρ√P. For small ρ it is ½ρ² Σ c_i² H_ii: plain, half of
# ρ² tr H. Noise comes in pairs ±δ, in which everything odd cancels, the gradient first of all; the error bar is that of
# the mean over pairs, widened where there are few of them (Student), so that two errors cover 95 %. samples + 1 forward passes.


@register("average_sharpness")
@dataclass(frozen=True, kw_only=True)
class AverageSharpness(PerturbationMeasure):
    """How much the loss rises under Gaussian noise δ on the weights: the mean of L(θ + δ) − L(θ) over `samples`, in pairs ±δ.

    With `adaptive=True` it is invariant to layer and neuron rescaling and to scaling before a BatchNorm (η = 0), and no
    longer to a shift of the logits. `details["curvature"]` is 2·value/ρ², which tends to tr H (plain) as ρ → 0.

    >>> probe = Probe(torch.nn.Linear(2, 1, bias=False), (torch.eye(2), torch.zeros(2, 1)), "mse")
    >>> estimate = AverageSharpness(rho=0.1, samples=400)(probe)       # L = ‖w‖²/2: tr H = 2, the value 0.01
    >>> abs(estimate.value - 0.01) < 4 * estimate.stderr
    True
    """

    title = "average sharpness"
    cost = "41 forward passes"
    reference = "Andriushchenko et al. 2023"
    invariant_to: ClassVar[frozenset[str]] = frozenset({"logit_shift"})

    rho: float = 0.005
    samples: int = 40
    adaptive: bool = False
    eta: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(rho=self.rho)
        if self.samples < 4 or self.samples % 2:
            raise ValueError(
                f"samples come in pairs and an error bar needs two: an even number ≥ 4, got {self.samples}"
            )
        if self.eta < 0 or (self.eta and not self.adaptive):
            raise ValueError(f"eta must not be negative and needs adaptive=True, got eta={self.eta}")

    @property
    def invariances(self) -> frozenset[str]:
        """Noise in proportion to the weights ignores their scale, but not a shift of the logits."""
        if not self.adaptive:
            return self.invariant_to
        return frozenset() if self.eta else RESCALINGS

    def at_once(self, probe: Probe) -> Estimate | None:
        """At least what a loss of zero would change."""
        return above_a_loss_of_zero(included(probe, self.include))

    def refine(self, probe: Probe) -> Iterator[Estimate | None]:
        """All noise on the rows read so far."""
        moved = included(probe, self.include)
        scale = self.rho * adaptive_scale(moved, self.eta) if self.adaptive else self.rho
        delta = antithetic(partial(direction, moved, self.seed), scale)
        for found in by_rows(moved, delta, self.samples, f"rho = {self.rho:g}"):
            yield self._early(found) if isinstance(found, PartOfRows) else self._found(found, moved)

    def _early(self, part: PartOfRows) -> Estimate:
        _, noise = part.columns().pair_mean()
        return with_noise(part.mean(np.full(part.count, 1 / part.count)), noise, part.reason)

    def _found(self, shifts: Shifts, moved: Probe) -> Estimate:
        value, spread = shifts.pair_mean()
        error = math.hypot(spread, rounding(moved, shifts))
        return Estimate(
            value,
            stderr=error,
            data_stderr=shifts.data_stderr(torch.full((self.samples,), 1 / self.samples)),
            status=Status.CONVERGED,
            details={
                "per_rho": value / self.rho,
                "curvature": 2 * value / self.rho**2,
                "curvature_stderr": 2 * error / self.rho**2,
                "changes": shifts.mean.tolist(),
                "loss": shifts.base,
                "parameters": moved.n_params,
            },
        )


# Random-direction sharpness: the change of the loss at a fixed distance, over random directions.
#
#     Δ_j = L(θ + ε_j) − L(θ),   ε_j uniform on the sphere ‖ε‖₂ = ρ,   j = 1 … samples
#
# To second order the mean is ρ² tr H / (2P), so in many dimensions it is tiny against the worst case: a random direction is
# nearly orthogonal to the few sharp ones. The maximum is that of `samples` directions, not of the sphere: it grows with their
# number and has no error bar. samples + 1 forward passes.


Statistic = Literal["max", "mean", "mean_abs"]


def summaries(changes: Tensor) -> dict[str, float]:
    """The maximum, the mean and the mean absolute value of changes (k,).

    >>> summaries(torch.tensor([1.0, -3.0, 2.0]))
    {'max': 2.0, 'mean': 0.0, 'mean_abs': 2.0}
    """
    return {
        "max": float(changes.max()),
        "mean": float(changes.mean()),
        "mean_abs": float(changes.abs().mean()),
    }


@register("random_sharpness")
@dataclass(frozen=True, kw_only=True)
class RandomSharpness(PerturbationMeasure):
    """How much the loss rises under random steps of one length: the `statistic` of L(θ + ε) − L(θ) over ε with ‖ε‖₂ = ρ.

    All of them, and divided by ρ, are in the details.

    >>> probe = Probe(torch.nn.Linear(2, 1, bias=False), (torch.eye(2), torch.zeros(2, 1)), "mse")
    >>> estimate = RandomSharpness(rho=0.1, samples=4, statistic="mean")(probe)
    >>> len(estimate.details["changes"])
    4
    """

    title = "random sharpness"
    cost = "21 forward passes"
    invariant_to: ClassVar[frozenset[str]] = frozenset({"logit_shift"})

    rho: float = 0.05
    samples: int = 20
    statistic: Statistic = "max"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive(rho=self.rho)
        if self.statistic not in ("max", "mean", "mean_abs"):
            raise ValueError(f"statistic must be 'max', 'mean' or 'mean_abs', got {self.statistic!r}")
        if self.samples < (1 if self.statistic == "max" else 2):
            raise ValueError(f"a mean with an error bar needs samples ≥ 2, a maximum ≥ 1; got {self.samples}")

    def at_once(self, probe: Probe) -> Estimate | None:
        """At least what a loss of zero would change."""
        return above_a_loss_of_zero(included(probe, self.include))

    def refine(self, probe: Probe) -> Iterator[Estimate | None]:
        """All directions on the rows read so far."""
        moved = included(probe, self.include)

        def delta(j: int) -> Tensor:
            return on_sphere(direction(moved, self.seed, j), self.rho)

        for found in by_rows(moved, delta, self.samples, f"rho = {self.rho:g}"):
            yield self._early(found) if isinstance(found, PartOfRows) else self._found(found, moved.n_params)

    def _early(self, part: PartOfRows) -> Estimate:
        k = part.count
        if self.statistic == "mean":
            noise = float(part.columns().mean.std()) / math.sqrt(k)
            return with_noise(part.mean(np.full(k, 1 / k)), noise, part.reason)
        each = part.each()
        values = np.array([row.value for row in each])
        below, above = (np.array([abs(row.value - end) for row, end in zip(each, ends, strict=True)])
                        for ends in ([row.low for row in each], [row.high for row in each]))  # fmt: skip
        if self.statistic == "max":
            several = student_quantile(max(len(part.changes) - 1, 1), 1 - (1 - QUANTILE) / k) / 1.96
            value, low, high = values.max(), (values - several * below).max(), (values + above).max()
        else:
            noise = 2 * float(np.abs(values).std(ddof=1)) / math.sqrt(k)
            value = np.abs(values).mean()
            low = value - math.hypot(np.maximum(below, above).mean(), noise)
            high = value + math.hypot(np.maximum(below, above).mean(), noise)
        fewer = self.statistic == "max" and k < self.samples  # more directions can only find more
        if fewer or not all(row.reliable or abs(row.value) < value for row in each):
            return Estimate(low, status=Status.LOWER_BOUND, reason=part.reason)
        return Estimate(value, (high - low) / 4, None, Status.RUNNING, part.reason, bracket=(low, high))

    def _found(self, shifts: Shifts, parameters: int) -> Estimate:
        changes = shifts.mean
        values = summaries(changes)
        k = len(changes)
        weights = {
            "max": torch.nn.functional.one_hot(changes.argmax(), k).double(),
            "mean": torch.full((k,), 1 / k, dtype=torch.float64),
            "mean_abs": changes.sign() / k,
        }[self.statistic]
        spread = {"mean": changes, "mean_abs": changes.abs()}
        errors = {name: float(v.std()) / math.sqrt(k) if k > 1 else None for name, v in spread.items()}
        return Estimate(
            values[self.statistic],
            stderr=errors.get(self.statistic),
            data_stderr=shifts.data_stderr(weights),
            status=Status.CONVERGED,
            reason="the maximum over a sample of directions has no standard error" if self.statistic == "max" else "",
            details={
                **values,
                **{f"{name}_per_rho": value / self.rho for name, value in values.items()},
                **{f"{name}_stderr": error for name, error in errors.items()},
                "changes": changes.tolist(),
                "loss": shifts.base,
                "parameters": parameters,
            },
        )
