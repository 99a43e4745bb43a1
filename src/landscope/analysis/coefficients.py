"""Kendall's τ-b, Spearman's ρ and Pearson's r: of one sample, of every rearrangement of it, and how far they scatter.

With S_ij = sign(x_i − x_j) and T likewise for y, over pairs of the same block:

    τ-b = Σ S_ij T_ij / √(Σ S_ij² · Σ T_ij²)
    ρ, r = Σ a_i b_i / √(Σ a_i² · Σ b_i²)   with a, b the midranks (ρ) or values (r), centred in their block

Everything compares units of the same `block` only; one block for all is the usual coefficient. m rearrangements of n units cost
O(m·n²) for τ-b and O(m·n) for ρ and r. Where x or y is constant there is no coefficient: NaN, for the caller to explain.
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

Floats = NDArray[np.float64]
Codes = NDArray[np.intp]
Method = Literal["kendall", "spearman", "pearson"]

CHUNK = 2**22
"""Entries of the largest temporary array; bounds the memory whatever n and the number of permutations."""


@dataclass(frozen=True)
class Coefficient:
    """One kind of correlation: its symbol, whether it looks at ranks only, how it is computed and how far it scatters.

    `spread(θ, n)` is the standard deviation of a coefficient of n units of normal columns with the true value θ, and
    `centred(c, θ, n)` how far c is from θ as chance goes: the value that would be as far from 0 if there were no link.

    >>> x, y, block = np.array([1.0, 2, 3, 4]), np.array([1.0, 3, 2, 4]), np.zeros(4, dtype=int)
    >>> round(COEFFICIENTS["kendall"].of(x, y, block), 4)
    0.6667
    >>> COEFFICIENTS["pearson"].permuted(x, y, np.array([[0, 1, 2, 3], [3, 2, 1, 0]]), block).round(4)
    array([ 0.8, -0.8])
    """

    symbol: str
    ranks: bool
    spread: Callable[[float, float], float]
    centred: Callable[[float, float, float], float]
    _permuted: Callable[[Floats, Floats, Codes, Codes], Floats]

    def permuted(self, x: Floats, y: Floats, permutations: Codes, block: Codes) -> Floats:
        """The coefficient of x with y[p] for every row p of `permutations`, each of which keeps the blocks."""
        step = max(1, CHUNK // len(x))
        chunks = (permutations[k : k + step] for k in range(0, len(permutations), step))
        return np.concatenate([self._permuted(x, y, chunk, block) for chunk in chunks])

    def of(self, x: Floats, y: Floats, block: Codes) -> float:
        """The coefficient of one sample; NaN where it is not defined."""
        return float(self._permuted(x, y, np.arange(len(x), dtype=np.intp)[None], block)[0])


def midranks(x: Floats, block: Codes) -> Floats:
    """Ranks inside each block, ties shared, centred.

    >>> midranks(np.array([5.0, 1.0, 5.0, 7.0]), np.array([0, 0, 0, 1]))
    array([ 0.5, -1. ,  0.5,  0. ])
    """
    from scipy.stats import rankdata

    ranks = np.empty(len(x))
    for label in np.unique(block):
        own = block == label
        ranks[own] = rankdata(x[own]) - (np.count_nonzero(own) + 1) / 2
    return ranks


def centred_values(x: Floats, block: Codes) -> Floats:
    """Values of size 1 and less, centred in their block."""
    middle = x.min() / 2 + x.max() / 2
    small = (x - middle) / max(float(np.abs(x - middle).max()), np.finfo(float).tiny)
    codes = np.unique(block, return_inverse=True)[1]
    means = np.bincount(codes, weights=small) / np.bincount(codes)
    constant = np.array([np.ptp(x[codes == code]) == 0 for code in range(len(means))])
    return np.where(constant[codes], 0.0, small - means[codes])


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
    if len(permutations) == 1 and len(x) ** 2 <= CHUNK:
        y = y[permutations[0]]
        same = np.equal.outer(block, block)
        a, b = ((np.greater.outer(v, v).astype(np.int8) - np.less.outer(v, v)) * same for v in (x, y))
        untied = float(np.count_nonzero(a)) * float(np.count_nonzero(b))
        return _ratio(np.array([float((a * b).sum(dtype=np.int64))]), np.array([untied]))
    ranks = np.unique(y, return_inverse=True)[1].astype(np.float64)
    return np.asarray(kendall_between(x[None], ranks[permutations], block)[0])


def _moments_permuted(
    scores: Callable[[Floats, Codes], Floats], x: Floats, y: Floats, permutations: Codes, block: Codes
) -> Floats:
    a, b = scores(x, block), scores(y, block)
    cross = np.asarray(b[permutations] @ a)
    return _ratio(cross, np.full_like(cross, (a @ a) * (b @ b)))


def kendall_spread(tau: float, n: float) -> float:
    """The standard deviation of τ over n units of normal columns whose true coefficient is τ (Esscher 1924).

        σ² = 2/(n(n−1)) · (1 − τ² + 2(n−2)(1/9 − (2/π · asin(½ sin(πτ/2)))²))

    Kendall's null variance at τ = 0; 0 at τ = ±1.

    >>> round(kendall_spread(0.0, 50), 5), round(kendall_spread(1.0, 50), 5)
    (0.09759, 0.0)
    """
    half = 2 / math.pi * math.asin(math.sin(math.pi * tau / 2) / 2)
    return math.sqrt(max(0.0, 2 / (n * (n - 1)) * (1 - tau**2 + 2 * (n - 2) * (1 / 9 - half**2))))


def _kendall_centred(tau: float, truth: float, n: float) -> float:
    """(τ̂ − τ) · s(0)/s(τ)."""
    wide, null = kendall_spread(truth, n), kendall_spread(0.0, n)
    if wide < 1e-6 * null:  # a perfect order has no spread
        return 0.0 if tau == truth else math.copysign(math.inf, tau - truth)
    return (tau - truth) * null / wide


def _moment_centred(r: float, truth: float, n: float) -> float:
    """On Fisher's scale: tanh(artanh r̂ − artanh r)."""
    return math.tanh(_artanh(r, n) - _artanh(truth, math.inf))


def _rank_centred(rho: float, truth: float, n: float) -> float:
    """The same, where the spread on Fisher's scale grows as √(1 + ρ²/2) (Bonett and Wright 2000)."""
    return math.tanh((_artanh(rho, n) - _artanh(truth, math.inf)) / math.sqrt(1 + truth**2 / 2))


def _artanh(r: float, n: float) -> float:
    """Of a perfect order: halfway to the largest ρ below it that n units can have."""
    if math.isinf(n):
        return math.atanh(r) if abs(r) < 1 else math.copysign(math.inf, r)
    edge = 1 - 6 / (n * (n * n - 1))
    return math.atanh(max(-edge, min(edge, r)))


def _moment_spread(r: float, n: float) -> float:
    """(1 − r²)/√(n − 1) (Pearson and Filon 1898)."""
    return (1 - r**2) / math.sqrt(n - 1)


def _rank_spread(rho: float, n: float) -> float:
    """(1 − ρ²) √((1 + ρ²/2)/(n − 1)) (after Bonett and Wright 2000)."""
    return (1 - rho**2) * math.sqrt((1 + rho**2 / 2) / (n - 1))


def as_kendall(value: float, method: Method) -> float:
    """The τ of normal columns whose ρ or r is `value`: τ = 2/π · asin r, and r = 2 sin(πρ/6).

    >>> round(as_kendall(0.5, "pearson"), 4), as_kendall(0.2, "kendall")
    (0.3333, 0.2)
    """
    if method == "kendall":
        return value
    r = 2 * math.sin(math.pi * value / 6) if method == "spearman" else value
    return 2 / math.pi * math.asin(max(-1.0, min(1.0, r)))


COEFFICIENTS: Registry[Coefficient] = Registry("correlation")
COEFFICIENTS.register("kendall")(Coefficient("τ", True, kendall_spread, _kendall_centred, _kendall_permuted))
COEFFICIENTS.register("spearman")(
    Coefficient("ρ", True, _rank_spread, _rank_centred, functools.partial(_moments_permuted, midranks))
)
COEFFICIENTS.register("pearson")(
    Coefficient("r", False, _moment_spread, _moment_centred, functools.partial(_moments_permuted, centred_values))
)


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
