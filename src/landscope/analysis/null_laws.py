"""What a correlation would be without a link: its law over all rearrangements, by the best method that is affordable.

    exact         Kendall without ties, to 150 units: the distribution of inversions
    enumeration   every permutation of y, where they are at most 50,000 (8 units)
    Monte Carlo   seeded random permutations, to 30 units (r: 100, as its law depends on the data's); p = (b + 1)/(m + 1),
                  which is never 0 and never too small
    asymptotic    beyond: ρ and r by Student's t on n − 2; τ, and all three over pairs of the same group, by the normal law with
                  the variance of all permutations, ties included

A law answers with both tails, the observed value included in each: a two-sided p is twice the smaller one.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from scipy.special import ndtr, stdtr

from landscope.analysis.coefficients import (
    COEFFICIENTS,
    EXACT_LIMIT,
    Codes,
    Floats,
    Method,
    centred_values,
    kendall_null,
    midranks,
    null_deviation,
    scaled,
)
from landscope.analysis.inputs import all_permutations, generator, random_permutations

ENUMERATION_LIMIT = 50_000
RANK_LIMIT, VALUE_LIMIT = 30, 100
SLACK = 1e-10
"""Rearrangements that are equal in exact arithmetic differ by rounding."""


class NullLaw(Protocol):
    """The distribution of a coefficient without a link."""

    @property
    def name(self) -> str:
        """How it was found."""

    def tails(self, value: float) -> tuple[float, float]:
        """The chances of at least and of at most this value."""


@dataclass(frozen=True)
class Inversions:
    """Kendall's τ of n untied units: exact at the values it can take, straight lines between them.

    >>> above, below = Inversions(4).tails(1.0)
    >>> round(24 * above, 9), round(below, 9)
    (1.0, 1.0)
    """

    n: int
    name: str = "exact"

    def tails(self, value: float) -> tuple[float, float]:
        """By counting inversions; beyond 150 units by the normal law."""
        if self.n > EXACT_LIMIT:
            return Normal(0.0, null_deviation(self.n)).tails(value)
        pairs = self.n * (self.n - 1) // 2
        places = np.arange(-1, pairs + 1)
        above, below = (
            float(np.interp((1 - each) * pairs / 2, places, _cumulated(self.n))) for each in (value, -value)
        )
        return above, below


@functools.lru_cache(maxsize=256)
def _cumulated(n: int) -> Floats:
    return np.concatenate([[0.0], np.cumsum(kendall_null(n))])


@dataclass(frozen=True)
class Drawn:
    """The coefficients of permutations, sorted; `every`: all of them, not a sample.

    >>> Drawn(np.array([-1.0, 0, 1, 2]), every=True, name="enumeration").tails(2.0)
    (0.25, 1.0)
    >>> Drawn(np.array([-1.0, 0, 1]), every=False, name="Monte Carlo").tails(2.0)
    (0.25, 1.0)
    """

    values: Floats = field(repr=False, compare=False)
    every: bool
    name: str

    def tails(self, value: float) -> tuple[float, float]:
        """By counting; the sample itself is one of the rearrangements."""
        m, extra = len(self.values), 0 if self.every else 1
        above = m - int(np.searchsorted(self.values, value - SLACK, "left"))
        below = int(np.searchsorted(self.values, value + SLACK, "right"))
        return (above + extra) / (m + extra), (below + extra) / (m + extra)


@dataclass(frozen=True)
class Normal:
    """The normal law."""

    mean: float
    deviation: float
    name: str = "asymptotic"

    def tails(self, value: float) -> tuple[float, float]:
        z = (value - self.mean) / self.deviation
        return float(ndtr(-z)), float(ndtr(z))


@dataclass(frozen=True)
class Student:
    """r of normal columns: r √(f/(1 − r²)) is Student's t."""

    freedom: float
    name: str = "asymptotic"

    def tails(self, value: float) -> tuple[float, float]:
        t = (
            value * math.sqrt(self.freedom / max(1 - value**2, np.finfo(float).tiny))
            if abs(value) < 1
            else value * 1e300
        )
        return float(stdtr(self.freedom, -t)), float(stdtr(self.freedom, t))


@dataclass(frozen=True)
class Turned:
    """The law of the coefficient counted the other way round."""

    law: NullLaw

    @property
    def name(self) -> str:
        return self.law.name

    def tails(self, value: float) -> tuple[float, float]:
        above, below = self.law.tails(-value)
        return below, above


def null_law(x: Floats, y: Floats, block: Codes, method: Method, permutations: int, seed: int) -> NullLaw:
    """The law of the correlation of x and y over pairs of the same block, if y belonged to any other unit as well.

    >>> x, one = np.arange(5.0), np.zeros(5, dtype=int)
    >>> null_law(x, x, one, "kendall", 999, 0), null_law(x, x**2, one, "pearson", 999, 0)
    (Inversions(n=5, name='exact'), Drawn(every=True, name='enumeration'))
    """
    single = bool((block == block[0]).all())
    untied = len(np.unique(x)) == len(x) == len(np.unique(y))
    if method == "kendall" and single and untied and len(x) <= EXACT_LIMIT:
        return Inversions(len(x))
    coefficient = COEFFICIENTS[method]
    every = all_permutations(block, ENUMERATION_LIMIT)
    if every is not None:
        return _drawn(coefficient.permuted(x, y, every, block), "enumeration")
    if len(block) > (RANK_LIMIT if coefficient.ranks else VALUE_LIMIT):
        if method == "kendall":
            return Normal(0.0, _kendall_deviation(x, y, block))
        return Student(len(x) - 2) if single else Normal(0.0, _moment_deviation(x, y, block, method))
    x, y, block = _settled(x, y, block)
    drawn = random_permutations(block, permutations, generator(seed, "permutation"))
    return _drawn(coefficient.permuted(x, y, drawn, block), f"Monte Carlo, {permutations} permutations")


def _drawn(null: Floats, name: str) -> Drawn:
    return Drawn(np.sort(null[~np.isnan(null)]), every=name == "enumeration", name=name)


def _kendall_deviation(x: Floats, y: Floats, block: Codes) -> float:
    """The standard deviation of τ-b over all permutations inside blocks, with the ties that are there (Kendall 1970, chapter 4).

    >>> x, one = np.arange(40.0), np.zeros(40, dtype=int)
    >>> round(_kendall_deviation(x, x, one), 6) == round(null_deviation(40), 6)
    True
    """
    variance, untied = 0.0, np.zeros(2)
    for label in np.unique(block):
        own = block == label
        n = int(np.count_nonzero(own))
        if n < 2:
            continue
        counts = [np.unique(column[own], return_counts=True)[1].astype(np.float64) for column in (x, y)]
        pairs, threes, spreads = (
            [float(term.sum()) for term in terms]
            for terms in (
                [t * (t - 1) for t in counts],
                [t * (t - 1) * (t - 2) for t in counts],
                [t * (t - 1) * (2 * t + 5) for t in counts],
            )
        )
        total = n * (n - 1)
        variance += (total * (2 * n + 5) - sum(spreads)) / 18 + pairs[0] * pairs[1] / (2 * total)
        variance += threes[0] * threes[1] / (9 * total * (n - 2)) if n > 2 else 0.0
        untied += total - np.array(pairs)
    return math.sqrt(variance) / math.sqrt(float(untied.prod()) / 4)


def _moment_deviation(x: Floats, y: Floats, block: Codes, method: Method) -> float:
    """The same of ρ and r: √(Σ_b (Σ a²)(Σ c²)/(n_b − 1)) / √(Σ a² · Σ c²) with scores a, c centred in their block b.

    >>> one = np.zeros(10, dtype=int)
    >>> round(_moment_deviation(np.arange(10.0), np.arange(10.0) ** 2, one, "pearson"), 6)  # 1/√(n − 1)
    0.333333
    """
    scores = midranks if method == "spearman" else centred_values
    labels = np.unique(block, return_inverse=True)[1]
    left, right = (np.bincount(labels, weights=np.square(scores(column, block))) for column in (x, y))
    free = np.maximum(np.bincount(labels) - 1, 1)
    return math.sqrt(float((left * right / free).sum()) / float(left.sum() * right.sum()))


def _settled(x: Floats, y: Floats, block: Codes) -> tuple[Floats, Floats, Codes]:
    """The same pairs in an order of their own, and the same one of the two first: a sample of permutations then gives one p
    to one correlation, whichever of the two is named first and however the units and their blocks are sorted.

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
        finite = (
            scaled(column)[0] if np.isfinite(column).all() else rank
            for column, rank in zip(columns, ranks, strict=True)
        )
        spacings = [np.round((column - column.mean()) / (np.ptp(column) or 1.0), 9).tolist() for column in finite]
        found.append(([len(own), [rank.tolist() for rank in ranks], spacings], columns))
    found.sort(key=lambda each: each[0])
    return [key for key, _ in found], [columns for _, columns in found]
