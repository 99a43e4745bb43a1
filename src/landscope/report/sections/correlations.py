"""The correlation matrix: a heat map of measures against outcomes for every cohort, and all numbers with their intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from landscope.analysis import Finding
from landscope.core.text import counted, decimal, p_value
from landscope.report.data.associations import Associations
from landscope.report.data.cohorts import Cohorts
from landscope.report.data.columns import label, value_columns
from landscope.report.page.blocks import Block, Cell, Heading, Mark, Prose, Section, Table
from landscope.report.page.figure import Axis, Errors, Figure, Heat, Marker, Panel, Points, value_axis

COLUMNS = 40
"""The most columns that are compared with each other."""


def correlation_section(study: Cohorts, every: list[Associations]) -> Section:
    """Heat maps and a table."""
    if not every:
        return Section("correlations", "Correlations", [])
    drawn = [(place, found) for place, found in enumerate(every) if not found.undrawn]
    maps = [_map(found, place, named=len(every) > 1) for place, found in drawn]
    blocks: list[Block] = [Figure("correlations", maps, maps[0].caption, across=1)] if maps else []
    blocks.append(_table(every[0]))
    redundancy = _redundancy(study)
    if redundancy is not None:
        blocks.append(redundancy)
    return Section("correlations", "Correlations", blocks, _so_what(every[0]))


def _so_what(found: Associations) -> str:
    """How many pairs are shown, and what the others are."""
    pairs = [(measure, outcome) for outcome in found.outcomes for measure in found.measures]
    shown = [pair for pair in pairs if found.sure(*pair)]
    if not shown:
        return (
            "No pair is shown to be more than chance. That does not show that nothing is related: neither choose nor reject a "
            "measure by this table."
        )
    held = [pair for pair in shown if found.sure_inside(*pair)]
    inside = f", {len(held)} of them inside conditions as well" if found.by_condition else ""
    return (
        f"{len(shown)} of {len(pairs)} pairs are shown to go together{inside}. The others are undecided, which is not the same "
        f"as unrelated."
    )


def _map(found: Associations, place: int, named: bool) -> Panel:
    findings = [[found.finding(measure, outcome) for outcome in found.outcomes] for measure in found.measures]
    used = found.units
    heat = Heat(
        [found.titles[outcome] for outcome in found.outcomes],
        [found.titles[measure] for measure in found.measures],
        np.array([[f.correlation.value for f in row] for row in findings], dtype=np.float64),
        [[f"{f.measure}, {f.outcome}: {f.correlation}" for f in row] for row in findings],
        [[_cell(found, f) for f in row] for row in findings],
    )
    return Panel(
        f"correlations-{place}",
        [heat],
        Axis(angle=-40, top=True),
        Axis(),
        f"{_coefficient(found)} of measures (rows) with outcomes (columns){found.of_means}, n = {used}; blue: together, "
        f"orange: against. A star: significant after adjusting for {counted(found.tests, 'test')}.",
        title=found.cohort.name if named else "",
        note=f"n = {used}",
        height=110 + 24 * len(found.measures),
        fixed=True,
    )


def _table(found: Associations) -> Table:
    first = found.table.findings[0]
    symbol = first.correlation.symbol
    inside, partial = first.within is not None, first.partial is not None
    granulated = any(f.granulated is not None for f in found.table.findings)
    rows = []
    for outcome in found.outcomes:
        for measure in sorted(found.measures, key=lambda m: -abs(found.finding(m, outcome).correlation.value or 0.0)):
            f = found.finding(measure, outcome)
            c = f.correlation
            verdict = f.verdict(found.table.rules)
            mark: Mark = (
                "good" if verdict == "goes with" else "muted" if verdict in ("undefined", "weak at most") else ""
            )
            row = [
                Cell(found.titles[measure], title=measure),
                Cell(found.titles[outcome], title=outcome),
                Cell(decimal(c.value), title=c.reason),
                Cell(
                    "–" if c.low is None or c.high is None else f"{decimal(c.low)} … {decimal(c.high)}",
                    title="the coefficients that the same test does not reject",
                ),
                Cell(p_value(c.p_value).removeprefix("= "), title=c.p_method),
                Cell(p_value(f.adjusted_p).removeprefix("= ")),
            ]
            if inside:
                turned = found.paradox(measure, outcome)
                within, star = (None if f.within is None else f.within.value), "*" * found.sure_inside(measure, outcome)
                title = "both are shown, with opposite signs" if turned else "" if f.within is None else str(f.within)
                row.append(Cell(decimal(within) + star, mark="bad" if turned else "", title=title))
            if partial:
                row.append(_partial_cell(found, f))
            if granulated:
                psi = None if f.granulated is None else f.granulated.value
                row.append(Cell(decimal(psi), title=str(f.granulated or "")))
            rows.append([*row, Cell(str(c.n)), Cell(verdict, mark=mark)])
    heads = ["measure", "outcome", symbol, "95% interval", "p", "adjusted p"]
    heads += (
        ["inside conditions"] * inside + [f"given {' and '.join(found.table.given)}"] * partial + ["Ψ"] * granulated
    )
    text = ("measure", "outcome", "verdict")
    notes = "Benjamini–Yekutieli adjustment over all rows."
    if inside:
        notes += " The units are conditions: their means are correlated. Inside conditions: only models of the same condition"
        notes += " are compared; shaded where both are shown with opposite signs."
    notes += " A star: significant after the adjustment." * (inside or partial)
    notes += f" Weak at most: shown to be smaller than ±{found.table.rules.relevant:g}, adjusted as well."
    notes += " Ψ: one axis of the study changed at a time." * granulated
    return Table(
        [Heading(name, numeric=name not in text) for name in (*heads, "n", "verdict")],
        rows,
        f"All correlations of {found.cohort.name} models, n = {found.units}, strongest first within each outcome. {notes}",
        key="correlation-table",
    )


def _redundancy(study: Cohorts) -> Figure | None:
    """How measures and outcomes go with each other: ranks, so that the cost does not grow with the square of the models."""
    frame = study.main.frame
    kept = [c for c in (*study.outcomes, *study.measures) if frame[c].nunique() > 1 and c not in study.repeats]
    columns = kept[:COLUMNS]
    if len(columns) < 3 or len(frame) < 5:
        return None
    matrix = frame[columns].astype(float).corr("spearman").to_numpy()
    names = [label(c) for c in columns]
    hover = [
        [f"{a}, {b}: ρ = {matrix[i, j]:.2f}" if np.isfinite(matrix[i, j]) else "" for j, b in enumerate(names)]
        for i, a in enumerate(names)
    ]
    known: pd.Series = frame[columns].notna().all(axis=1)
    panel = Panel(
        "redundancy",
        [Heat(names, names, matrix, hover, bar="ρ")],
        Axis(angle=-60),
        Axis(),
        f"Everything with everything: Spearman's ρ, n = {len(frame)} models ({int(known.sum())} of them with all values). "
        f"Measures that order the models alike form blocks; those that are equal up to a factor stand here once.",
        title="What measures the same thing",
        note=f"n = {len(frame)}",
        height=140 + 19 * len(columns),
        fixed=True,
    )
    return Figure("redundancy", [panel], kind="wide")


def _partial_cell(found: Associations, finding: Finding) -> Cell:
    """What is left given the covariate, with a star where it is significant; how reliable that is known."""
    if finding.partial is None:
        return Cell("–")
    q = finding.partial_adjusted_p
    star = "*" * (q is not None and q <= found.table.rules.alpha)
    shown = str(finding.partial) + (f"; {finding.partial.reason}" if finding.partial.reason else "")
    return Cell(decimal(finding.partial.value) + star, title=shown)


def _coefficient(found: Associations) -> str:
    return {"kendall": "Kendall's τ", "spearman": "Spearman's ρ", "pearson": "Pearson's r"}[found.table.method]


def _cell(found: Associations, finding: Finding) -> str:
    """The coefficient, with a star where it is significant."""
    value = finding.correlation.value
    if value is None:
        return ""
    return decimal(value) + "*" * (finding.verdict(found.table.rules) == "goes with")


# Scatter plots of the strongest pairs, and one in which any two columns can be set against each other.


OUTCOMES, MEASURES = 4, 3
ERROR_OVER_SPREAD = 4.0
"""An error bar this many times the standard deviation over models is all that a scatter plot would show."""
ERROR_BARS = 300
"""Models up to which their error bars are legible."""


def scatter_section(study: Cohorts, found: Associations | None) -> Section:
    """For each outcome the measures that go with it most."""
    if len(study.main) < 2 or not study.outcomes:
        return Section("scatter", "Model by model", [])
    blocks: list[Block] = [
        Prose(
            "A point is a model, its bars one standard error: the estimator's or the data's, whichever is larger.",
            scripted=found is None,
        ),
        Prose(
            "Click a point to highlight its model in every figure and table, or a condition to highlight all of its models; hold "
            "Shift to add to the selection, press Escape to clear it. The selection is part of the page's address, so it can "
            "be shared.",
            scripted=True,
        ),
    ]
    if found is not None:
        pairs = [(m, o) for o in found.outcomes[:OUTCOMES] for m in _legible(found, found.strongest(o))[:MEASURES]]
        panels = [_scatter(study, found, measure, outcome) for measure, outcome in pairs]
        caption = "The strongest measures against the outcomes, a point for each model."
        blocks += [Figure("scatter", panels, caption, across=MEASURES)] if panels else []
    columns = value_columns(study.main.frame)
    x = study.measures[0] if study.measures else columns[0]
    y = study.outcomes[0]
    if found is not None and found.strongest(y):
        x = found.strongest(y)[0]
    caption = (
        f"Any column against any other, n = {len(study.main)} models. Axes are logarithmic where all values are positive and "
        f"span more than two decades."
    )
    title = "Compare any two columns"
    explorer = Panel("explorer", (), Axis(), Axis(), caption, title, height=440, columns=(x, y))
    blocks.append(Figure("explorer", [explorer], kind="explorer"))
    return Section("scatter", "Model by model", blocks)


def _legible(found: Associations, measures: Sequence[str]) -> list[str]:
    """Measures whose models lie further apart than a fraction of their error bars; all, where that is true of none."""
    frame, errors = found.used.frame, found.used.errors
    kept = [m for m in measures if not float(errors[m].median()) > ERROR_OVER_SPREAD * float(frame[m].std())]
    return kept or list(measures)


def _scatter(study: Cohorts, found: Associations, measure: str, outcome: str) -> Panel:
    """The models of each condition, with error bars of one standard error."""
    c = found.shown(measure, outcome)
    frame, errors = found.used.frame, found.used.errors
    x, y = (frame[column].to_numpy(dtype=np.float64) for column in (measure, outcome))
    x_error, y_error = (errors[column].fillna(0.0).to_numpy(dtype=np.float64) for column in (measure, outcome))
    condition = np.array([study.condition_of[run] for run in frame.index])
    marks = []
    bars = len(frame) <= ERROR_BARS
    for number in np.unique(condition):
        at = (condition == number) & np.isfinite(x) & np.isfinite(y)
        marks.append(
            Points(
                x[at],
                y[at],
                f"@c{number}",
                Marker(6.5),
                x_error=Errors(x_error[at], thickness=0.8) if bars else None,
                y_error=Errors(y_error[at], thickness=0.8) if bars else None,
                condition=int(number),
            )
        )
    return Panel(
        f"scatter-{measure}-{outcome}",
        marks,
        value_axis(found.titles[measure], x),
        value_axis(found.titles[outcome], y),
        _caption(found, measure, outcome),
        note=f"{c.symbol} = {decimal(c.value)}, n = {c.units}",
        size=(1.7, 1.4),
        columns=(measure, outcome),
    )


def _caption(found: Associations, measure: str, outcome: str) -> str:
    f, c = found.finding(measure, outcome), found.shown(measure, outcome)
    p = f.adjusted_p if c is f.correlation else f.within_adjusted_p
    bounds = "" if c.low is None or c.high is None else f" [{decimal(c.low)}, {decimal(c.high)}]"
    adjusted = "" if p is None else f", adjusted p {'< 0.001' if p < 0.001 else f'= {p:.2g}'}"
    where = "" if not found.by_condition else "Between conditions " if c is f.correlation else "Inside conditions "
    return f"{where}{c.symbol} = {decimal(c.value)}{bounds}{adjusted}, n = {c.units}."
