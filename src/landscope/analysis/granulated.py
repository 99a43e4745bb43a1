"""Granulated Kendall's coefficient (Jiang et al. 2020): does the measure order models when one thing is changed at a time?

A plain τ over a grid of hyper-parameters can be large because one of them moves both columns. So for each axis i, models
that agree in all the other axes form a group, and

    ψ_i = mean over groups of τ(group),        Ψ = mean over axes of ψ_i

τ is τ-b, so a group in which a column does not vary says nothing and is skipped; with `ties="a"` such pairs count as 0, which is
the formula of the paper. Intervals resample the groups of each axis; groups of different axes share models, which
they do not know. Models that agree in all axes (seeds) are of the same group: pass the seed as an axis to keep them apart.
O(pairs inside groups).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import pandas as pd

from landscope.analysis.bootstrap import Interval, mean_interval
from landscope.analysis.coefficients import Codes, Floats
from landscope.analysis.frames import column_of
from landscope.analysis.pairs import complete, number_column
from landscope.core.errors import OperandError, UnknownNameError

__all__ = ["Axis", "Granulated", "granulated_kendall"]


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
