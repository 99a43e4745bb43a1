"""How two models differ in a measure, with its errors, and whether the difference is real.

Both models are measured on the same rows with the same random numbers. Of a measure that is a mean over rows, the error over the
data of the difference is that of the mean of paired differences, which may be far smaller than those of the two values:
both are measured on G groups of rows, and

    stderr² = Σ_g (d_g − mean of d_g)² / (G (G − 1)),    d_g the difference on group g

which holds because the value on all rows is then the mean of those on groups. That is checked for every model; where it does
not hold, and for measures that are no means (eigenvalues, norms, worst cases), the errors over the data of both values are added
as those of independent samples. On shared rows that is too large rather than too small as long as rows that are hard for one
model are hard for the other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import ndtri, stdtrit

from landscope.core.estimate import Estimate
from landscope.measures.base import MEASURES, Measure, invariances
from landscope.measures.measuring import measured
from landscope.probe.probe import Probe

MEANS = (
    *("loss", "nll", "error", "accuracy", "brier", "average_sharpness", "fisher_rao", "fisher_rao_homogeneous"),
    *("relative_flatness", "relative_flatness_layerwise", "hessian_trace", "ggn_trace", "fisher_trace"),
)
"""Measures that are means over rows: the error over the data of their differences is that of pairs."""
GROUPS = 16
ROWS = 4
"""Rows of a group below which there are fewer groups."""
FEWEST = 6
"""Groups below which their spread is not believed."""
A_MEAN = 0.02
"""How far the mean over groups may be from the value on all rows, beside their errors."""
LEVEL = 0.05


class Verdict(StrEnum):
    """What can be said about a difference."""

    SAME = "the same"
    """Not a bit of difference."""
    REAL = "real"
    """Larger than the errors of the estimators and of the data: other samples of the same kind would show it, too."""
    HERE = "on this data"
    """Larger than the estimators' errors, not than what another sample could change."""
    OPEN = "cannot tell"
    """No larger than the errors, or a value is a bound."""
    APART = "not comparable"
    """The scale of the weights has a part in it, and the models are not of one architecture."""

    def __str__(self) -> str:
        return self.value


@dataclass(frozen=True)
class Difference:
    """The value of a measure at another model less that at the first."""

    measure: str
    model: str
    first: Estimate
    other: Estimate
    own: float
    """Standard error of both estimators together."""
    data: float | None
    """What another sample of the data would change; `None` where the data has no part in it, or that is not known."""
    paired: bool
    freedom: float
    """Degrees of freedom of the errors."""
    tests: int
    """Differences that are judged together."""
    comparable: bool = True
    """Whether the two values mean the same."""

    @property
    def value(self) -> float:
        """Other less first."""
        return self.other.value - self.first.value

    @property
    def error(self) -> float:
        """The standard error: that of the estimators and that over the data."""
        return math.hypot(self.own, self.data or 0.0)

    @property
    def relative(self) -> float | None:
        """The difference over the size of the first value; `None` where that is zero or the signs differ."""
        return self.value / abs(self.first.value) if self.first.value * self.other.value > 0 else None

    @property
    def quantile(self) -> float:
        """Standard errors that a difference must exceed at 5 %, adjusted for all that are judged (Bonferroni)."""
        tail = 1 - LEVEL / (2 * self.tests)
        return float(ndtri(tail)) if math.isinf(self.freedom) else float(stdtrit(self.freedom, tail))

    @property
    def interval(self) -> tuple[float, float]:
        """The adjusted 95 % interval of the difference."""
        return self.value - self.quantile * self.error, self.value + self.quantile * self.error

    @property
    def verdict(self) -> Verdict:
        """Whether the difference exceeds its error, and which error."""
        if not self.comparable:
            return Verdict.APART
        if self.first.status.is_bound or self.other.status.is_bound:
            return Verdict.OPEN
        if self.value == 0:
            return Verdict.SAME
        if abs(self.value) > self.quantile * self.error:
            return Verdict.REAL
        return Verdict.HERE if abs(self.value) > self.quantile * self.own else Verdict.OPEN


Groups = Mapping[str, NDArray[np.float64]]
"""The values of a measure on each group of rows."""


def differences(
    model: str,
    first: Mapping[str, Estimate],
    other: Mapping[str, Estimate],
    one: Groups,
    two: Groups,
    tests: int,
    *,
    alike: bool = True,
) -> list[Difference]:
    """What both have a value of, in the order of the first; `alike` says whether the models are of one architecture."""
    found = []
    for name, estimate in first.items():
        against = other.get(name)
        if against is None or not (estimate.status.has_value and against.status.has_value):
            continue
        own = math.hypot(estimate.stderr or 0.0, against.stderr or 0.0)
        data, paired, freedom = _unpaired(estimate, against), False, math.inf
        if name in one and name in two:
            apart = two[name] - one[name]
            data, paired, freedom = float(apart.std(ddof=1)) / math.sqrt(len(apart)), True, len(apart) - 1.0
        comparable = alike or not _scales(name, estimate)
        found.append(Difference(name, model, estimate, against, own, data, paired, freedom, tests, comparable))
    return found


def _scales(name: str, estimate: Estimate) -> bool:
    """Whether the size of the weights has a part in a measure."""
    if name not in MEASURES or MEASURES[name].family.is_of_predictions:
        return False
    return "layer_rescaling" not in invariances(name, estimate.settings)


def _unpaired(one: Estimate, two: Estimate) -> float | None:
    if one.data_stderr is None and two.data_stderr is None:
        return None
    return math.hypot(one.data_stderr or 0.0, two.data_stderr or 0.0)


def by_groups(probe: Probe, measures: Mapping[str, Measure], values: Mapping[str, Estimate]) -> Groups:
    """The values on groups of rows of those measures whose mean over groups is the value on all rows.

    Every row is read once more; nothing where rows cannot be taken, or are too few.
    """
    count = min(GROUPS, probe.n_samples // ROWS)
    asked = {name: one for name, one in measures.items() if name in MEANS and values[name].status.has_value}
    if not asked or count < FEWEST or not probe.takes_rows:
        return {}
    found: dict[str, list[float]] = {name: [] for name in asked}
    sizes = []
    for group in range(count):
        rows = torch.arange(group, probe.n_samples, count)
        report = measured(probe.at_batch(probe.rows(rows), probe.dtype), asked)
        sizes.append(len(rows))
        for name, estimate in report.items():
            found[name].append(estimate.value)
    kept = {name: np.array(held) for name, held in found.items()}
    return {name: held for name, held in kept.items() if _is_mean(held, sizes, values[name])}


def _is_mean(held: NDArray[np.float64], sizes: Sequence[int], value: Estimate) -> bool:
    """Whether the value on all rows is the mean of those on groups, within what the estimators leave open."""
    if not np.isfinite(held).all():
        return False
    mean = float(np.average(held, weights=sizes))
    return abs(mean - value.value) <= A_MEAN * abs(value.value) + 3 * (value.stderr or 0.0)
