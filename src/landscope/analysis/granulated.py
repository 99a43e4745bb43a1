"""Granulated Kendall's coefficient (Jiang et al. 2020): does the measure order models that differ in one hyper-parameter?

A plain τ over a grid of hyper-parameters can be large because one of them moves both columns. So for each axis i, models
that agree in all the other axes form a group, and

    ψ_i = mean over groups of τ(group),        Ψ = mean over axes of ψ_i

τ is τ-b, so a group in which a column does not vary is skipped; with `ties="a"` such pairs count as 0, which
is the formula of the paper. Models that agree in all axes (seeds) are of one group: pass the seed as an axis to keep them apart.

The axes are the units: Ψ ± t_{k−1} · sd(ψ_1 … ψ_k)/√k for k axes, and the test of the same t. Groups of one axis share models and
settings, and resampling them holds only for other seeds of these very axes (such intervals covered 0.17 to 0.28 where axes
were drawn again). `without` says what Ψ would be without each axis. O(pairs inside groups).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

import numpy as np
import pandas as pd

from landscope.analysis.coefficients import Codes, Floats
from landscope.analysis.effects import mean
from landscope.analysis.inputs import column_of, complete, number_column
from landscope.core.errors import OperandError, UnknownNameError


@dataclass(frozen=True)
class AxisCoefficient:
    """ψ of one axis: the mean τ over its groups, or None where every group was skipped; `without`: Ψ of the other axes."""

    name: str
    value: float | None
    groups: int
    skipped: int
    without: float | None = None


@dataclass(frozen=True)
class Granulated:
    """Ψ with its interval and p over axes, ψ of every axis, and why there is no value where there is none."""

    value: float | None
    p_value: float | None
    low: float | None
    high: float | None
    axes: tuple[AxisCoefficient, ...]
    n: int
    dropped: int = 0
    status: str = "ok"
    reason: str = ""

    @property
    def steady(self) -> bool:
        """Whether Ψ keeps its sign without any one of its axes."""
        rest = [axis.without for axis in self.axes if axis.without is not None]
        return self.value is not None and len(rest) > 1 and all(each * self.value > 0 for each in rest)

    def __str__(self) -> str:
        if self.value is None:
            return f"Ψ undefined: {self.reason}"
        bounds = "" if self.low is None or self.high is None else f" [{self.low:.2f}, {self.high:.2f}]"
        known = sum(axis.value is not None for axis in self.axes)
        rest = [axis.without for axis in self.axes if axis.without is not None]
        left = f"; without one axis {min(rest):.2f} to {max(rest):.2f}" if rest else ""
        return f"Ψ = {self.value:.2f}{bounds} over {known} {'axis' if known == 1 else 'axes'}{left}"

    def to_dict(self) -> dict[str, object]:
        """As plain values, one entry per axis."""
        return asdict(self) | {"axes": [asdict(axis) for axis in self.axes]}


def granulated_kendall(
    frame: pd.DataFrame,
    x: str,
    y: str,
    axes: Sequence[str],
    *,
    ties: Literal["b", "a"] = "b",
    confidence: float = 0.95,
) -> Granulated:
    """ψ of every axis and Ψ for the columns x and y of a frame with one row per model.

    >>> frame = pd.DataFrame(
    ...     {"lr": [0.1, 0.1, 0.2, 0.2], "batch": [32, 64, 32, 64], "sharpness": [4, 3, 2, 1], "gap": [4, 3, 1, 2]}
    ... )
    >>> found = granulated_kendall(frame, "sharpness", "gap", ["lr", "batch"])
    >>> [(axis.name, axis.value) for axis in found.axes]  # batch: 1 where lr = 0.1, −1 where lr = 0.2
    [('lr', 1.0), ('batch', 0.0)]
    >>> print(found)
    Ψ = 0.50 [-1.00, 1.00] over 2 axes; without one axis 0.00 to 1.00
    """
    if ties not in ("a", "b"):
        raise UnknownNameError.among("treatment of ties", ties, ("a", "b"))
    if not axes or len(set(axes)) < len(axes) or {x, y} & set(axes):
        raise OperandError(f"axes must be different columns other than {x!r} and {y!r}, at least one, got {list(axes)}")
    # a hyper-parameter that is not set is a setting of its own
    labels = tuple(np.asarray(pd.factorize(column_of(frame, a), use_na_sentinel=False)[0], np.intp) for a in axes)
    numbers = {name: number_column(column_of(frame, name), name) for name in (x, y)}
    (a, b), settings, dropped = complete(numbers, labels)
    taus, skipped = {}, {}
    for i, name in enumerate(axes):
        others = [column for j, column in enumerate(settings) if j != i] or [np.zeros(len(a), dtype=np.intp)]
        group = np.unique(np.stack(others), axis=1, return_inverse=True)[1].reshape(-1) if len(a) else others[0]
        taus[name], skipped[name] = _group_taus(a, b, group, ties)
    psi = {name: float(values.mean()) for name, values in taus.items() if len(values)}
    found = tuple(
        AxisCoefficient(
            name, psi.get(name), len(taus[name]), skipped[name], _without(psi, name) if name in psi else None
        )
        for name in axes
    )
    if not psi:
        reason = "no group of models that differ in one axis only has two models whose values differ"
        return Granulated(None, None, None, None, found, len(a), dropped, "undefined", reason)
    value = float(np.mean(list(psi.values())))
    if len(set(psi.values())) < 2:
        why = "one axis has no spread" if len(psi) < 2 else "all axes have the same ψ, so their spread says nothing"
        return Granulated(value, None, None, None, found, len(a), dropped, reason=why)
    over_axes = mean(list(psi.values()))
    low, high = over_axes.interval(confidence)
    return Granulated(value, over_axes.p_value(), max(low, -1.0), min(high, 1.0), found, len(a), dropped)


def _without(psi: dict[str, float], name: str) -> float | None:
    rest = [value for other, value in psi.items() if other != name]
    return float(np.mean(rest)) if rest else None


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
