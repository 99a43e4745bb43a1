"""What comes in: columns of numbers, cleaned to the models that have all of them.

A missing value (None, NaN, pandas' NA) drops its model, and the number dropped is part of every result.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypedDict

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from landscope.analysis.coefficients import Codes, Coefficient, Floats
from landscope.core.errors import OperandError, UnknownNameError

__all__ = [
    "Draws",
    "Labels",
    "Numbers",
    "Resampling",
    "all_permutations",
    "codes",
    "column_of",
    "complete",
    "generator",
    "names_of",
    "number_column",
    "random_permutations",
    "resampled_counts",
    "settled",
    "why_undefined",
]


class Resampling(TypedDict, total=False):
    """The keywords by which callers set `Draws`."""

    confidence: float
    resamples: int | None
    permutations: int
    seed: int


@dataclass(frozen=True)
class Draws:
    """How much is drawn for intervals and Monte Carlo p-values."""

    confidence: float = 0.95
    resamples: int | None = None
    """Of the bootstrap; 0 for no interval, None for 10,000 of few models down to 2,000 of many."""
    permutations: int = 9999
    seed: int = 0


Numbers: TypeAlias = "Sequence[float | None] | NDArray[np.floating] | NDArray[np.integer] | pd.Series"
"""A column of numbers, one per model; None and NaN are missing."""
Labels: TypeAlias = "Sequence[Hashable] | NDArray[np.generic] | pd.Series"
"""A column of labels, one per model."""

ENOUGH = 3
"""Fewer models have no correlation worth the name: two always lie on a line."""


def number_column(values: Numbers, name: str) -> Floats:
    """One column as float64, missing values as NaN.

    >>> number_column([1, None, 2.5], "x")
    array([1. , nan, 2.5])
    >>> number_column(["a"], "x")
    Traceback (most recent call last):
    landscope.core.errors.OperandError: x must be a column of numbers (None or NaN where missing), got ['a']
    """
    try:
        column = pd.Series(values).to_numpy(dtype=np.float64, na_value=np.nan)
    except (TypeError, ValueError) as error:
        shown = repr(values if len(repr(values)) < 80 else type(values))
        raise OperandError(f"{name} must be a column of numbers (None or NaN where missing), got {shown}") from error
    return np.asarray(column)


def names_of(x: Numbers, y: Numbers) -> tuple[str, str]:
    """What to call two columns in messages: their own names where they have different ones.

    >>> names_of(pd.Series([1], name="sharpness"), pd.Series([2], name="gap")), names_of([1], [2])
    (('sharpness', 'gap'), ('x', 'y'))
    """
    first, second = (getattr(column, "name", None) for column in (x, y))
    if isinstance(first, str) and isinstance(second, str) and first != second:
        return first, second
    return "x", "y"


def codes(labels: Labels | None, n: int, name: str) -> Codes:
    """Labels as 0, 1, 2 … in the order of appearance, −1 where missing; all 0 for no labels.

    >>> codes(["sam", "sgd", None, "sam"], 4, "group")
    array([ 0,  1, -1,  0])
    """
    if labels is None:
        return np.zeros(n, dtype=np.intp)
    if len(labels) != n:
        raise OperandError(f"{name} must hold one label for each of the {n} models, got {len(labels)}")
    return np.asarray(pd.factorize(pd.Series(labels))[0], dtype=np.intp)


def complete(columns: dict[str, Floats], labels: tuple[Codes, ...] = ()) -> tuple[list[Floats], list[Codes], int]:
    """The columns and labels of the models that miss none of them, and how many models were dropped.

    >>> complete({"x": np.array([1, np.nan, 3.0]), "y": np.array([1.0, 2, 3])})
    ([array([1., 3.]), array([1., 3.])], [], 1)
    """
    lengths = {name: len(column) for name, column in columns.items()}
    if len(set(lengths.values())) > 1:
        raise OperandError(f"columns must be of the same length, one entry per model, got {lengths}")
    kept = np.all([~np.isnan(column) for column in columns.values()] + [label >= 0 for label in labels], axis=0)
    left = [column[kept] for column in columns.values()]
    return left, [label[kept] for label in labels], int(np.count_nonzero(~kept))


def settled(columns: list[Floats], labels: tuple[Codes, ...]) -> tuple[list[Floats], list[Codes]]:
    """The same models in an order of their own: what is drawn at random then gives one result, however they come.

    >>> settled([np.array([3.0, 1.0, 2.0])], (np.array([0, 1, 0]),))
    ([array([1., 2., 3.])], [array([0, 1, 1])])
    """
    order = np.lexsort((*labels[::-1], *columns[::-1]))
    numbered = [np.asarray(pd.factorize(label[order])[0], dtype=np.intp) for label in labels]
    return [column[order] for column in columns], numbered


def why_undefined(columns: dict[str, Floats], coefficient: Coefficient, block: Codes) -> str:
    """Why these columns have no correlation, in words; empty where they have one.

    >>> from landscope.analysis.coefficients import COEFFICIENTS
    >>> kendall, one = COEFFICIENTS["kendall"], np.zeros(3, dtype=int)
    >>> why_undefined({"x": np.array([1.0, 2, 3]), "y": np.array([5.0, 5, 5])}, kendall, one)
    'y is constant (5 for all 3 models)'
    """
    n = len(block)
    if n < ENOUGH:
        return f"n = {n}: at least {ENOUGH} models with all values are needed"
    for name, column in columns.items():
        if not coefficient.ranks and not np.isfinite(column).all():
            return f"{name} holds infinite values; rank correlations (kendall, spearman) can be used with them"
        if _constant(column):
            return f"{name} is constant ({column[0]:g} for all {n} models)"
    groups = [block == label for label in np.unique(block)]
    for name, column in columns.items():
        if all(_constant(column[group]) for group in groups):
            return f"{name} does not vary inside any group"
    if all(any(_constant(column[group]) for column in columns.values()) for group in groups):
        return f"{' and '.join(columns)} do not vary in the same group"
    return ""


def _constant(column: Floats) -> bool:
    return bool((column == column[0]).all())


# Random numbers of the analysis: NumPy generators from a seed, bootstrap counts, permutations within blocks.
#
# `landscope.core.seeding` does the same with torch; here torch is not known.
#
# A bootstrap resample is a row of counts, "how often was model i drawn": a coefficient of the resample is then a
# weighted coefficient of the sample, and thousands of resamples are one matrix product.


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


# Columns of a frame by exact name; an unknown one is answered with the choices.


def column_of(frame: pd.DataFrame, name: str) -> pd.Series:
    """The column of that name.

    >>> column_of(pd.DataFrame({"sharpness": [1, 2]}), "sharpnes")
    Traceback (most recent call last):
    landscope.core.errors.UnknownNameError: unknown column 'sharpnes'; did you mean 'sharpness'? Choices: sharpness
    """
    if name not in frame.columns:
        raise UnknownNameError.among("column", name, map(str, frame.columns))
    column = frame[name]
    if isinstance(column, pd.DataFrame):
        raise OperandError(f"column names must be unique, {name!r} is there {column.shape[1]} times; rename them")
    return column
