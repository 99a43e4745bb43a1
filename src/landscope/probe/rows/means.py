"""The mean over all rows from those that were read first, with an error bar that holds the missing ones.

With t_i = v_i / (n π_i) for the rows read (`landscope.probe.rows.order`), Σ t_i estimates the mean of v over all n rows.
Over the m' rows that are not certain, with mean t̄, and the chunks b of rows that share a random probe,

    Var  =  m'/(m' − 1) Σ_i (1 − π_i) (t_i − t̄)²  +  Σ_b q_b

where q_b is the probes' own variance, known from several independent probes per chunk. It is never reduced by what was
read: with every row read, it alone is left. Bars are widened by Student's factor, and a skew of the rows widens the end it
points to (Johnson 1978).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from landscope.core.estimate import Estimate, Status, student_quantile
from landscope.probe.rows.order import RowOrder

Array = NDArray[np.float64]

QUANTILE = 0.975
"""Of Student's distribution, for both ends of a bracket."""
FEWEST = 20
"""Rows below which no error bar is believed."""
FEWEST_BATCHES = 4
"""Batches below which no error bar is believed: each is a mean already."""
CARRIES = 0.3
"""Part of the whole that one row may carry."""
SKEWED, COCHRAN = 3.0, 25.0
"""Skewness γ of the rows above which no error bar is believed, unless there are 25 γ² rows (Cochran 1977, section 2.15)."""
WIDE = 0.5
"""Half-width of a bracket, relative to the value, above which no number is shown."""
ENDING = 1.15
"""How much wider a bar is at which reading ends: one that is short enough is so by chance, too. Of 1,035 traces to 2 % on the
networks of the coverage benchmark 93.8 % of the bars held the truth without it (worst cell 91.6), 96.6 % with it (94.1)."""
ALIKE = 1e-9
"""Relative spread below which rows are all alike: an error bar of 0 would be theirs, not that of the rows that are missing."""


@dataclass(frozen=True)
class RowMean:
    """An estimate of a mean over all rows: two standard errors hold the truth with 95 % probability, and so does the bracket."""

    value: float
    stderr: float
    low: float
    high: float
    data_stderr: float | None
    rows: int
    complete: bool
    reliable: bool
    """Whether the bar can be believed: rows enough, none that carries a third, no wild skew, a half-width below a half."""

    def meets(self, tol: float) -> bool:
        """Whether the bar can be believed and is no longer than that part of the value: then further rows need not be read.

        Asked at ends of looks only (`RowOrder.looks`), which lie far apart: asked after every row it would be met by chance.
        """
        return self.reliable and ENDING * self.stderr <= tol * abs(self.value)

    def estimate(self, ended: bool = False) -> Estimate:
        """As an estimate: a number with a bar where that is honest, "at least" the lower end where it is not yet.

        It has converged where all rows are read, or where work has `ended` at some of them.
        """
        if self.complete and self.stderr == 0:
            return Estimate(self.value, data_stderr=self.data_stderr)
        if not self.complete and not self.reliable:
            return Estimate(self.low, status=Status.LOWER_BOUND, reason=f"after {self.rows:,} rows")
        if self.complete:
            return Estimate(self.value, self.stderr, self.data_stderr, Status.CONVERGED)
        wider, status = (ENDING, Status.CONVERGED) if ended else (1.0, Status.RUNNING)
        bracket = (self.value - wider * (self.value - self.low), self.value + wider * (self.high - self.value))
        return Estimate(self.value, wider * self.stderr, self.data_stderr, status, bracket=bracket)


def row_mean(
    values: Array,
    order: RowOrder,
    units: Array | None = None,
    counts: Array | None = None,
    own_noise: Array | None = None,
) -> RowMean:
    """The mean over all rows from `values` (m, r): r independent numbers for each of the first m rows of an order.

    `units` (m,) numbers the chunks of rows that share probes, of which there are r; without them r is 1, or `own_noise` (m, r) is
    the variance of each number, as its own probe shows it. `counts` (m,) is what each row counts for in the mean where that is
    not 1 (`Probe.shares`): values hold it, and other data would have others.

    >>> import torch
    >>> rows = RowOrder(torch.arange(200), None)
    >>> found = row_mean(np.arange(100.0)[:, None] % 10, rows)
    >>> round(found.value, 6), round(found.stderr, 3), found.reliable
    (4.5, 0.203, True)
    >>> row_mean(np.arange(200.0)[:, None] % 10, rows).stderr
    0.0
    """
    m, replicates = values.shape
    n = len(order.rows)
    pi = order.probabilities(m).numpy()
    shares = values / (n * pi[:, None])
    single = shares.mean(1)
    value = float(single.sum())
    sampled = pi < 1
    between, freedom, skew, carried, count = _missing_rows(single, pi, sampled)
    noise = np.zeros(1)
    if replicates > 1 and units is not None:
        chunks = np.unique(units, return_inverse=True)[1]
        sums = np.stack([np.bincount(chunks, column) for column in shares.T])
        noise = sums.var(0, ddof=1) / replicates
    each = replicates - 1
    if own_noise is not None:
        noise, each = own_noise.sum(1) / (replicates * n * pi) ** 2, replicates
    variance = between + float(noise.sum())
    if variance > 0:
        doubt = (between**2 / freedom if between else 0.0) + float((noise**2).sum()) / (each + 2)
        if own_noise is not None:  # few probes have no more freedom than all of them together
            doubt = max(doubt, float(noise.sum()) ** 2 / (noise.size * each))
        freedom = variance**2 / doubt if doubt > 0 else math.inf
    t = student_quantile(max(freedom, 1.0), QUANTILE) if math.isfinite(freedom) else 1.96
    error = math.sqrt(variance)
    extra = (
        abs(skew) * (1 + 2 * t**2) / (6 * math.sqrt(max(count, 1))) * float((1 - pi[sampled]).mean() if count else 0)
    )
    low = value - (t + (extra if skew < 0 else 0.0)) * error
    high = value + (t + (extra if skew > 0 else 0.0)) * error
    alike = count > 0 and between <= (ALIKE * value) ** 2
    if alike:  # then they say nothing of the missing ones, which may count for nothing
        low = min(low, value * m / n)
    half = (high - low) / 2
    enough = max(SKEWED**2, count / (COCHRAN * float((1 - pi[sampled]).mean()))) if count else 0.0
    settled = count == 0 or (count >= FEWEST and not alike and carried <= CARRIES and skew**2 <= enough)
    return RowMean(
        value=value,
        stderr=t / 2 * error,
        low=low,
        high=high,
        data_stderr=_data_error(values, pi, value, n, counts, own_noise),
        rows=m,
        complete=m == n,
        reliable=settled and half <= WIDE * abs(value),
    )


def batch_mean(values: Sequence[float], total: int) -> RowMean:
    """The mean over `total` batches from those that were drawn first, all alike.

    >>> found = batch_mean([1.0, 1.1, 0.9, 1.0], 8)
    >>> found.value, found.reliable, batch_mean([1.0, 1.1, 0.9, 1.0], 4).stderr
    (1.0, True, 0.0)
    """
    found = row_mean(np.array(values, dtype=float)[:, None], RowOrder(torch.arange(total), None))
    widest = (found.high - found.low) / 2 * _spread_at_most(len(values) - 1)
    return replace(found, reliable=len(values) >= FEWEST_BATCHES and widest <= WIDE * abs(found.value))


def _spread_at_most(freedom: int) -> float:
    """How many times a spread from so few numbers the true one may be, with 95 % probability (Wilson and Hilferty 1931).

    Of batches that differ much, those few that happen to be alike had passed for narrow: IGS from 4 of 20 batches showed a bar
    in a tenth of the cases, and 59 % of those held the truth.
    """
    ninth = 2 / (9 * max(freedom, 1))
    left = 1 - ninth - 1.645 * math.sqrt(ninth)
    return left**-1.5 if left > 0 else math.inf


def _missing_rows(single: Array, pi: Array, sampled: NDArray[np.bool_]) -> tuple[float, float, float, float, int]:
    """Variance from the rows that are missing, its degrees of freedom, the rows' skew, the largest part, their number."""
    count = int(sampled.sum())
    if count == 0:
        return 0.0, math.inf, 0.0, 0.0, 0
    drawn = single[sampled]
    if count < 2:
        return float(drawn.sum() ** 2), 1.0, 0.0, 1.0, count
    away = drawn - drawn.mean()
    spread = float((away**2).mean())
    skew = float((away**3).mean()) / spread**1.5 if spread > 0 else 0.0
    whole = float(np.abs(single).sum())
    carried = float(np.abs(drawn).max()) / whole if whole > 0 else 0.0
    return float(((1 - pi[sampled]) * away**2).sum()) * count / (count - 1), count - 1.0, skew, carried, count


def _data_error(
    values: Array, pi: Array, value: float, n: int, counts: Array | None, own_noise: Array | None
) -> float | None:
    """What another n rows would change: the rows' own variance over n, without the noise of probes where that is known."""
    m, replicates = values.shape
    if m < 2 or n < 2:
        return None
    weights = 1 / (n * pi)
    if counts is not None:
        values = values - value * counts[:, None]
        value = float((weights * values.mean(1)).sum())
    squares = (values.sum(1) ** 2 - (values**2).sum(1)) / (replicates * (replicates - 1)) if replicates > 1 else None
    own = float((weights * squares).sum()) - value**2 if squares is not None else -1.0
    if own_noise is not None and squares is None:
        own = float((weights * (values.mean(1) ** 2 - own_noise[:, 0])).sum()) - value**2
    if own <= 0:
        own = float((weights * values.mean(1) ** 2).sum()) - value**2
    return math.sqrt(max(own, 0.0) / (n - 1))
