"""Tables as the papers print them: mean ± spread over runs, one row per condition, the best of each column marked.

    std   standard deviation of the runs (n − 1 in the denominator): how much one run can differ
    sem   std/√n, the standard error: how well the mean is known

Missing values are left out of a cell and n says so; one run alone has no spread.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd

from landscope.analysis.coefficients import Floats, mean_and_deviation
from landscope.analysis.inputs import column_of, number_column
from landscope.core.errors import OperandError, UnknownNameError

# One column of a summary: mean ± spread of every condition, to the digits that mean something, best and worst marked.


Direction = Literal["higher", "lower"]
Spread = Literal["std", "sem"]


@dataclass(frozen=True)
class SummaryCell:
    """Mean and spread of n runs as numbers and as text; `mark` is "best", "worst" or empty.

    No mean: there was no run, or runs were infinite (the text says so).
    """

    mean: float | None
    spread: float | None
    n: int
    missing: int
    text: str
    mark: str = ""


def summarise(
    groups: Sequence[Floats], spread: Spread = "std", digits: int | None = None, better: Direction | None = None
) -> list[SummaryCell]:
    """A cell for every group of runs.

    >>> [cell.text for cell in summarise([np.array([9.0, 11.0]), np.array([5.0]), np.array([])])]
    ['10.0 ± 1.4', '5.0', '–']
    >>> [cell.mark for cell in summarise([np.array([0.9]), np.array([0.8]), np.array([0.7])], better="higher")]
    ['best', '', 'worst']
    """
    cells = [_numbers(group, spread) for group in groups]
    spreads = [cell.spread for cell in cells if cell.spread]
    means = [cell.mean for cell in cells if cell.mean is not None]
    common = digits
    if digits is None and spreads and max(spreads) <= 100 * min(spreads):
        common = _decimals(float(np.median(spreads)), 2)
    elif digits is None and not spreads and any(means):
        common = _decimals(max(map(abs, means)), 4)
    fixed = digits is not None or all(abs(mean) < 1e6 for mean in means)
    cells = [replace(cell, text=_text(cell, common, fixed)) if cell.mean is not None else cell for cell in cells]
    return _marked(cells, better) if better and len(means) > 1 else cells


def _numbers(group: Floats, spread: Spread) -> SummaryCell:
    runs = group[~np.isnan(group)]
    n, missing = len(runs), len(group) - len(runs)
    if not n:
        return SummaryCell(None, None, 0, missing, "–")
    if not np.isfinite(runs).all():
        signs = {float(value) for value in runs if np.isinf(value)}
        return SummaryCell(None, None, n, missing, "–" if len(signs) > 1 else "∞" if math.inf in signs else "−∞")
    mean, deviation = mean_and_deviation(runs)
    if spread == "sem":
        deviation /= math.sqrt(n)
    return SummaryCell(mean, deviation if n > 1 else None, n, missing, "")


def _decimals(size: float, significant: int) -> int:
    return significant - 1 - math.floor(math.log10(size))


def _text(cell: SummaryCell, decimals: int | None, fixed: bool) -> str:
    mean, spread = cell.mean or 0.0, cell.spread
    if decimals is None:  # spreads of this column differ by orders of magnitude: every cell for itself
        decimals = _decimals(spread or abs(mean) or 1.0, 2 if spread else 4)
    if fixed and decimals <= 6:
        shown = [f"{number:.{max(decimals, 0)}f}" for number in (mean, spread) if number is not None]
    else:
        lead = math.floor(math.log10(max(abs(mean), spread or 0.0) or 1.0))
        shown = [f"{mean:.{min(max(lead + decimals, 1), 6)}e}"] + ([f"{spread:.1e}"] if spread is not None else [])
    return " ± ".join(shown)


def _marked(cells: list[SummaryCell], better: Direction) -> list[SummaryCell]:
    """Cells whose printed mean is the best or the worst; none where all print the same."""
    known = [cell for cell in cells if cell.mean is not None]
    order = sorted(known, key=lambda cell: cell.mean or 0.0, reverse=better == "higher")
    best, worst = (cell.text.split(" ± ")[0] for cell in (order[0], order[-1]))
    if best == worst:
        return cells
    marks = {best: "best", worst: "worst"}
    return [
        replace(cell, mark=marks.get(cell.text.split(" ± ")[0], "") if cell.mean is not None else "") for cell in cells
    ]


# User text inside Markdown and LaTeX: shown as it is, never read as markup.


_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"\textquotedbl{}",
    "–": "--",
}
_SIGNS = r"""
    ±\pm −- ∞\infty ↑\uparrow ↓\downarrow →\to ×\times ≤\le ≥\ge ·\cdot α\alpha β\beta γ\gamma δ\delta ε\varepsilon η\eta
    θ\theta κ\kappa λ\lambda μ\mu π\pi ρ\rho σ\sigma τ\tau φ\varphi ψ\psi ω\omega Δ\Delta Σ\Sigma Ψ\Psi
"""
_LATEX |= {entry[0]: f"${entry[1:]}$" for entry in _SIGNS.split()}


def latex(text: str) -> str:
    r"""Text for a LaTeX cell; Greek letters and the signs of this library in mathematics.

    >>> latex("50% & κ_1 {x}\n~")
    '50\\% \\& $\\kappa$\\_1 \\{x\\} \\textasciitilde{}'
    """
    return "".join(_LATEX.get(letter, letter) for letter in _one_line(text))


def markdown(text: str) -> str:
    r"""Text for a cell of a Markdown table.

    >>> markdown("a|b *c* <i>\nd")
    'a\\|b \\*c\\* &lt;i&gt; d'
    """
    shown = _one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~$!])", r"\\\1", shown)


def _one_line(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


# Lines of marked text as a Markdown or LaTeX table; the first line is the header.


Lines = Sequence[Sequence["Text"]]


@dataclass(frozen=True)
class Text:
    """Plain text of a cell, escaped when it is printed; `mark` is "best" (bold), "worst" (italics) or empty."""

    text: str
    mark: str = ""


def to_markdown(lines: Lines, labels: int) -> str:
    r"""A Markdown table whose source lines up too; the first `labels` columns are left-aligned.

    >>> print(to_markdown([[Text("model"), Text("τ")], [Text("a|b"), Text("0.31", "best")]], labels=1))
    | model |        τ |
    |:------|---------:|
    | a\|b  | **0.31** |
    """
    signs = {"best": "**", "worst": "_", "": ""}
    shown = [[signs[cell.mark] + markdown(cell.text) + signs[cell.mark] for cell in line] for line in lines]
    widths = [max(3, *map(len, column)) for column in zip(*shown, strict=True)]
    padded = [
        [
            text.ljust(width) if i < labels else text.rjust(width)
            for i, (text, width) in enumerate(zip(line, widths, strict=True))
        ]
        for line in shown
    ]
    rule = [":" + "-" * (width + 1) if i < labels else "-" * (width + 1) + ":" for i, width in enumerate(widths)]
    head, *body = ("| " + " | ".join(line) + " |" for line in padded)
    return "\n".join([head, "|" + "|".join(rule) + "|", *body])


def to_latex(lines: Lines, labels: int, *, caption: str = "", label: str = "") -> str:
    r"""A LaTeX table with booktabs rules (`\usepackage{booktabs}`).

    >>> print(to_latex([[Text("model"), Text("τ")], [Text("a_b"), Text("-0.31", "best")]], labels=1))
    \begin{table}
      \centering
      \begin{tabular}{lr}
        \toprule
        model & $\tau$ \\
        \midrule
        a\_b & \textbf{$-$0.31} \\
        \bottomrule
      \end{tabular}
    \end{table}
    """
    commands = {"best": r"\textbf{%s}", "worst": r"\textit{%s}", "": "%s"}
    shown = [
        [commands[cell.mark] % latex(re.sub(r"(?<![\w.])-(?=\d)", "−", cell.text)) for cell in line] for line in lines
    ]
    head, *body = ("    " + " & ".join(line) + r" \\" for line in shown)
    notes = [rf"  \caption{{{latex(caption)}}}"] if caption else []
    notes += [r"  \label{" + re.sub(r"[^\w:.-]", "-", label) + "}"] if label else []
    columns = "l" * labels + "r" * (len(lines[0]) - labels)
    return "\n".join(
        [
            r"\begin{table}",
            r"  \centering",
            *notes,
            rf"  \begin{{tabular}}{{{columns}}}",
            r"    \toprule",
            head,
            r"    \midrule",
            *body,
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
        ]
    )


@dataclass(frozen=True)
class SummaryTable:
    """Cells by row and column, with what is needed to print them."""

    row_titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    columns: tuple[str, ...]
    cells: tuple[tuple[SummaryCell, ...], ...]
    spread: Spread
    better: Mapping[str, Direction]

    @property
    def caption(self) -> str:
        """What the numbers are."""
        sizes = {cell.n for row in self.cells for cell in row if cell.n}
        if sizes == {1}:
            return "The value of one run each."
        runs = f"n = {sizes.pop()} runs" if len(sizes) == 1 else "n runs"
        return f"Mean ± {'standard deviation' if self.spread == 'std' else 'standard error'} over {runs}."

    def to_markdown(self) -> str:
        """A Markdown table: best in bold, worst in italics."""
        return to_markdown(self._texts(), len(self.row_titles)) + f"\n\n{self.caption}\n"

    def to_latex(self, label: str = "", caption: str | None = None) -> str:
        """A LaTeX table with booktabs rules: best in bold, worst in italics."""
        shown = self.caption if caption is None else caption
        return to_latex(self._texts(), len(self.row_titles), caption=shown, label=label)

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
        """As plain values."""
        return {
            "row_titles": list(self.row_titles),
            "rows": [list(labels) for labels in self.rows],
            "columns": list(self.columns),
            "cells": [[asdict(cell) for cell in row] for row in self.cells],
            "spread": self.spread,
            "better": dict(self.better),
            "caption": self.caption,
        }

    def _texts(self) -> list[list[Text]]:
        """Header and body as marked text; a column n, and n in a cell that differs from its row's."""
        arrows = {"higher": " ↑", "lower": " ↓"}
        heads = [name + arrows.get(self.better.get(name, ""), "") for name in self.columns]
        lines = [[Text(title) for title in (*self.row_titles, *heads, "n")]]
        for labels, cells in zip(self.rows, self.cells, strict=True):
            most = max((cell.n for cell in cells), default=0)
            body = [Text(cell.text + (f" (n = {cell.n})" if 0 < cell.n < most else ""), cell.mark) for cell in cells]
            lines.append([*map(Text, labels), *body, Text(str(most))])
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
        better: {column: "higher" or "lower"} for columns whose best and worst mean are marked.

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
