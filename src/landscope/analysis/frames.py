"""Columns of a frame by exact name; an unknown one is answered with the choices."""

from __future__ import annotations

import pandas as pd

from landscope.core.errors import OperandError, UnknownNameError

__all__ = ["column_of"]


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
