"""Tables: numbers, marks, digits, and user text that must not become markup."""

from __future__ import annotations

import csv
import io
import json
import re

import numpy as np
import pandas as pd
import pytest

from landscope.analysis import summary_table
from landscope.analysis.tables import latex, markdown, summarise
from landscope.core.errors import OperandError, UnknownNameError

NASTY = r"50% & a_b {c} $d$ #1 ~x^2 \end{tabular} | *b* <script> `q` [l](u)"


def runs() -> pd.DataFrame:
    return pd.DataFrame({
        "condition": ["base"] * 3 + ["decay"] * 3 + ["sam"] * 2,
        "error": [18.0, 18.4, 18.2, 16.0, 16.4, 16.2, 17.0, 17.4],
        "flatness": [100.0, 300.0, 200.0, 40.0, 50.0, np.nan, 60.0, 80.0],
    })  # fmt: skip


def test_means_and_spreads() -> None:
    for spread, scale in (("std", 1.0), ("sem", 1 / np.sqrt(3))):
        table = summary_table(runs(), rows="condition", columns=["error", "flatness"], spread=spread)
        frame = table.to_frame()
        assert list(frame["condition"]) == ["base", "decay", "sam"]
        assert frame["error mean"].tolist() == pytest.approx([18.2, 16.2, 17.2])
        assert frame[f"error {spread}"][0] == pytest.approx(0.2 * scale)
        assert frame["flatness n"].tolist() == [3, 2, 2]
        assert table.cells[1][1].missing == 1


def test_markdown_layout() -> None:
    table = summary_table(
        runs(), rows="condition", columns={"error": "test error"}, digits=1, better={"error": "lower"}
    )
    assert table.to_markdown().splitlines()[:5] == [
        "| condition |   test error ↓ |   n |",
        "|:----------|---------------:|----:|",
        "| base      |   _18.2 ± 0.2_ |   3 |",
        "| decay     | **16.2 ± 0.2** |   3 |",
        "| sam       |     17.2 ± 0.3 |   2 |",
    ]
    assert "standard deviation over n runs" in table.to_markdown()


def test_cells_with_fewer_runs_say_so() -> None:
    text = summary_table(runs(), rows="condition", columns=["error", "flatness"]).to_markdown()
    assert "45.0 ± 7.1 (n = 2)" in text.replace("45 ± 7", "45.0 ± 7.1")


def test_directions() -> None:
    groups = [np.array([v]) for v in (1.0, 3.0, 2.0, 3.0)]
    assert [c.mark for c in summarise(groups, better="higher")] == ["worst", "best", "", "best"]
    assert [c.mark for c in summarise(groups, better="lower")] == ["best", "worst", "", "worst"]
    assert [c.mark for c in summarise(groups)] == [""] * 4
    assert [c.mark for c in summarise([np.array([2.0])] * 3, better="lower")] == [""] * 3
    assert [c.mark for c in summarise([np.array([2.0]), np.array([])], better="lower")] == ["", ""]
    assert [c.mark for c in summarise([np.array([1.001]), np.array([1.002])], digits=2, better="lower")] == ["", ""]


@pytest.mark.parametrize(
    ("groups", "texts"),
    [
        ([[9, 11], [5]], ["10.0 ± 1.4", "5.0"]),
        ([[0.912, 0.914], [0.873, 0.876]], ["0.9130 ± 0.0014", "0.8745 ± 0.0021"]),
        ([[3e-7, 3.2e-7]], ["3.10e-07 ± 1.4e-08"]),
        ([[12_000_000, 14_000_000]], ["1.30e+07 ± 1.4e+06"]),
        ([[0.001, 0.0012], [500, 700]], ["0.00110 ± 0.00014", "600 ± 141"]),
        ([[7, 7], [8, 8]], ["7.000 ± 0.000", "8.000 ± 0.000"]),
        ([[0, 0]], ["0.000 ± 0.000"]),
        ([[], [1.5]], ["–", "1.500"]),
        ([[np.inf, 1.0], [-np.inf], [np.inf, -np.inf]], ["∞", "−∞", "–"]),
    ],
)
def test_digits_follow_the_spread(groups: list[list[float]], texts: list[str]) -> None:
    assert [cell.text for cell in summarise([np.array(g, dtype=float) for g in groups])] == texts


def test_latex_is_escaped_and_balanced() -> None:
    frame = pd.DataFrame({NASTY: [NASTY, NASTY, "b"], "τ_b": [-1.0, -2.0, -4.0]})
    text = summary_table(frame, rows=NASTY, columns=["τ_b"], better={"τ_b": "higher"}).to_latex(label="tab:a b}")
    assert text.count(r"\end{tabular}") == 1
    assert r"50\% \& a\_b \{c\} \$d\$ \#1 \textasciitilde{}x\textasciicircum{}2 \textbackslash{}end" in text
    assert r"\label{tab:a-b-}" in text
    assert r"\textbf{$-$1.5" in text
    assert r"$\tau$\_b $\uparrow$" in text
    body = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len(body) == 3
    assert all(len(re.findall(r"(?<!\\)&", line)) == 2 for line in body)
    bare = re.sub(r"\\[{}$%&#_]", "", text)
    assert bare.count("{") == bare.count("}")
    assert bare.count("$") % 2 == 0


def test_markdown_is_escaped() -> None:
    frame = pd.DataFrame({"c": [NASTY, "two\nlines"], "v": [1.0, 2.0]})
    lines = summary_table(frame, rows="c", columns=["v"]).to_markdown().splitlines()
    assert all(len(re.findall(r"(?<!\\)\|", line)) == 4 for line in lines[:4])
    assert "<script>" not in lines[2]
    assert r"\*b\*" in lines[2]
    assert "two lines" in lines[3]
    assert markdown("a\\|b") == "a\\\\\\|b"
    assert latex("a\tb") == "a b"


def test_csv_reads_back_exactly() -> None:
    frame = pd.DataFrame({"c": ['say "hi", all', "two\nlines"], "v": [0.1 + 0.2, 1 / 3]})
    text = summary_table(frame, rows="c", columns=["v"]).to_csv()
    rows = list(csv.reader(io.StringIO(text)))
    assert rows[0] == ["c", "v mean", "v std", "v n"]
    assert rows[1][0] == 'say "hi", all'
    assert rows[2][0] == "two\nlines"
    assert [float(row[1]) for row in rows[1:]] == [0.1 + 0.2, 1 / 3]


def test_several_keys_name_the_rows() -> None:
    frame = pd.DataFrame({"model": ["a", "a", "b"], "sam": [True, False, None], "v": [1.0, 2.0, 3.0]})
    table = summary_table(frame, rows=["model", "sam"], columns=["v"])
    assert table.rows == (("a", "True"), ("a", "False"), ("b", "–"))
    json.dumps(table.to_dict(), allow_nan=False)


def test_wrong_arguments() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'error'"):
        summary_table(runs(), rows="condition", columns=["eror"])
    with pytest.raises(UnknownNameError, match="column of the table"):
        summary_table(runs(), rows="condition", columns=["error"], better={"flatness": "lower"})
    with pytest.raises(UnknownNameError, match="direction"):
        summary_table(runs(), rows="condition", columns=["error"], better={"error": "up"})  # type: ignore[dict-item]
    with pytest.raises(UnknownNameError, match="spread"):
        summary_table(runs(), rows="condition", columns=["error"], spread="iqr")  # type: ignore[arg-type]
    with pytest.raises(OperandError, match="titles"):
        summary_table(runs(), rows="condition", columns={"error": "x", "flatness": "x"})
    with pytest.raises(OperandError, match="numbers"):
        summary_table(runs(), rows="error", columns=["condition"])
    twice = pd.concat([runs(), runs()], axis=1)
    with pytest.raises(OperandError, match="unique"):
        summary_table(twice, rows="condition", columns=["error"])


def test_numbers_whose_squares_overflow_have_a_spread() -> None:
    huge, tiny, largest = summarise([np.array([0.0, 3e200]), np.array([1e-300, 3e-300]), np.array([-1.7e308, 1.7e308])])
    assert (huge.mean, huge.spread) == (1.5e200, pytest.approx(3e200 / np.sqrt(2), rel=1e-15))
    assert (tiny.mean, tiny.spread) == (pytest.approx(2e-300), pytest.approx(np.sqrt(2) * 1e-300, rel=1e-15))
    assert (largest.mean, largest.spread) == (0.0, np.finfo(float).max)
    assert [cell.text for cell in (huge, tiny)] == ["1.5e+200 ± 2.1e+200", "2.0e-300 ± 1.4e-300"]
