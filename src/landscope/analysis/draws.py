"""Random numbers of the analysis: NumPy generators from a seed, bootstrap counts, permutations within blocks.

`landscope.core.seeding` does the same with torch; here torch is not known.

A bootstrap resample is a row of counts, "how often was model i drawn": a coefficient of the resample is then a
weighted coefficient of the sample, and thousands of resamples are one matrix product.
"""

from __future__ import annotations

import hashlib
import itertools
import math

import numpy as np
from numpy.typing import NDArray

__all__ = ["all_permutations", "generator", "random_permutations", "resampled_counts"]


def generator(seed: int, *stream: str | int) -> np.random.Generator:
    """A generator for `seed`, independent for each named stream.

    >>> a, b = generator(0, "bootstrap"), generator(0, "permutation")
    >>> bool(a.random() == b.random()), bool(generator(3).random() == generator(3).random())
    (False, True)
    """
    digest = hashlib.sha256(repr((int(seed), *stream)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "little"))


def resampled_counts(strata: NDArray[np.intp], resamples: int, rng: np.random.Generator) -> NDArray[np.float32]:
    """How often each model was drawn in each resample; (resamples, n).

    As many are drawn from every stratum as it holds. Strata of one model could never vary: they are drawn together.

    >>> counts = resampled_counts(np.array([0, 0, 0, 1, 1]), 4, generator(0))
    >>> counts[:, :3].sum(1), counts[:, 3:].sum(1)
    (array([3., 3., 3., 3.], dtype=float32), array([2., 2., 2., 2.], dtype=float32))
    """
    counts = np.zeros((resamples, len(strata)), dtype=np.float32)
    rows = np.arange(resamples)[:, None]
    for members in strata_members(strata):
        size = len(members)
        drawn = rng.integers(0, size, (resamples, size)) + rows * size
        counts[:, members] = np.bincount(drawn.ravel(), minlength=resamples * size).reshape(resamples, size)
    return counts


def strata_members(strata: NDArray[np.intp]) -> list[NDArray[np.intp]]:
    """The positions of every stratum; strata of one model are merged.

    >>> [members.tolist() for members in strata_members(np.array([0, 1, 2, 0]))]
    [[0, 3], [1, 2]]
    """
    groups = [np.flatnonzero(strata == label) for label in np.unique(strata)]
    alone = [members for members in groups if len(members) == 1]
    return [members for members in groups if len(members) > 1] + ([np.concatenate(alone)] if alone else [])


def random_permutations(block: NDArray[np.intp], count: int, rng: np.random.Generator) -> NDArray[np.intp]:
    """`count` permutations that keep every position inside its block; (count, n).

    >>> drawn = random_permutations(np.array([0, 1, 0, 1]), 50, generator(0))
    >>> sorted({tuple(row.tolist()) for row in drawn})
    [(0, 1, 2, 3), (0, 3, 2, 1), (2, 1, 0, 3), (2, 3, 0, 1)]
    """
    shuffled = np.argsort(block + rng.random((count, len(block))), axis=1)  # block by block, in random order inside
    drawn = np.empty_like(shuffled)
    drawn[:, np.argsort(block, kind="stable")] = shuffled
    return drawn


def all_permutations(block: NDArray[np.intp], limit: int) -> NDArray[np.intp] | None:
    """Every permutation that keeps positions inside their block, or None where they are more than `limit`.

    >>> all_permutations(np.array([0, 1, 0, 1]), limit=10).tolist()
    [[0, 1, 2, 3], [0, 3, 2, 1], [2, 1, 0, 3], [2, 3, 0, 1]]
    >>> all_permutations(np.zeros(20, dtype=int), limit=50_000) is None
    True
    """
    groups = [np.flatnonzero(block == label) for label in np.unique(block)]
    if math.prod(math.factorial(len(members)) for members in groups) > limit:
        return None
    drawn = np.arange(len(block))[None]
    for members in groups:
        orders = np.array(list(itertools.permutations(members)))
        repeated = np.repeat(drawn, len(orders), axis=0)
        repeated[:, members] = np.tile(orders, (len(drawn), 1))
        drawn = repeated
    return drawn
