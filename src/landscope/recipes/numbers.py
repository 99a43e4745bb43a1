"""The published numbers of the papers, as they stand in their tables and figures."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import TYPE_CHECKING

from landscope.recipes.recipe import Part

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["published_numbers", "published_of"]


@cache
def _table() -> pd.DataFrame:
    import pandas as pd

    with resources.files("landscope.recipes").joinpath("published/paper_numbers.csv").open(encoding="utf-8") as file:
        table = pd.read_csv(file, dtype=str)
    spread = [f" ± {text}" if isinstance(text, str) else "" for text in table["spread"]]
    numbers = {column: pd.to_numeric(table[column]) for column in ("value", "spread")}
    return table.assign(written=table["value"] + spread, **numbers)


def published_numbers(recipe: str | None = None) -> pd.DataFrame:
    """One row per number: paper, table, data, model, condition, metric, value, spread, and both as they are written there.

    >>> numbers = published_numbers("false-friend")
    >>> float(numbers[(numbers.model == "softmax regression") & (numbers.metric == "hessian_top_eigenvalue")].value.max())
    15.84
    """
    table = _table()
    return table if recipe is None else table[table["paper"] == recipe].reset_index(drop=True)


def published_of(recipe: str, part: Part) -> pd.DataFrame:
    """The numbers that stand beside a part, under our names of its conditions."""
    table = published_numbers(recipe)
    if not part.published:
        return table.iloc[:0]
    for column, wanted in part.published.items():
        choices = (wanted,) if isinstance(wanted, str) else wanted
        table = table[table[column].isin(choices)]
    return table.assign(condition=[part.conditions.get(name, name) for name in table["condition"]]).reset_index(
        drop=True
    )
