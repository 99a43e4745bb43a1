"""Kendall's τ-b, Spearman's ρ and Pearson's r of many samples at once.

Two questions are asked many times over, and both have one vectorised answer here.

    weighted(counts, x, y)        of resamples: row b holds model i counts[b, i] times (bootstrap, jackknife, the sample)
    permuted(x, y, permutations)  of x with every rearrangement of y

With W the counts, S_ij = sign(x_i − x_j) and T likewise for y, over pairs of the same block:

    τ-b = Σ w_i w_j S_ij T_ij / √(Σ w_i w_j S_ij² · Σ w_i w_j T_ij²)
    ρ, r = Σ w_i a_i b_i / √(Σ w_i a_i² · Σ w_i b_i²)   with a, b the midranks (ρ) or values (r), centred in their block

Everything compares models of the same `block` only; one block for all is the usual coefficient. τ-b costs
O(resamples·n²) (one float32 matrix product, exact because the entries are small integers), ρ and r O(resamples·n).
A resample in which x or y is constant has no coefficient: its entry is NaN, for the caller to count and explain.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from landscope.core.registry import Registry

__all__ = [
    "COEFFICIENTS",
    "EXACT_LIMIT",
    "Codes",
    "Coefficient",
    "Counts",
    "Floats",
    "Method",
    "at_most",
    "kendall_between",
    "kendall_null",
    "mean_and_deviation",
    "null_deviation",
    "scaled",
    "signs",
    "smallest_significant",
]


Floats = NDArray[np.float64]
Codes = NDArray[np.intp]
Counts = NDArray[np.float32]
Method = Literal["kendall", "spearman", "pearson"]

CHUNK = 2**22
"""Entries of the largest temporary array; bounds the memory whatever n and the number of resamples."""


@dataclass(frozen=True)
class Coefficient:
    """One kind of correlation: its symbol, whether it looks at ranks only, and how it is computed for many samples.

    >>> x, y, block = np.array([1.0, 2, 3, 4]), np.array([1.0, 3, 2, 4]), np.zeros(4, dtype=int)
    >>> counts = np.array([[1, 1, 1, 1], [2, 1, 1, 0]], dtype=np.float32)
    >>> COEFFICIENTS["kendall"].weighted(counts, x, y, block).round(4)
    array([0.6667, 0.6   ])
    >>> COEFFICIENTS["pearson"].permuted(x, y, np.array([[0, 1, 2, 3], [3, 2, 1, 0]]), block).round(4)
    array([ 0.8, -0.8])
    """

    symbol: str
    ranks: bool
    _weighted: Callable[[Counts, Floats, Floats, Codes], Floats]
    _permuted: Callable[[Floats, Floats, Codes, Codes], Floats]

    def weighted(self, counts: Counts, x: Floats, y: Floats, block: Codes) -> Floats:
        """The coefficient of every resample (rows of `counts`); NaN where x or y does not vary."""
        step = max(1, CHUNK // len(x))
        return np.concatenate([self._weighted(counts[k : k + step], x, y, block) for k in range(0, len(counts), step)])

    def permuted(self, x: Floats, y: Floats, permutations: Codes, block: Codes) -> Floats:
        """The coefficient of x with y[p] for every row p of `permutations`, each of which keeps the blocks."""
        step = max(1, CHUNK // len(x))
        chunks = (permutations[k : k + step] for k in range(0, len(permutations), step))
        return np.concatenate([self._permuted(x, y, chunk, block) for chunk in chunks])

    def of(self, x: Floats, y: Floats, block: Codes) -> float:
        """The coefficient of one sample; NaN where it is not defined."""
        return float(self.weighted(np.ones((1, len(x)), dtype=np.float32), x, y, block)[0])


def signs(left: Floats, right: Floats) -> NDArray[np.int8]:
    """sign(left_i − right_j), from comparisons, so that infinities tie with themselves.

    >>> signs(np.array([1.0, np.inf]), np.array([1.0, 2.0, np.inf])).tolist()
    [[0, -1, -1], [1, 1, 0]]
    """
    return np.greater.outer(left, right).astype(np.int8) - np.less.outer(left, right).astype(np.int8)


@dataclass(frozen=True)
class _Ties:
    """Values sorted by block and size, cut into classes of equal ones."""

    order: Codes
    starts: Codes
    of_value: Codes
    block: Codes
    block_starts: Codes

    @classmethod
    def of(cls, x: Floats, block: Codes) -> _Ties:
        order = np.lexsort((x, block))
        new_block = np.diff(block[order], prepend=-1) != 0
        new = new_block | (x[order] != np.roll(x[order], 1))
        of_value = np.empty(len(x), dtype=np.intp)
        of_value[order] = np.cumsum(new) - 1
        starts = np.flatnonzero(new)
        blocks = np.empty(len(x), dtype=np.intp)
        blocks[order] = np.cumsum(new_block) - 1
        return cls(order, starts, of_value, blocks, np.flatnonzero(new_block[starts]))

    def sums(self, counts: Counts) -> Floats:
        """How many models each class holds in each resample."""
        return np.add.reduceat(counts[:, self.order], self.starts, axis=1).astype(np.float64)

    def untied(self, sums: Floats) -> Floats:
        """Twice the number of pairs of one block that differ."""
        per_block = np.add.reduceat(sums, self.block_starts, axis=1)
        return np.asarray(np.square(per_block).sum(1) - np.square(sums).sum(1))


def _kendall_weighted(counts: Counts, x: Floats, y: Floats, block: Codes) -> Floats:
    concordance = np.zeros(len(counts))
    step = max(1, CHUNK // len(x))
    for start in range(0, len(x), step):
        rows = slice(start, start + step)
        agreement = signs(x[rows], x) * signs(y[rows], y) * np.equal.outer(block[rows], block)
        concordance += (counts @ agreement.T.astype(np.float32) * counts[:, rows]).sum(axis=1, dtype=np.float64)
    untied = [ties.untied(ties.sums(counts)) for ties in (_Ties.of(x, block), _Ties.of(y, block))]
    return _ratio(concordance, untied[0] * untied[1])


def _spearman_weighted(counts: Counts, x: Floats, y: Floats, block: Codes) -> Floats:
    return _product_moment(counts, *_rank_scores(counts, x, block), *_rank_scores(counts, y, block))


def _pearson_weighted(counts: Counts, x: Floats, y: Floats, block: Codes) -> Floats:
    return _product_moment(counts, *_value_scores(counts, x, block), *_value_scores(counts, y, block))


def _rank_scores(counts: Counts, x: Floats, block: Codes) -> tuple[Floats, Floats]:
    """Midranks of the resample, centred in their block, and twice the untied pairs."""
    ties = _Ties.of(x, block)
    sums = ties.sums(counts)
    per_block = np.add.reduceat(sums, ties.block_starts, axis=1)
    middle = np.cumsum(sums, axis=1) - sums / 2
    centre = np.cumsum(per_block, axis=1) - per_block / 2
    return middle[:, ties.of_value] - centre[:, ties.block], ties.untied(sums)


def _value_scores(counts: Counts, x: Floats, block: Codes) -> tuple[Floats, Floats]:
    """Values centred in their block of the resample, and twice the untied pairs."""
    ties = _Ties.of(x, block)
    by_block = np.argsort(ties.block, kind="stable")
    starts = np.flatnonzero(np.diff(ties.block[by_block], prepend=-1))
    middle = x.min() / 2 + x.max() / 2
    scaled = (x - middle) / max(float(np.abs(x - middle).max()), np.finfo(float).tiny)
    sizes = np.add.reduceat(counts[:, by_block].astype(np.float64), starts, axis=1)
    means = np.add.reduceat(counts[:, by_block] * scaled[by_block], starts, axis=1) / np.maximum(sizes, 1)
    return scaled - means[:, ties.block], ties.untied(ties.sums(counts))


def _product_moment(counts: Counts, a: Floats, untied_a: Floats, b: Floats, untied_b: Floats) -> Floats:
    cross, left, right = ((counts * p * q).sum(axis=1) for p, q in ((a, b), (a, a), (b, b)))
    return _ratio(cross, np.where((untied_a > 0) & (untied_b > 0), left * right, 0.0))


def _ratio(cross: Floats, squared: Floats) -> Floats:
    ratio = np.full(cross.shape, np.nan)
    np.divide(cross, np.sqrt(squared), out=ratio, where=squared > 0)
    return np.clip(ratio, -1.0, 1.0)


def kendall_between(lefts: Floats, rights: Floats, block: Codes) -> Floats:
    """τ-b of every left (rows) with every right (rows), over pairs of the same block; (lefts, rights).

    >>> x = np.array([[1.0, 2, 3], [3, 1, 2]])
    >>> kendall_between(x, x[:1], np.zeros(3, dtype=int)).round(4)
    array([[ 1.    ],
           [-0.3333]])
    """
    columns = np.ascontiguousarray(rights.T)
    cross = np.zeros((len(lefts), len(rights)))
    untied_left, untied_right = np.zeros(len(lefts)), np.zeros(len(rights))
    for i in range(len(block) - 1):
        later = i + 1 + np.flatnonzero(block[i + 1 :] == block[i])
        others = columns[later]
        above, below = others > columns[i], others < columns[i]
        order = (lefts[:, later] > lefts[:, [i]]).astype(np.float32) - (lefts[:, later] < lefts[:, [i]])
        cross += order @ (above.view(np.int8) - below.view(np.int8)).astype(np.float32)
        untied_left += np.count_nonzero(order, axis=1)
        untied_right += np.count_nonzero(above, axis=0) + np.count_nonzero(below, axis=0)
    return _ratio(cross, np.multiply.outer(untied_left, untied_right))


def _kendall_permuted(x: Floats, y: Floats, permutations: Codes, block: Codes) -> Floats:
    ranks = np.unique(y, return_inverse=True)[1].astype(np.float64)
    return np.asarray(kendall_between(x[None], ranks[permutations], block)[0])


def _spearman_permuted(x: Floats, y: Floats, permutations: Codes, block: Codes) -> Floats:
    return _moments_permuted(_rank_scores, x, y, permutations, block)


def _pearson_permuted(x: Floats, y: Floats, permutations: Codes, block: Codes) -> Floats:
    return _moments_permuted(_value_scores, x, y, permutations, block)


def _moments_permuted(
    scores: Callable[[Counts, Floats, Codes], tuple[Floats, Floats]],
    x: Floats,
    y: Floats,
    permutations: Codes,
    block: Codes,
) -> Floats:
    once = np.ones((1, len(x)), dtype=np.float32)
    a, b = scores(once, x, block)[0][0], scores(once, y, block)[0][0]
    cross = np.asarray(b[permutations] @ a)
    return _ratio(cross, np.full_like(cross, (a @ a) * (b @ b)))


COEFFICIENTS: Registry[Coefficient] = Registry("correlation")
COEFFICIENTS.register("kendall")(Coefficient("τ", True, _kendall_weighted, _kendall_permuted))
COEFFICIENTS.register("spearman")(Coefficient("ρ", True, _spearman_weighted, _spearman_permuted))
COEFFICIENTS.register("pearson")(Coefficient("r", False, _pearson_weighted, _pearson_permuted))


# The exact distribution of Kendall's τ where nothing goes together.
#
# Without ties all n! orders are equally likely, and τ = 1 − 4D/(n(n−1)) with D the number of inversions (discordant pairs).
# Inserting the n-th model adds 0 … n−1 inversions, each with probability 1/n:
#
#     P_n(D = d) = (1/n) Σ_{k=0}^{n−1} P_{n−1}(D = d − k)          (Kendall 1938)
#
# O(n³) additions once per n, remembered. Beyond `EXACT_LIMIT` models the normal law with variance 2(2n+5)/(9n(n−1))
# differs from it by less than anybody's rounding.


EXACT_LIMIT = 150


@functools.lru_cache(maxsize=256)
def kendall_null(n: int) -> Floats:
    """P(D = d) for d = 0 … n(n−1)/2 inversions.

    >>> (kendall_null(4) * 24).round(12)
    array([1., 3., 5., 6., 5., 3., 1.])
    """
    law = np.ones(1)
    for size in range(2, n + 1):
        sums = np.cumsum(np.concatenate([law, np.zeros(size - 1)]))
        sums[size:] -= sums[:-size].copy()
        # the far half by symmetry: differences of sums near one would lose the small probabilities there
        half = (len(sums) + 1) // 2
        law = np.concatenate([sums[:half], sums[: len(sums) - half][::-1]]) / size
    law.setflags(write=False)
    return law


def at_most(inversions: int, n: int) -> float:
    """P(D ≤ inversions), exact.

    >>> round(at_most(1, 4) * 24, 10)
    4.0
    """
    pairs = n * (n - 1) // 2
    if inversions >= pairs / 2:
        return 1.0 - float(kendall_null(n)[: pairs - inversions].sum())
    return float(kendall_null(n)[: max(inversions + 1, 0)].sum())


def null_deviation(n: int) -> float:
    """The standard deviation of τ where nothing goes together, √(2(2n+5)/(9n(n−1))).

    >>> round(null_deviation(50), 5)
    0.09759
    """
    return math.sqrt(2 * (2 * n + 5) / (9 * n * (n - 1)))


@functools.lru_cache(maxsize=4096)
def smallest_significant(n: int, alpha: float = 0.05) -> float | None:
    """The smallest |τ| that n models can show with a two-sided p ≤ alpha, or None where even τ = 1 is not significant.

    Exact up to 150 models (without ties), then z_{1−α/2} √(2(2n+5)/(9n(n−1))).

    >>> smallest_significant(4) is None, smallest_significant(5), round(smallest_significant(50), 3)
    (True, 1.0, 0.192)
    """
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie between 0 and 1, got {alpha}")
    if n < 2:
        return None
    if n > EXACT_LIMIT:
        critical = -float(ndtri(alpha / 2)) * null_deviation(n)
        return critical if critical <= 1 else None
    # a p-value that equals alpha in exact arithmetic counts, whatever the rounding of the sums
    tail = 2 * np.cumsum(kendall_null(n)) <= alpha * (1 + 1e-12)
    if not tail[0]:
        return None
    inversions = int(np.flatnonzero(tail)[-1])
    return 1 - 4 * inversions / (n * (n - 1))


# Mean and standard deviation of numbers of any size: those of a run that diverged have squares beyond what a float can hold.


def scaled(values: Floats) -> tuple[Floats, int]:
    """Numbers of size 1 and less (those that are finite), and which power of two they were divided by; no digit changes.

    >>> scaled(np.array([3e200, -1.0]))[0].round(2), scaled(np.array([1.0, 8.0]))
    (array([ 0.98, -0.  ]), (array([0.0625, 0.5   ]), 4))
    """
    power = int(np.frexp(np.abs(values[np.isfinite(values)]).max(initial=0.0))[1])
    return np.ldexp(values, -power), power


def mean_and_deviation(values: Floats) -> tuple[float, float]:
    """Of finite numbers, with n − 1 in the denominator: NaN for one alone, the largest float where it would be larger still.

    >>> [round(number, 4) for number in mean_and_deviation(np.array([1.0, 3.0]))]
    [2.0, 1.4142]
    """
    small, power = scaled(values)
    deviation = float(np.std(small, ddof=1)) if len(small) > 1 else math.nan
    with np.errstate(over="ignore"):
        return float(np.ldexp(small.mean(), power)), min(float(np.ldexp(deviation, power)), sys.float_info.max)
