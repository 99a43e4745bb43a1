"""Within and between: does a correlation over all models hold inside the conditions, or only between them?

    overall   all models
    within    each condition by itself, and pooled: only models of the same condition are compared
              (τ over such pairs; ρ and r of ranks and values centred in their condition)
    between   the means of the conditions

Where the pooled sign inside the conditions is not the sign overall, the correlation says something about the conditions and
not about the models (Simpson's paradox), and the result says so.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Literal

import numpy as np
import pandas as pd

from landscope.analysis.coefficients import Codes, Floats, Method
from landscope.analysis.correlation import Correlation, Interval, correlation, mean_interval
from landscope.analysis.inputs import column_of, complete, number_column
from landscope.core.errors import OperandError, UnknownNameError

__all__ = ["Axis", "Granulated", "Simpson", "disagree", "granulated_kendall", "simpson"]


@dataclass(frozen=True)
class Simpson:
    """Correlations overall, inside each group, pooled inside groups and between their means.

    `paradox`: the pooled sign differs from the overall one. `reversed_groups`: groups whose own sign does.
    """

    x: str
    y: str
    group: str
    overall: Correlation
    pooled: Correlation
    between: Correlation
    within: Mapping[str, Correlation] = field(default_factory=dict)

    @property
    def within_mean(self) -> float | None:
        """The plain mean over the groups that have a correlation."""
        values = [c.value for c in self.within.values() if c.value is not None]
        return float(np.mean(values)) if values else None

    @property
    def paradox(self) -> bool:
        """Whether the signs overall and inside groups disagree."""
        return disagree(self.overall, self.pooled)

    @property
    def reversed_groups(self) -> tuple[str, ...]:
        """The groups whose own sign is not the overall one."""
        return tuple(name for name, c in self.within.items() if disagree(self.overall, c))

    @property
    def sentence(self) -> str:
        """What this means, in words."""
        if self.overall.value is None:
            return f"{self.x} and {self.y} have no correlation: {self.overall.reason}."
        if self.pooled.value is None:
            return f"Nothing is known inside {self.group}: {self.pooled.reason}. Overall {self.overall}."
        known = sum(c.value is not None for c in self.within.values())
        numbers = f"overall {_brief(self.overall)}, inside {self.group} {_brief(self.pooled)}"
        turned = f"{len(self.reversed_groups)} of {known} groups have the opposite sign to all models together"
        if not self.paradox:
            return f"The sign is the same overall and inside {self.group}: {numbers}; {turned}."
        sure = all(c.p_value is not None and c.p_value <= 0.05 for c in (self.overall, self.pooled))
        weight = "" if sure else " At least one of the two signs could be chance."
        up, down = ("up", "down") if self.overall.value > 0 else ("down", "up")
        return (
            f"Simpson's paradox: over all models {self.y} goes {up} with {self.x}, inside {self.group} it goes {down} "
            f"({numbers}; {turned}). The overall correlation comes from differences between the groups.{weight}"
        )

    def to_dict(self) -> dict[str, object]:
        """Plain values only."""
        return {
            "x": self.x,
            "y": self.y,
            "group": self.group,
            "overall": self.overall.to_dict(),
            "pooled": self.pooled.to_dict(),
            "between": self.between.to_dict(),
            "within": {name: c.to_dict() for name, c in self.within.items()},
            "within_mean": self.within_mean,
            "paradox": self.paradox,
            "reversed_groups": list(self.reversed_groups),
            "sentence": self.sentence,
        }


def simpson(
    frame: pd.DataFrame,
    x: str,
    y: str,
    group: str,
    method: Method = "kendall",
    *,
    confidence: float = 0.95,
    resamples: int | None = None,
    permutations: int = 9999,
    seed: int = 0,
) -> Simpson:
    """The correlation of two columns overall, inside the groups of a third, and between them.

    Models without a group are left out everywhere. Cost: that of `correlation`, once per group and three times more.

    >>> frame = pd.DataFrame({
    ...     "decay": [0, 0, 0, 0, 1, 1, 1, 1], "sharpness": [1, 2, 3, 4, 5, 6, 7, 8], "gap": [4, 3, 2, 1, 8, 7, 6, 5]})
    >>> found = simpson(frame, "sharpness", "gap", "decay")
    >>> round(found.overall.value, 3), found.pooled.value, found.paradox
    (0.143, -1.0, True)
    """
    a, b, labels = (column_of(frame, name) for name in (x, y, group))
    found = functools.partial(
        correlation, method=method, confidence=confidence, resamples=resamples, permutations=permutations, seed=seed
    )
    known = a.notna() & b.notna() & labels.notna()
    means = pd.DataFrame({"x": a[known], "y": b[known]}).astype(float).groupby(labels[known], sort=False).mean()
    return Simpson(
        x,
        y,
        group,
        overall=found(a.where(labels.notna()), b),
        pooled=found(a, b, within=labels),
        between=found(means["x"], means["y"]),
        within={str(name): found(a[labels == name], b[labels == name]) for name in labels.dropna().unique()},
    )


def disagree(one: Correlation, other: Correlation) -> bool:
    """Whether two correlations have opposite signs.

    >>> up, down = correlation([1, 2, 3], [1, 2, 3]), correlation([1, 2, 3], [3, 2, 1])
    >>> disagree(up, down), disagree(up, up)
    (True, False)
    """
    return one.value is not None and other.value is not None and one.value * other.value < 0


def _brief(c: Correlation) -> str:
    return f"{c.symbol} = {c.value:.2f}"


# Granulated Kendall's coefficient (Jiang et al. 2020): does the measure order models when one thing is changed at a time?
#
# A plain τ over a grid of hyper-parameters can be large because one of them moves both columns. So for each axis i, models
# that agree in all the other axes form a group, and
#
#     ψ_i = mean over groups of τ(group),        Ψ = mean over axes of ψ_i
#
# τ is τ-b, so a group in which a column does not vary says nothing and is skipped; with `ties="a"` such pairs count as 0,
# which is
# the formula of the paper. Intervals resample the groups of each axis; groups of different axes share models, which
# they do not know. Models that agree in all axes (seeds) are of the same group: pass the seed as an axis to keep them apart.
# O(pairs inside groups).


@dataclass(frozen=True)
class Axis:
    """ψ of one axis: the mean τ over its groups, or None where every group was skipped."""

    name: str
    value: float | None
    low: float | None
    high: float | None
    groups: int
    skipped: int


@dataclass(frozen=True)
class Granulated:
    """Ψ with its interval, ψ of every axis, and why there is no value where there is none."""

    value: float | None
    low: float | None
    high: float | None
    axes: tuple[Axis, ...]
    n: int
    interval: str
    dropped: int = 0
    status: str = "ok"
    reason: str = ""

    def to_dict(self) -> dict[str, object]:
        """Plain values only."""
        return asdict(self) | {"axes": [asdict(axis) for axis in self.axes]}


def granulated_kendall(
    frame: pd.DataFrame,
    x: str,
    y: str,
    axes: Sequence[str],
    *,
    ties: Literal["b", "a"] = "b",
    confidence: float = 0.95,
    resamples: int | None = None,
    seed: int = 0,
) -> Granulated:
    """ψ of every axis and Ψ for the columns x and y of a frame with one row per model.

    >>> frame = pd.DataFrame(
    ...     {"lr": [0.1, 0.1, 0.2, 0.2], "batch": [32, 64, 32, 64], "sharpness": [4, 3, 2, 1], "gap": [4, 3, 1, 2]}
    ... )
    >>> found = granulated_kendall(frame, "sharpness", "gap", ["lr", "batch"])
    >>> [(axis.name, axis.value) for axis in found.axes], found.value  # batch: 1 where lr = 0.1, −1 where lr = 0.2
    ([('lr', 1.0), ('batch', 0.0)], 0.5)
    """
    if ties not in ("a", "b"):
        raise UnknownNameError.among("treatment of ties", ties, ("a", "b"))
    if not axes or len(set(axes)) < len(axes) or {x, y} & set(axes):
        raise OperandError(f"axes must be different columns other than {x!r} and {y!r}, at least one, got {list(axes)}")
    # a hyper-parameter that is not set is a setting of its own
    labels = tuple(np.asarray(pd.factorize(column_of(frame, a), use_na_sentinel=False)[0], np.intp) for a in axes)
    numbers = {name: number_column(column_of(frame, name), name) for name in (x, y)}
    (a, b), settings, dropped = complete(numbers, labels)
    found, taus = [], []
    for i, name in enumerate(axes):
        others = [column for j, column in enumerate(settings) if j != i] or [np.zeros(len(a), dtype=np.intp)]
        group = np.unique(np.stack(others), axis=1, return_inverse=True)[1].reshape(-1) if len(a) else others[0]
        values, skipped = _group_taus(a, b, group, ties)
        bounds = Interval.none("no groups")
        if len(values):
            bounds = mean_interval([values], confidence=confidence, resamples=resamples, seed=seed)
            taus.append(values)
        value = float(values.mean()) if len(values) else None
        found.append(Axis(name, value, bounds.low, bounds.high, len(values), skipped))
    if not taus:
        reason = "no group of models that differ in one axis only has two models whose values differ"
        return Granulated(None, None, None, tuple(found), len(a), "none", dropped, "undefined", reason)
    bounds = mean_interval(taus, confidence=confidence, resamples=resamples, seed=seed)
    value = float(np.mean([values.mean() for values in taus]))
    return Granulated(value, bounds.low, bounds.high, tuple(found), len(a), bounds.method, dropped)


def _group_taus(x: Floats, y: Floats, group: Codes, ties: str) -> tuple[Floats, int]:
    """τ of every group of two or more models that has one, and how many of those have none."""
    first, second = np.nonzero(np.triu(np.equal.outer(group, group), 1))
    a, b = ((v[first] > v[second]).astype(np.int8) - (v[first] < v[second]) for v in (x, y))
    groups, of_pair = np.unique(group[first], return_inverse=True)
    cross, left, right, pairs = (
        np.bincount(of_pair, weights=weights, minlength=len(groups)) for weights in (a * b, a != 0, b != 0, a == a)
    )
    squared = left * right if ties == "b" else np.square(pairs)
    kept = squared > 0
    return np.asarray(cross[kept] / np.sqrt(squared[kept])), int(np.count_nonzero(~kept))
