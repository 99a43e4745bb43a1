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


class Resampling(TypedDict, total=False):
    """The confidence of intervals, how many permutations a Monte Carlo law has, and their seed."""

    confidence: float
    permutations: int
    seed: int


Numbers: TypeAlias = "Sequence[float | None] | NDArray[np.floating] | NDArray[np.integer] | pd.Series"
"""A column of numbers, one per model; None and NaN are missing."""
Labels: TypeAlias = "Sequence[Hashable] | NDArray[np.generic] | pd.Series"
"""A column of labels, one per model."""

ENOUGH = 3
"""The fewest models with a meaningful correlation: two always lie on a line."""


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
    """The same models in an order that depends on their values alone, so that random draws do not depend on that of the input.

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


# Random numbers of the analysis: NumPy generators from a seed, permutations within blocks.
#
# `landscope.core.seeding` does the same with torch, which this package must not import.


def generator(seed: int, *stream: str | int) -> np.random.Generator:
    """A generator for `seed`, independent for each named stream.

    >>> a, b = generator(0, "noise"), generator(0, "permutation")
    >>> bool(a.random() == b.random()), bool(generator(3).random() == generator(3).random())
    (False, True)
    """
    digest = hashlib.sha256(repr((int(seed), *stream)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "little"))


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


# Columns of a frame by exact name; an error for an unknown one lists the choices.


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
        raise OperandError(f"column names must be unique, but {column.shape[1]} are called {name!r}; rename them")
    return column


# Has a model learnt? One that has not says nothing about minima; it is left out, and counted.
#
#     learnt   its training loss is below half of what guessing would give: ln C for C classes
#     fits     it misses at most 1 % of its training rows
#
# Guessing can be read off the beginning of a training: uniform guesses among C classes have a loss of ln C and an error of
# 1 − 1/C = 1 − e^(−loss). Where the first entry of a history has this relation it is the loss of guessing; elsewhere (a
# fine-tuned network, an epoch that was enough) it is not known, and nothing is left out.


SHARE = 0.5
ERROR = 0.01
LIKE_GUESSING = 0.1
"""How far the error may be from what guessing with that loss has."""


@dataclass(frozen=True, eq=False)
class Learnt:
    """Which models count, and by which criterion."""

    kept: NDArray[np.bool_]
    bar: str

    @property
    def left_out(self) -> int:
        """How many models do not count."""
        return int(np.count_nonzero(~self.kept))

    @property
    def sentence(self) -> str:
        """What was left out and why; empty where nothing was.

        >>> learnt([0.1, 1.5, 1.4], chance=1.946).sentence
        '2 of 3 models have not learnt (training loss not below 0.973, half of what guessing gives) and are left out.'
        """
        if not self.left_out:
            return ""
        have, are = ("has", "is") if self.left_out == 1 else ("have", "are")
        return f"{self.left_out} of {len(self.kept)} models {have} not learnt ({self.bar}) and {are} left out."


def learnt(loss: Numbers, *, chance: float, share: float = SHARE) -> Learnt:
    """Models whose training loss is below a share of that of guessing; one without a loss, or a loss that is not finite, is not.

    >>> learnt([0.1, 1.5, None], chance=math.log(7)).kept.tolist()
    [True, False, False]
    """
    column = number_column(loss, "loss")
    bar = f"training loss not below {share * chance:.3g}, {'half' if share == SHARE else f'{share:g}'} of what guessing gives"
    with np.errstate(invalid="ignore"):
        return Learnt(np.isfinite(column) & (column < share * chance), bar)


def fits(error: Numbers, at_most: float = ERROR) -> Learnt:
    """Models that miss at most this share of their training rows.

    >>> fits([0.0, 0.03]).sentence
    '1 of 2 models has not learnt (training error above 1 %) and is left out.'
    """
    column = number_column(error, "error")
    with np.errstate(invalid="ignore"):
        return Learnt(column <= at_most, f"training error above {100 * at_most:g} %")


def guessing(loss: float, error: float) -> float | None:
    """The loss of guessing, from the first loss and error of a training, where these are what guessing has.

    >>> guessing(1.93, 0.81), guessing(0.26, 0.07), guessing(2.9, 0.6)  # seven classes; an epoch that was enough; fine-tuning
    (1.93, None, None)
    """
    known = math.isfinite(loss) and math.isfinite(error) and loss > 0
    return loss if known and abs(error - (1 - math.exp(-loss))) <= LIKE_GUESSING else None
