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
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import pandas as pd

from landscope.analysis.coefficients import Method
from landscope.analysis.correlations import Correlation, correlation
from landscope.analysis.frames import column_of

__all__ = ["Simpson", "disagree", "simpson"]


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
            return f"Inside {self.group} nothing can be said: {self.pooled.reason}. Overall {self.overall}."
        told = sum(c.value is not None for c in self.within.values())
        numbers = f"overall {_brief(self.overall)}, inside {self.group} {_brief(self.pooled)}"
        turned = f"{len(self.reversed_groups)} of {told} groups have the other sign than all models together"
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
