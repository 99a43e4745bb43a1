"""The condition is the unit: what holds between conditions, what holds inside them, and whether both are the same.

Runs of one condition share what makes them alike, so a correlation over all runs takes few conditions for many models: without
any link its p falls below 0.05 in 24 % of studies of 4 conditions × 3 seeds and in 51 % of 4 × 10 (intraclass
correlation 0.9; docs/statistics.md).

    between   the means of the conditions, each one unit; permuted with each other
    within    runs of the same condition only, permuted inside it: do runs that were trained alike differ in both?
    slopes    y_ij = a + β_b x̄_i + β_w (x_ij − x̄_i) + u_i + e_ij, the mixed model with an intercept u_i for each condition
              (Neuhaus and Kalbfleisch 1998): by how much the outcome differs per unit of the measure, within and between

In the mixed model x_ij − x̄_i is orthogonal to all that conditions have in common, so β_w is the pooled regression inside them
whatever the variances are; its error is that of a jackknife over conditions, because slopes differ between them. It has k* − 1
degrees of freedom, with k* = (Σ S_i)²/Σ S_i² the number of conditions that count (Carter, Schnepel and Steigerwald 2017) and S_i
the sum of squares of x inside one. β_b is least squares of the means with weights 1/(σ_u² + σ_e²/n_i), variances by restricted
likelihood, on k − 2.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Unpack

import numpy as np
import pandas as pd

from landscope.analysis.coefficients import COEFFICIENTS, Codes, Floats, Method, scaled
from landscope.analysis.correlation import Correlation, correlation
from landscope.analysis.effects import Mean
from landscope.analysis.inputs import Labels, Numbers, Resampling, codes, column_of, complete, names_of, number_column
from landscope.analysis.partial import partial_correlation
from landscope.core.errors import OperandError

ALPHA = 0.05


def condition_means(columns: dict[str, Numbers], conditions: Labels) -> tuple[pd.DataFrame, int, int]:
    """The means of every condition over the runs that have all columns; how many runs these are, and how many were dropped.

    >>> means, models, dropped = condition_means({"x": [1, 3, 5, None]}, ["a", "a", "b", "b"])
    >>> means["x"].tolist(), models, dropped
    ([2.0, 5.0], 3, 1)
    """
    arrays = {name: number_column(column, name) for name, column in columns.items()}
    labels = codes(conditions, len(next(iter(arrays.values()))), "conditions")
    left, (label,), dropped = complete(arrays, (labels,))
    label = np.unique(label, return_inverse=True)[1]
    small = {name: scaled(column) for name, column in zip(arrays, left, strict=True)}  # sums of diverged runs overflow
    sums = {
        name: np.ldexp(np.bincount(label, weights=column) / np.bincount(label), n)
        for name, (column, n) in small.items()
    }
    return pd.DataFrame(sums), len(label), dropped


def between(
    x: Numbers, y: Numbers, conditions: Labels, method: Method = "kendall", **resampling: Unpack[Resampling]
) -> Correlation:
    """The correlation of the means of conditions.

    >>> found = between([1, 2, 5, 6, 8, 9], [0, 1, 3, 2, 7, 8], ["a", "a", "b", "b", "c", "c"])
    >>> found.value, found.units, round(found.p_value, 3)
    (1.0, '3 conditions (6 models)', 0.333)
    """
    first, second = names_of(x, y)
    means, models, dropped = condition_means({first: x, second: y}, conditions)
    return of_conditions(correlation(means[first], means[second], method, **resampling), models, dropped)


def partial_between(
    x: Numbers,
    y: Numbers,
    given: Mapping[str, Numbers],
    conditions: Labels,
    method: Method = "kendall",
    *,
    errors: Mapping[str, Numbers] | None = None,
    confidence: float = 0.95,
) -> Correlation:
    """The partial correlation of the means of conditions, given the means of other columns; `errors` are those of single runs.

    The runs of a condition are measured on the same rows, so their errors may be common: a mean is not taken for more certain
    than its runs are.

    >>> loss, noise = np.repeat(np.arange(8.0), 2), np.repeat([1.0, -1, -1, 1, 1, -1, -1, 1], 2)
    >>> partial_between(loss + noise, loss - noise, {"loss": loss}, loss, "pearson")
    Correlation(r = -1.000 ... n = 8 conditions (16 models))
    """
    first, second = names_of(x, y)
    columns: dict[str, Numbers] = {first: x, second: y} | {f"given {name}": column for name, column in given.items()}
    squares = {
        f"error {name}": np.square(np.nan_to_num(number_column(column, name)))
        for name, column in (errors or {}).items()
    }
    means, models, dropped = condition_means(columns | squares, conditions)
    rest = {name: means[f"given {name}"] for name in given}
    noise = {name: means[f"error {name}"] ** 0.5 for name in errors or {}}
    found = partial_correlation(means[first], means[second], rest, method, errors=noise, confidence=confidence)
    return of_conditions(found, models, dropped)


def of_conditions(found: Correlation, models: int, dropped: int) -> Correlation:
    """A correlation of means, called one of conditions."""
    reason = found.reason.replace("models", "conditions")
    return replace(found, unit="condition", models=models, dropped=dropped, reason=reason)


# Slopes.


@dataclass(frozen=True)
class Slopes:
    """How y differs per unit of x, inside conditions and between them; None where there are too few of them."""

    within: Mean | None
    between: Mean | None

    @property
    def differ(self) -> float | None:
        """The p-value of the two slopes being equal."""
        return None if self.within is None or self.between is None else self.within.differs_from(self.between)


def slopes(x: Numbers, y: Numbers, conditions: Labels) -> Slopes:
    """The slopes of a mixed model with an intercept for each condition.

    >>> group, x = np.repeat(np.arange(4), 3), np.tile([0.0, 1.0, 2.0], 4) + np.repeat([0.0, 5.0, 9.0, 20.0], 3)
    >>> noise = np.array([0.1, -0.2, 0.1, 0.0, 0.1, -0.1, 0.2, -0.1, -0.1, -0.1, 0.2, -0.1])
    >>> found = slopes(x, -x + 3 * np.repeat([0.0, 5.0, 9.0, 20.0], 3) + noise, group)  # −1 inside, +2 between
    >>> round(found.within.value, 1), round(found.between.value, 1)
    (-1.0, 2.0)
    """
    names = names_of(x, y)
    arrays = {name: number_column(column, name) for name, column in zip(names, (x, y), strict=True)}
    (a, b), (label,), _ = complete(arrays, (codes(conditions, len(arrays[names[0]]), "conditions"),))
    if not (np.isfinite(a).all() and np.isfinite(b).all()):
        raise OperandError("slopes need finite values; leave out runs that diverged and say so")
    (a, wide), (b, high) = scaled(a), scaled(b)
    label = np.unique(label, return_inverse=True)[1]
    sizes = np.bincount(label)
    x_mean, y_mean = (np.bincount(label, weights=column) / sizes for column in (a, b))
    inside = _within(a - x_mean[label], b - y_mean[label], label)
    residual = 0.0 if inside is None else float(np.square(b - y_mean[label] - inside.value * (a - x_mean[label])).sum())
    across = _between(x_mean, y_mean, sizes, residual, len(a) - len(sizes) - 1)
    unit = math.ldexp(1.0, high - wide)
    return Slopes(*(None if side is None else side.times(unit) for side in (inside, across)))


def _within(x: Floats, y: Floats, label: Codes) -> Mean | None:
    """Σ S_xy/Σ S_xx of centred columns; its variance from leaving out one condition at a time."""
    square, cross = (np.bincount(label, weights=x * other) for other in (x, y))
    telling = square > 0
    k = int(np.count_nonzero(telling))
    if k < 2:
        return None
    slope = float(cross.sum() / square.sum())
    without = ((cross.sum() - cross) / (square.sum() - square))[telling]
    stderr = math.sqrt((k - 1) / k * float(np.square(without - slope).sum()))
    # many small conditions count as few
    freedom = max(1.0, float(square.sum()) ** 2 / float(np.square(square).sum()) - 1)
    return Mean(slope, k, stderr, freedom, stderr * math.sqrt(k)) if stderr > 0 else None


def _between(x: Floats, y: Floats, sizes: Codes, residual: float, freedom: int) -> Mean | None:
    """Weighted least squares of the means, with the ratio of variances that restricted likelihood prefers."""
    k = len(sizes)
    if k < 3 or not np.ptp(x) > 0:
        return None

    def fit(log_ratio: float) -> tuple[float, float, float, float]:
        """Twice the negative log-likelihood, slope, its variance, at σ_u²/σ_e² = exp(log_ratio)."""
        weights = 1 / (math.exp(log_ratio) + 1 / sizes)
        centre = float(weights @ x / weights.sum())
        square = float(weights @ np.square(x - centre))
        slope = float(weights @ ((x - centre) * y)) / square
        rest = y - float(weights @ y / weights.sum()) - slope * (x - centre)
        inside = residual if freedom > 0 else 0.0
        total, count = inside + float(weights @ np.square(rest)), max(freedom, 0) + k - 2
        likelihood = count * math.log(max(total, np.finfo(float).tiny)) - float(np.log(weights).sum())
        likelihood += math.log(float(weights.sum()) * square)
        return likelihood, slope, total / count / square, total

    at = 0.0 if freedom <= 0 else _smallest(lambda ratio: fit(ratio)[0])
    _, slope, variance, total = fit(at)
    if not total > 0 or not variance > 0:
        return None
    return Mean(slope, k, math.sqrt(variance), k - 2, math.sqrt(variance * k))


def _smallest(function: Callable[[float], float]) -> float:
    """Where a function of one number is smallest, between a ratio of variances of 1e-6 and 1e6."""
    from scipy.optimize import minimize_scalar

    bounds = (math.log(1e-6), math.log(1e6))
    return float(minimize_scalar(function, bounds=bounds, method="bounded", options={"xatol": 1e-6}).x)


# Both beside each other.


@dataclass(frozen=True)
class Simpson:
    """The same two columns over all models (a description: no test), inside conditions, and between them."""

    x: str
    y: str
    group: str
    overall: float | None
    within: Correlation
    between: Correlation

    @property
    def paradox(self) -> bool:
        """Whether both are shown, with opposite signs."""
        return opposite(self.within, self.within.p_value, self.between, self.between.p_value)

    @property
    def sentence(self) -> str:
        """Both correlations in words, and the paradox where there is one."""
        sides = [
            f"{where} {found.reason}" if found.value is None else f"{where} {found}"
            for where, found in ((f"between {self.group}", self.between), (f"inside {self.group}", self.within))
        ]
        text = f"{sides[0][:1].upper()}{sides[0][1:]}; {sides[1]}."
        if self.paradox:
            up, down = ("up", "down") if (self.between.value or 0.0) > 0 else ("down", "up")
            text += f" Simpson's paradox: between {self.group} {self.y} goes {up} with {self.x}, inside them it goes {down}."
        return text

    def to_dict(self) -> dict[str, object]:
        """As plain values."""
        return {
            "x": self.x,
            "y": self.y,
            "group": self.group,
            "overall": self.overall,
            "within": self.within.to_dict(),
            "between": self.between.to_dict(),
            "paradox": self.paradox,
            "sentence": self.sentence,
        }


def opposite(
    one: Correlation, one_p: float | None, other: Correlation, other_p: float | None, alpha: float = ALPHA
) -> bool:
    """Whether two correlations are both shown, and have opposite signs.

    >>> up, down = correlation(range(6), range(6)), correlation(range(6), range(6, 0, -1))
    >>> opposite(up, up.p_value, down, down.p_value), opposite(up, up.p_value, down, 0.2)
    (True, False)
    """
    if one.value is None or other.value is None or one_p is None or other_p is None:
        return False
    return max(one_p, other_p) <= alpha and one.value * other.value < 0


def simpson(
    frame: pd.DataFrame, x: str, y: str, group: str, method: Method = "kendall", **resampling: Unpack[Resampling]
) -> Simpson:
    """Two columns inside the groups of a third and between them; models without a group are left out.

    >>> frame = pd.DataFrame({"decay": np.repeat(np.arange(6), 4), "sharpness": np.arange(24)})
    >>> frame["gap"] = frame["sharpness"] - 2 * (frame["sharpness"] % 4)
    >>> found = simpson(frame, "sharpness", "gap", "decay")
    >>> found.between.value, found.within.value, found.paradox
    (1.0, -1.0, True)
    """
    a, b, labels = (column_of(frame, name) for name in (x, y, group))
    means = between(a, b, labels, method, **resampling)
    inside = correlation(a, b, method, within=labels, **resampling)
    known = labels.notna()
    (left, right), _, _ = complete({x: number_column(a[known], x), y: number_column(b[known], y)})
    overall = COEFFICIENTS[method].of(left, right, np.zeros(len(left), dtype=np.intp)) if len(left) else math.nan
    return Simpson(x, y, group, None if math.isnan(overall) else overall, inside, means)
