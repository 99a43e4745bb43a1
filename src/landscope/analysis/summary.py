"""Tables as the papers print them: mean ± spread over runs, one row per condition, the best of each column marked.

    std   standard deviation of the runs (n − 1 in the denominator): how much one run can differ
    sem   std/√n, the standard error: how well the mean is known

Missing values are left out of a cell and n says so; one run alone has no spread.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd

from landscope.analysis import tabulated
from landscope.analysis.cells import Cell, Direction, Spread, summarise
from landscope.analysis.frames import column_of
from landscope.analysis.pairs import number_column
from landscope.core.errors import OperandError, UnknownNameError

__all__ = ["SummaryTable", "summary_table"]


@dataclass(frozen=True)
class SummaryTable:
    """Cells by row and column, with what is needed to print them."""

    row_titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[Cell, ...], ...]
    spread: Spread
    better: Mapping[str, Direction]

    @property
    def caption(self) -> str:
        """What the numbers are."""
        sizes = {cell.n for row in self.cells for cell in row if cell.n}
        runs = f"n = {sizes.pop()} runs" if len(sizes) == 1 else "n runs"
        return f"Mean ± {'standard deviation' if self.spread == 'std' else 'standard error'} over {runs}."

    def to_markdown(self) -> str:
        """A Markdown table: best in bold, worst in italics."""
        return tabulated.to_markdown(self._texts(), len(self.row_titles)) + f"\n\n{self.caption}\n"

    def to_latex(self, label: str = "", caption: str | None = None) -> str:
        """A LaTeX table with booktabs rules: best in bold, worst in italics."""
        shown = self.caption if caption is None else caption
        return tabulated.to_latex(self._texts(), len(self.row_titles), caption=shown, label=label)

    def to_csv(self) -> str:
        """Full precision: mean, spread and n of every column."""
        return self.to_frame().to_csv(index=False, lineterminator="\n")

    def to_frame(self) -> pd.DataFrame:
        """One row per condition; "column mean", "column std" (or "sem") and "column n" for every column."""
        records = []
        for labels, cells in zip(self.rows, self.cells, strict=True):
            record: dict[str, object] = dict(zip(self.row_titles, labels, strict=True))
            for name, cell in zip(self.columns, cells, strict=True):
                record |= {f"{name} mean": cell.mean, f"{name} {self.spread}": cell.spread, f"{name} n": cell.n}
            records.append(record)
        return pd.DataFrame(records)

    def to_dict(self) -> dict[str, object]:
        """Plain values only."""
        return {
            "row_titles": list(self.row_titles),
            "rows": [list(labels) for labels in self.rows],
            "columns": list(self.columns),
            "cells": [[asdict(cell) for cell in row] for row in self.cells],
            "spread": self.spread,
            "better": dict(self.better),
            "caption": self.caption,
        }

    def _texts(self) -> list[list[tabulated.Text]]:
        """Header and body as marked text; a column n, and n in a cell that differs from its row's."""
        arrows = {"higher": " ↑", "lower": " ↓"}
        heads = [name + arrows.get(self.better.get(name, ""), "") for name in self.columns]
        lines = [[tabulated.Text(title) for title in (*self.row_titles, *heads, "n")]]
        for labels, cells in zip(self.rows, self.cells, strict=True):
            most = max((cell.n for cell in cells), default=0)
            body = [
                tabulated.Text(cell.text + (f" (n = {cell.n})" if 0 < cell.n < most else ""), cell.mark)
                for cell in cells
            ]
            lines.append([*map(tabulated.Text, labels), *body, tabulated.Text(str(most))])
        return lines


def summary_table(
    frame: pd.DataFrame,
    *,
    rows: str | Sequence[str],
    columns: Sequence[str] | Mapping[str, str],
    spread: Spread = "std",
    digits: int | Mapping[str, int] | None = None,
    better: Mapping[str, Direction] | None = None,
) -> SummaryTable:
    """Mean ± spread of every column over the runs of every condition.

    Args:
        frame: one row per run.
        rows: the column(s) whose values name the conditions, kept in order of appearance.
        columns: the columns to summarise, or {column: title}.
        spread: "std" or "sem".
        digits: decimals, for all columns or by column; None for as many as the spread leaves meaningful.
        better: {column: "higher" or "lower"} for columns whose best and worst mean shall be marked.

    >>> frame = pd.DataFrame({"condition": ["base", "base", "decay", "decay"], "error": [9.0, 11.0, 5.0, 6.0]})
    >>> print(summary_table(frame, rows="condition", columns=["error"], better={"error": "lower"}).to_markdown())
    | condition |       error ↓ |   n |
    |:----------|--------------:|----:|
    | base      |  _10.0 ± 1.4_ |   2 |
    | decay     | **5.5 ± 0.7** |   2 |
    <BLANKLINE>
    Mean ± standard deviation over n = 2 runs.
    """
    if spread not in ("std", "sem"):
        raise UnknownNameError.among("spread", spread, ("std", "sem"))
    keys = [rows] if isinstance(rows, str) else list(rows)
    titles = dict(columns) if isinstance(columns, Mapping) else {name: name for name in columns}
    for name, direction in (better or {}).items():
        if name not in titles:
            raise UnknownNameError.among("column of the table", name, titles)
        if direction not in ("higher", "lower"):
            raise UnknownNameError.among("direction", direction, ("higher", "lower"))
    if len(set(titles.values())) < len(titles):
        raise OperandError(f"titles of columns must differ, got {list(titles.values())}")
    labels = pd.DataFrame({key: column_of(frame, key).astype(object) for key in keys}).fillna("–").astype(str)
    conditions = list(dict.fromkeys(labels.itertuples(index=False, name=None)))
    place = np.array([conditions.index(row) for row in labels.itertuples(index=False, name=None)], dtype=np.intp)
    made = []
    for name in titles:
        numbers = number_column(column_of(frame, name), name)
        groups = [numbers[place == i] for i in range(len(conditions))]
        decimals = digits.get(name) if isinstance(digits, Mapping) else digits
        made.append(summarise(groups, spread, decimals, (better or {}).get(name)))
    cells = tuple(zip(*made, strict=True)) if made else tuple(() for _ in conditions)
    return SummaryTable(
        tuple(keys),
        tuple(conditions),
        tuple(titles.values()),
        cells,
        spread,
        {titles[name]: direction for name, direction in (better or {}).items()},
    )
