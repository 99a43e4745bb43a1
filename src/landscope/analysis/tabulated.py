"""Lines of marked text as a Markdown or LaTeX table; the first line is the header."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from landscope.analysis import escaping

__all__ = ["Text", "to_latex", "to_markdown"]

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
    shown = [[signs[cell.mark] + escaping.markdown(cell.text) + signs[cell.mark] for cell in line] for line in lines]
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
        [commands[cell.mark] % escaping.latex(re.sub(r"(?<![\w.])-(?=\d)", "−", cell.text)) for cell in line]
        for line in lines
    ]
    head, *body = ("    " + " & ".join(line) + r" \\" for line in shown)
    notes = [rf"  \caption{{{escaping.latex(caption)}}}"] if caption else []
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
