"""Reliability diagrams, one for each condition: stated confidence against accuracy, before and after temperature scaling.

Where models were measured at one temperature only, "before" and "after" are not mentioned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
from scipy import stats

from landscope.core.text import counted, significant
from landscope.measures.calibration.reliability import Reliability
from landscope.report.data.cohorts import Cohorts
from landscope.report.data.extras import Calibration, fault_notes, gather, read_reliability, spread_over_conditions
from landscope.report.page.blocks import Block, Prose, Section
from landscope.report.page.figure import Axis, Curve, Errors, Figure, Floats, Marker, Panel, model_line

CONDITIONS, ACROSS = 12, 4
"""Diagrams, and how many of them are in a row on paper."""
PAPER_CAPTION = "Confidence against accuracy: all models of a condition together."
SURE = 0.05
"""The p below which the runs of a condition agree that it is too sure of itself, or not sure enough."""
MODELS = 120
"""Thin lines in all diagrams together."""


def calibrations(study: Cohorts) -> tuple[dict[int, Calibration], list[str]]:
    """The tables of every run, those of its scaled and its unscaled model together."""
    found: dict[int, Calibration] = {}
    faults: list[str] = []
    checkpoints = list(dict.fromkeys(next(iter(c.members.values())).checkpoint for c in study.cohorts))
    for checkpoint in checkpoints:
        for cohort in study.cohorts:
            if next(iter(cohort.members.values())).checkpoint == checkpoint:
                tables, odd = gather(study, "reliability", read_reliability, (cohort,))
                faults += odd
                for run, by_time in tables.items():
                    found[run] = {**by_time, **found.get(run, {})}
        if found:
            break
    return found, faults


def both_times(found: Mapping[int, Calibration]) -> bool:
    """Whether any of the models were measured before temperature scaling, and any after it."""
    return len({when for by_time in found.values() for when in by_time}) > 1


def calibration_section(study: Cohorts) -> Section:
    """A diagram for each condition."""
    found, faults = calibrations(study)
    both = both_times(found)
    lines = spread_over_conditions(study, found, MODELS)
    panels = []
    for number, condition in enumerate(study.conditions):
        members = {run: tables for run, tables in found.items() if study.condition_of[run] == number}
        if members:
            drawn = [run for run in members if run in lines]
            panels.append(_diagram(study, number, condition, members, drawn, both=both))
    blocks: list[Block] = []
    if panels:
        blocks = [
            Prose(
                "Points on the diagonal are calibrated; below it a model is too sure of itself. Bars: 95% interval for one "
                "model, otherwise the standard deviation over models."
            ),
            Prose(
                "The larger a point, the more samples have that confidence. Thin lines are single models.",
                scripted=True,
            ),
            Figure("reliability", panels[:CONDITIONS], PAPER_CAPTION, across=ACROSS),
        ]
        if len(panels) > CONDITIONS:
            blocks.append(Prose(f"{CONDITIONS} of {len(panels)} conditions are shown.", tone="note"))
    title = "Calibration before and after temperature scaling" if both else "Calibration"
    return Section("calibration", title, [*blocks, *fault_notes(faults)], _so_what(study, found))


def _so_what(study: Cohorts, found: Mapping[int, Calibration]) -> str:
    """Which conditions are too sure of themselves, which not sure enough, before any scaling."""
    gaps = {}
    for run, tables in found.items():
        table = tables.get("before") or next(iter(tables.values()))
        held = table.counts > 0
        gaps[run] = float(np.average((table.confidence - table.accuracy)[held], weights=table.counts[held]))
    over: list[str] = []
    under: list[str] = []
    for name, values in study.by_condition(gaps).items():
        if len(values) > 1 and float(stats.ttest_1samp(values, 0.0).pvalue) < SURE:
            middle = float(np.mean(values))
            (over if middle > 0 else under).append(f"{name} by {significant(abs(middle), 2)}")
    said = [f"too sure: {', '.join(over)}"] * bool(over) + [f"not sure enough: {', '.join(under)}"] * bool(under)
    if not said:
        return ""
    return (
        f"On average over all samples, {'; '.join(said)}. A temperature fitted on held-out rows corrects such a shift."
    )


def pooled(tables: Sequence[Reliability]) -> tuple[Reliability, Floats, Floats] | None:
    """One table of several models with the bounds of its bars; `None` where their bins differ.

    >>> one = Reliability(np.array([0, 0.5, 1]), np.array([0, 10]), np.array([np.nan, 0.9]), np.array([np.nan, 0.8]))
    >>> two = Reliability(one.edges, np.array([0, 30]), one.confidence, np.array([np.nan, 0.6]))
    >>> pooled([one, two])[0].accuracy
    array([ nan, 0.65])
    """
    first = tables[0]
    if len(tables) == 1:
        return (first, *first.accuracy_interval())
    if any(len(t.edges) != len(first.edges) or not np.allclose(t.edges, first.edges) for t in tables):
        return None
    counts = np.array([t.counts for t in tables], dtype=np.float64)
    total = counts.sum(0)
    held = np.where(total > 0, total, np.nan)
    confidence, accuracy = (
        np.nansum(counts * np.nan_to_num([getattr(t, name) for t in tables]), axis=0) / held
        for name in ("confidence", "accuracy")
    )
    deviation = (counts * np.nan_to_num([t.accuracy - accuracy for t in tables]) ** 2).sum(0)
    # The weighted variance of a bin that n models share, by its usual correction n/(n − 1).
    share = np.maximum((counts > 0).sum(0), 2)
    spread = np.sqrt(deviation / held * share / (share - 1))
    pool = Reliability(first.edges, total.astype(np.int64), confidence, accuracy)
    return pool, accuracy - spread, accuracy + spread


def _diagram(
    study: Cohorts, number: int, condition: str, members: dict[int, Calibration], lines: Sequence[int], *, both: bool
) -> Panel:
    ends = np.array([0.0, 1.0])
    marks = [Curve(ends, ends, "@muted", width=1, dash="dot")]
    errors = []
    for when in ("before", "after"):
        tables = {run: by_time[when] for run, by_time in members.items() if when in by_time}
        if not tables:
            continue
        for run in lines if len(tables) > 1 else ():
            if run in tables:
                line = model_line(study, run, tables[run].confidence, tables[run].accuracy)
                hover = f"{line.hover}, {when}" if both else line.hover
                marks.append(replace(line, opacity=0.22, over_gaps=True, hover=hover))
        ece = np.array([table.ece for table in tables.values()])
        errors.append(significant(float(ece.mean()), 2) + (f" {when}" if both else ""))
        found = pooled(list(tables.values()))
        if found is not None:
            marks.append(_points(*found, when=when, colour=f"@c{number}", both=both))
    error = ", ".join(errors)
    return Panel(
        f"reliability-{number}",
        marks,
        Axis("confidence", range=(0, 1.02)),
        Axis("accuracy", range=(0, 1.02)),
        f"Calibration error {error}; {counted(len(members), 'model')}.",
        title=condition,
        note=f"n = {len(members)}\nECE {error}",
        height=360,
        square=True,
    )


def _points(table: Reliability, low: Floats, high: Floats, *, when: str, colour: str, both: bool) -> Curve:
    shown = table.counts > 0
    share = table.counts[shown] / table.counts.sum()
    stated, right = table.confidence[shown], table.accuracy[shown]
    scaling = f"{when} scaling: " if both else ""
    before = when == "before"
    return Curve(
        stated,
        right,
        colour,
        width=1.6,
        dash="dash" if before else "solid",
        marker=Marker(4 + 10 * np.sqrt(share), "circle" if before else "square", hollow=before),
        y_error=Errors(np.maximum(high[shown] - right, 0), np.maximum(right - low[shown], 0), colour),
        legend=f"{when} scaling" if both else "",
        hover=[
            f"{scaling}says {c:.3f}, right {a:.3f}, {100 * s:.1f} % of samples"
            for c, a, s in zip(stated, right, share, strict=True)
        ],
        hover_numbers="",
    )
