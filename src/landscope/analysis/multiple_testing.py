"""Many tests at once: p-values adjusted so that few of the findings are false.

Sorted p_(1) ≤ … ≤ p_(m) of one family become

    q_(i) = min_{j ≥ i} min(1, c · m/j · p_(j))     with c = 1 (Benjamini and Hochberg 1995: independent or positively dependent)
                                                    or c = Σ_{k ≤ m} 1/k (Benjamini and Yekutieli 2001: any dependence)

Findings with q ≤ α are false in at most the share α of cases, on average. Measures of one set of models depend on each
other in every way, so Benjamini–Yekutieli is the default here, as in the papers.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Literal

import numpy as np

from landscope.core.errors import OperandError, UnknownNameError

__all__ = ["Adjustment", "adjust", "benjamini_hochberg", "benjamini_yekutieli", "harmonic"]

Adjustment = Literal["benjamini_yekutieli", "benjamini_hochberg"]
PValues = Sequence[float | None]


def benjamini_yekutieli(p_values: PValues, families: Sequence[Hashable] | None = None) -> list[float | None]:
    """Adjusted p-values under any dependence, family by family.

    >>> [round(q, 4) for q in benjamini_yekutieli([0.01, 0.02, 0.03])]  # c = 1 + 1/2 + 1/3
    [0.055, 0.055, 0.055]
    >>> benjamini_yekutieli([0.01, None, 0.01], families=["safety", "safety", "sharpness"])
    [0.01, None, 0.01]
    """
    return adjust(p_values, "benjamini_yekutieli", families)


def benjamini_hochberg(p_values: PValues, families: Sequence[Hashable] | None = None) -> list[float | None]:
    """Adjusted p-values for independent or positively dependent tests, family by family.

    >>> [round(q, 4) for q in benjamini_hochberg([0.01, 0.04, 0.03])]
    [0.03, 0.04, 0.04]
    """
    return adjust(p_values, "benjamini_hochberg", families)


def adjust(
    p_values: PValues,
    method: Adjustment = "benjamini_yekutieli",
    families: Sequence[Hashable] | None = None,
) -> list[float | None]:
    """Adjusted p-values in the order given; a test without a p-value (None) has none and does not count.

    >>> adjust([0.2], "benjamini_hochberg")
    [0.2]
    """
    if method not in ("benjamini_yekutieli", "benjamini_hochberg"):
        raise UnknownNameError.among("adjustment", method, ("benjamini_yekutieli", "benjamini_hochberg"))
    labels = list(families) if families is not None else [None] * len(p_values)
    if len(labels) != len(p_values):
        raise OperandError(f"families must name one family for each of the {len(p_values)} p-values, got {len(labels)}")
    for p in p_values:
        if p is not None and not 0 <= p <= 1:
            raise OperandError(f"p-values lie between 0 and 1 (None where a test has none), got {p}")
    adjusted: list[float | None] = [None] * len(p_values)
    for family in set(labels):
        places = [i for i, p in enumerate(p_values) if labels[i] == family and p is not None]
        raw = np.array([p_values[i] for i in places], dtype=np.float64)
        m = len(raw)
        order = np.argsort(raw)
        scale = harmonic(m) if method == "benjamini_yekutieli" else 1.0
        stepped = scale * m * raw[order] / np.arange(1, m + 1)
        limited = np.minimum(np.minimum.accumulate(stepped[::-1])[::-1], 1.0)
        for place, q in zip(np.asarray(places, dtype=np.intp)[order], limited, strict=True):
            adjusted[place] = float(q)
    return adjusted


def harmonic(m: int) -> float:
    """Σ_{k ≤ m} 1/k, the price of not knowing how m tests depend on each other.

    >>> round(harmonic(3), 4)
    1.8333
    """
    return float((1 / np.arange(1, m + 1)).sum())
