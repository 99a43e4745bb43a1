"""How often chance alone would do as well: p-values of correlations, by the best method that is affordable.

    exact         Kendall without ties, to 150 models: the distribution of inversions
    enumeration   every permutation of y, where they are at most 50,000 (8 models)
    Monte Carlo   seeded random permutations, to 30 models (r: 100, as its law depends on the data's); p = (b + 1)/(m + 1),
                  which is never 0 and never too small
    asymptotic    beyond: τ by the normal law with the variance that ties leave, ρ and r by Student's t on n − 2
    fitted normal beyond, over pairs of the same group: mean and spread of 499 random permutations

A two-sided p is twice the smaller tail (at most 1), which stays right where the null distribution is not symmetric.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.special import ndtr

from landscope.analysis.coefficients import COEFFICIENTS, EXACT_LIMIT, Codes, Floats, Method, at_most
from landscope.analysis.inputs import all_permutations, generator, random_permutations
from landscope.core.errors import UnknownNameError

__all__ = [
    "ALTERNATIVES",
    "Alternative",
    "Significance",
    "combine_tails",
    "fitted_normal",
    "null_draws",
    "significance",
    "tail",
]

Alternative = Literal["two-sided", "greater", "less"]
ALTERNATIVES = ("two-sided", "greater", "less")

ENUMERATION_LIMIT = 50_000
RANK_LIMIT, VALUE_LIMIT = 30, 100
FITTED = 499


@dataclass(frozen=True)
class Significance:
    """A p-value and how it was found."""

    p_value: float
    method: str


def significance(
    x: Floats, y: Floats, block: Codes, method: Method, alternative: Alternative, permutations: int, seed: int
) -> Significance:
    """The p-value of the correlation of x and y over pairs of the same block.

    >>> x, one = np.arange(5.0), np.zeros(5, dtype=int)
    >>> significance(x, x, one, "kendall", "two-sided", 999, 0)
    Significance(p_value=0.016666666666666666, method='exact')
    >>> significance(x, x**2, one, "pearson", "greater", 999, 0)
    Significance(p_value=0.008333333333333333, method='enumeration')
    """
    coefficient = COEFFICIENTS[method]
    observed = coefficient.of(x, y, block)
    single = bool((block == block[0]).all())
    untied = len(np.unique(x)) == len(x) == len(np.unique(y))
    if method == "kendall" and single and untied and len(x) <= EXACT_LIMIT:
        return Significance(_exact(observed, len(x), alternative), "exact")
    x, y, block = _settled(x, y, block)
    drawn = null_draws(block, method, permutations, seed)
    if drawn is not None:
        null = coefficient.permuted(x, y, drawn[0], block)
        return Significance(tail(null, observed, alternative, every=drawn[1] == "enumeration"), drawn[1])
    if not single:
        null = coefficient.permuted(x, y, random_permutations(block, FITTED, generator(seed, "permutation")), block)
        return Significance(fitted_normal(null, observed, alternative), f"normal fitted to {FITTED} permutations")
    return Significance(_asymptotic(x, y, method, alternative), "asymptotic")


def _settled(x: Floats, y: Floats, block: Codes) -> tuple[Floats, Floats, Codes]:
    """The same pairs in an order of their own, and the same one of the two first: a sample of permutations then gives one p
    to one correlation, whichever of the two is named first and however the models and their blocks are sorted.

    >>> _settled(np.array([3.0, 1.0]), np.array([5.0, 7.0]), np.zeros(2, dtype=int))[:2]
    (array([1., 3.]), array([7., 5.]))
    >>> _settled(np.array([3.0, 1.0, 2.0]), np.array([5.0, 7.0, 6.0]), np.array([1, 0, 0]))
    (array([3., 1., 2.]), array([5., 7., 6.]), array([0, 1, 1]))
    """
    _, blocks = min((_in_order(*side, block) for side in ((x, y), (y, x))), key=lambda side: side[0])
    numbers = np.repeat(np.arange(len(blocks), dtype=block.dtype), [len(first) for first, _ in blocks])
    first, second = (np.concatenate(column) for column in zip(*blocks, strict=True))
    return first, second, numbers


def _in_order(x: Floats, y: Floats, block: Codes) -> tuple[list[object], list[tuple[Floats, Floats]]]:
    """The blocks, each sorted, in the order of what their ranks and spacings are, and these: where a block lies plays no part."""
    from scipy import stats  # takes a second to import

    found: list[tuple[list[object], tuple[Floats, Floats]]] = []
    for code in np.unique(block):
        own = np.flatnonzero(block == code)
        own = own[np.lexsort((y[own], x[own]))]
        columns = x[own], y[own]
        ranks = [stats.rankdata(column) for column in columns]
        finite = (column if np.isfinite(column).all() else rank for column, rank in zip(columns, ranks, strict=True))
        spacings = [np.round((column - column.mean()) / (np.ptp(column) or 1.0), 9).tolist() for column in finite]
        found.append(([len(own), [rank.tolist() for rank in ranks], spacings], columns))
    found.sort(key=lambda each: each[0])
    return [key for key, _ in found], [columns for _, columns in found]


def null_draws(block: Codes, method: Method, permutations: int, seed: int) -> tuple[Codes, str] | None:
    """Permutations to compare with and what they are called, or None for more models than permuting is meant for.

    >>> [null_draws(np.zeros(n, dtype=int), "kendall", 999, 0)[1] for n in (4, 12)]
    ['enumeration', 'Monte Carlo, 999 permutations']
    >>> null_draws(np.zeros(40, dtype=int), "kendall", 999, 0) is None
    True
    """
    every = all_permutations(block, ENUMERATION_LIMIT)
    if every is not None:
        return every, "enumeration"
    if len(block) > (RANK_LIMIT if COEFFICIENTS[method].ranks else VALUE_LIMIT):
        return None
    drawn = random_permutations(block, permutations, generator(seed, "permutation"))
    return drawn, f"Monte Carlo, {permutations} permutations"


def tail(null: Floats, observed: float, alternative: Alternative, *, every: bool) -> float:
    """How much of `null` is at least as extreme as `observed`; `every`: null holds all permutations, not a sample.

    >>> tail(np.array([-1.0, 0, 1, 2]), 2.0, "greater", every=True)
    0.25
    >>> tail(np.array([-1.0, 0, 1]), 2.0, "greater", every=False)
    0.25
    """
    null = null[~np.isnan(null)]
    slack = 1e-10  # rearrangements that are equal in exact arithmetic differ by rounding
    extra = 0 if every else 1
    above = (np.count_nonzero(null >= observed - slack) + extra) / (len(null) + extra)
    below = (np.count_nonzero(null <= observed + slack) + extra) / (len(null) + extra)
    return combine_tails(float(above), float(below), alternative)


def fitted_normal(null: Floats, observed: float, alternative: Alternative) -> float:
    """The tail of the normal law with the mean and spread of `null`.

    >>> round(fitted_normal(np.array([-1.0, 0.0, 1.0]), 1.96, "two-sided"), 3)
    0.05
    """
    null = null[~np.isnan(null)]
    z = (observed - null.mean()) / max(null.std(ddof=1), np.finfo(float).tiny)
    return combine_tails(float(ndtr(-z)), float(ndtr(z)), alternative)


def _asymptotic(x: Floats, y: Floats, method: Method, alternative: Alternative) -> float:
    from scipy import stats  # takes a second to import

    if method == "kendall":
        return float(stats.kendalltau(x, y, method="asymptotic", alternative=alternative).pvalue)
    scores = (stats.rankdata(x), stats.rankdata(y)) if method == "spearman" else (x, y)
    return float(stats.pearsonr(*scores, alternative=alternative).pvalue)


def _exact(tau: float, n: int, alternative: Alternative) -> float:
    pairs = n * (n - 1) // 2
    inversions = round((1 - tau) * pairs / 2)
    return combine_tails(at_most(inversions, n), at_most(pairs - inversions, n), alternative)


def combine_tails(above: float, below: float, alternative: Alternative) -> float:
    """The p-value from the chances of at least and at most what was observed.

    >>> combine_tails(0.01, 0.995, "two-sided"), combine_tails(0.01, 0.995, "less")
    (0.02, 0.995)
    """
    if alternative not in ALTERNATIVES:
        raise UnknownNameError.among("alternative", alternative, ALTERNATIVES)
    return {"two-sided": min(1.0, 2 * min(above, below)), "greater": above, "less": below}[alternative]
