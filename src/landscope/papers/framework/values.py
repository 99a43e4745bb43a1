"""Which models a claim is about, and which of their numbers: columns of the tables of a paper's parts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from landscope.analysis import learnt
from landscope.core.errors import LandscopeError

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "FAILED",
    "FEW",
    "GUESSING",
    "INSTEAD",
    "LOSS_ERROR",
    "OWN_LOSS",
    "PLACES",
    "REDUCED",
    "NoAnswerError",
    "Tables",
    "Temperature",
    "Values",
    "have_learnt",
    "own_losses",
    "rows_at",
]

Tables: TypeAlias = "Mapping[str, pd.DataFrame]"
"""Part → one row per measured model (`Study.table`)."""
FAILED, REDUCED, FEW, INSTEAD, GUESSING = "failed", "reduced", "few", "instead", "guessing"
"""In the `attrs` of a table: how many runs of each condition failed; in what it falls short of the paper's own ("run at size
small only"), and of its own design ("10 of 24 conditions were run"); what stands for the paper's ("MiniLM for BERT"); the
training loss of guessing."""
LOSS_ERROR = "error of train.loss"
"""A column of these tables: the standard error of the training loss."""
OWN_LOSS = "train.loss of the weights"
"""And the training loss before any temperature, which need not have been measured again after one."""


class NoAnswerError(LandscopeError):
    """The tables do not hold what a question needs."""


PLACES = {"none": 0, "fitted": 1, "coded": 2}
"""Models with the same weights come in this order: as they are, at the fitted temperature, at that of the paper's code."""
Temperature: TypeAlias = Literal["none", "fitted", "coded"]


@dataclass(frozen=True, kw_only=True)
class Values:
    """One column of the models of a condition (of all, where none is named) at one set of weights and one temperature."""

    part: str
    column: str
    condition: str | None = None
    axis: str = ""
    """The axis that `condition` is a level of, where conditions have several (`axis.method`)."""
    at: str = "final"
    temperature: Temperature = "none"

    def rows(self, tables: Tables) -> pd.DataFrame:
        """The rows of these models."""
        found = rows_at(tables, self.part, self.at, self.temperature)
        if self.condition is not None:
            found = found[found[self.axis or "condition"] == self.condition]
        if self.column not in found or found[self.column].dropna().empty:
            failed = found.attrs.get(FAILED, {}).get(self.condition, 0)
            if failed and found.empty:
                raise NoAnswerError(f"all {failed} runs of {self.condition} failed")
            where = f" of {self.condition}" if self.condition else ""
            raise NoAnswerError(f"{self.part} has no {self.column}{where}")
        return found[found[self.column].notna()]

    def numbers(self, tables: Tables) -> list[float]:
        """The values."""
        return [float(value) for value in self.rows(tables)[self.column]]

    def by(self, key: str, tables: Tables) -> dict[str, float]:
        """The values by run, or by the cell (seed and all axes but that of the conditions) that runs of two conditions share."""
        rows = self.rows(tables)
        if key == "run":
            names: Iterable[object] = rows["run"]
        else:
            axes = [name for name in rows if str(name).startswith("axis.") and name != key]
            names = [" ".join(map(str, row)) for row in rows[[*axes, "seed"]].itertuples(index=False)]
        return {str(name): float(value) for name, value in zip(names, rows[self.column], strict=True)}


def rows_at(tables: Tables, part: str, at: str = "final", temperature: Temperature = "none") -> pd.DataFrame:
    """The models of a part at one set of weights and one temperature."""
    if part not in tables or tables[part].empty:
        raise NoAnswerError(f"{part} was not run")
    table = tables[part]
    number = table.groupby(["run", "checkpoint"]).cumcount()
    if at == "half time":  # the last of the snapshots
        steps = [name for name in table["checkpoint"].unique() if str(name).startswith("step ")]
        at = max(steps, key=lambda name: int(name[5:]), default=at)
    return table[(table["checkpoint"] == at) & (number == PLACES[temperature])]


def have_learnt(rows: pd.DataFrame) -> pd.Series[bool]:
    """Which models have learnt, at the weights that they have; all of them where guessing has no loss."""
    import pandas as pd

    guessing = rows.attrs.get(GUESSING)
    if guessing is None or "train.loss" not in rows:
        return pd.Series(True, index=rows.index)
    return pd.Series(learnt(own_losses(rows), chance=guessing).kept, index=rows.index)


def own_losses(rows: pd.DataFrame) -> pd.Series[float]:
    """The training losses of the weights."""
    return rows[OWN_LOSS if OWN_LOSS in rows else "train.loss"]
