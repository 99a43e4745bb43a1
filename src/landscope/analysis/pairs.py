"""What comes in: columns of numbers, cleaned to the models that have all of them.

A missing value (None, NaN, pandas' NA) drops its model, and the number dropped is part of every result.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeAlias

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from landscope.analysis.coefficients import Codes, Coefficient, Floats
from landscope.core.errors import OperandError

__all__ = ["Labels", "Numbers", "codes", "complete", "names_of", "number_column", "settled", "why_undefined"]

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
