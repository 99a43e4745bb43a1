"""By layer, under changes that keep the function, and on corrupted images."""

from __future__ import annotations

import math
from typing import cast

import numpy as np

from landscope.core.json import Plain
from landscope.core.text import counted, significant
from landscope.report.data.cohorts import Cohorts
from landscope.report.data.columns import label
from landscope.report.data.extras import (
    Corrupted,
    Layers,
    gather,
    read_corruptions,
    read_invariance,
    read_layers,
    spread_over_conditions,
)
from landscope.report.page.blocks import Block, Cell, Head, Panels, Plot, Prose, Section, Table
from landscope.report.page.embedding import plot_text, rounded
from landscope.report.page.plotly import axis, model_line

__all__ = ["corruption_section", "invariance_section", "layer_section"]


# Which layers are sharp: every measure of every layer, by condition.


BARS = 80
"""More bars than these in a panel are drawn as points."""


def layer_section(study: Cohorts) -> Section:
    """A panel for each measure: mean and spread over the models of a condition."""
    found, gathered = gather(study, "layers", read_layers)
    measures = list(dict.fromkeys(name for layers in found.values() for name in layers))
    plots = [_panel(study, measure, found) for measure in measures if any(each.get(measure) for each in found.values())]
    blocks: list[Block] = [Panels(plots)] if plots else []
    return Section("layers", "Layer by layer", [*blocks, *gathered.notes])


def _panel(study: Cohorts, measure: str, found: dict[int, Layers]) -> Plot:
    held = {run: layers[measure] for run, layers in found.items() if layers.get(measure)}
    names = list(dict.fromkeys(layer for rows in held.values() for layer in rows))
    members = {
        number: [rows for run, rows in held.items() if study.condition_of[run] == number]
        for number in range(len(study.conditions))
    }
    drawn = {number: rows for number, rows in members.items() if rows}
    bars = len(drawn) * len(names) <= BARS
    data: list[Plain] = []
    means: list[float] = []
    for number, rows in drawn.items():
        values = np.array([[each.get(layer, (np.nan, 0.0))[0] for layer in names] for each in rows])
        errors = np.array([[each.get(layer, (np.nan, 0.0))[1] for layer in names] for each in rows])
        count = np.isfinite(values).sum(0)
        mean = np.where(count > 0, np.nansum(values, 0) / np.maximum(count, 1), np.nan)
        spread = np.sqrt(np.nansum((values - mean) ** 2, 0) / np.maximum(count - 1, 1)) if len(rows) > 1 else errors[0]
        means += mean.tolist()
        data.append(
            {
                "type": "bar" if bars else "scatter",
                **({} if bars else {"mode": "lines+markers", "line": {"color": f"@c{number}", "width": 1.2}}),
                "name": plot_text(study.conditions[number]),
                "x": [plot_text(name) for name in names],
                "y": rounded(mean),
                "error_y": {"type": "data", "array": rounded(spread), "thickness": 1, "width": 2, "color": "@muted"},
                "marker": {"color": f"@c{number}"},
                "hoverinfo": "x+y+name",
                "showlegend": False,
                "meta": {"condition": number},
            }
        )
    models = len(held)
    spread_of = "the standard deviation over models" if models > len(drawn) else "the standard error"
    return Plot(
        f"layers-{measure}",
        {
            "data": data,
            "layout": {
                "barmode": "group",
                "bargap": 0.25,
                "xaxis": {"type": "category", "tickangle": -45 if len(names) > 6 else 0},
                "yaxis": axis("", means),
            },
        },
        f"Layers from input to output, the others held constant; bars are means over a condition, lines {spread_of}, "
        f"n = {counted(models, 'model')}.",
        title=label(f"train.{measure}"),
        height=320,
    )


# How far each measure moves when the parameters change and the function does not (Dinh et al. 2017).


STILL = 1e-3
"""Relative change that counts as rounding."""


def invariance_section(study: Cohorts) -> Section:
    """A table: measures down, transformations across, the median change over the models in the cells."""
    found, gathered = gather(study, "invariance", read_invariance)
    measures = list(dict.fromkeys(name for each in found.values() for name in each))
    kinds = list(dict.fromkeys(kind for each in found.values() for moved in each.values() for kind in moved))
    rows = []
    for measure in measures:
        cells = [Cell(label(f"train.{measure}"), title=measure)]
        for kind in kinds:
            moved = [each.get(measure, {}).get(kind) for each in found.values()]
            cells.append(_cell([pair for pair in moved if pair is not None and math.isfinite(pair[0])]))
        rows.append(cells)
    blocks: list[Block] = []
    if rows:
        count = len(found)
        blocks = [
            Prose(
                "A measure that moves while the function stays the same cannot by itself explain how well the function "
                "generalises. Each column changes the parameters of a model and not a single prediction."
            ),
            Table(
                [Head("measure", numeric=False), *(Head(kind.replace("_", " ")) for kind in kinds)],
                rows,
                f"Median relative change of the measure over {counted(count, 'model')}; a dash where a network "
                f"has no place for the transformation. “Unchanged”: within three standard errors or {100 * STILL:g} %.",
            ),
        ]
    return Section("invariances", "Does the measure see the function only?", [*blocks, *gathered.notes])


def _cell(moved: list[tuple[float, float]]) -> Cell:
    if not moved:
        return Cell("–", mark="muted")
    change = float(np.median([c for c, _ in moved]))
    error = float(np.nanmedian([e for _, e in moved]))
    shown = f"{significant(100 * change, 2)} %"
    if change <= max(STILL, 3 * error):
        return Cell("unchanged", mark="good", title=shown)
    return Cell(shown, mark="bad", title=f"± {significant(100 * error, 2)} %")


# Accuracy on corrupted images: how it falls with severity, and which corruptions hurt which condition.


MODELS = 60


def corruption_section(study: Cohorts) -> Section:
    """A line for every model over severity, and a heat map of conditions and corruptions."""
    found, gathered = gather(study, "corruptions", read_corruptions)
    blocks: list[Block] = [Panels([_severity(study, found), _kinds(study, found)])] if found else []
    return Section("corruptions", "Corrupted images", [*blocks, *gathered.notes])


def _severity(study: Cohorts, found: dict[int, Corrupted]) -> Plot:
    shown = spread_over_conditions(study, found, MODELS)
    data: list[Plain] = [
        model_line(study, run, [0, *each.severities], [each.clean, *each.accuracy.mean(0)])
        for run, each in shown.items()
    ]
    count = len(next(iter(found.values())).names)
    return Plot(
        "severity",
        {
            "data": data,
            "layout": {"xaxis": {"title": {"text": "severity"}, "dtick": 1}, "yaxis": {"title": {"text": "accuracy"}}},
        },
        f"Accuracy, mean over {counted(count, 'corruption')}; severity 0 is the clean image. A line for every "
        f"model, n = {len(shown)}.",
    )


def _kinds(study: Cohorts, found: dict[int, Corrupted]) -> Plot:
    names = list(dict.fromkeys(name for each in found.values() for name in each.names))
    numbers = sorted({study.condition_of[run] for run in found})
    values = np.full((len(names), len(numbers)), np.nan)
    for column, number in enumerate(numbers):
        members = [each for run, each in found.items() if study.condition_of[run] == number]
        for row, name in enumerate(names):
            known = [float(each.accuracy[each.names.index(name)].mean()) for each in members if name in each.names]
            if known:
                values[row, column] = np.mean(known)
    texts = [[f"{v:.2f}" if np.isfinite(v) else "" for v in row] for row in values]
    conditions = [study.conditions[number] for number in numbers]
    hovers = [
        [plot_text(f"{name}, {condition}: {v:.3f}") for condition, v in zip(conditions, row, strict=True)]
        for name, row in zip(names, values, strict=True)
    ]
    return Plot(
        "corruption-kinds",
        {
            "data": [
                {
                    "type": "heatmap",
                    "x": [plot_text(name) for name in conditions],
                    "y": [plot_text(name.replace("_", " ")) for name in names],
                    "z": rounded(values, 4),
                    "text": cast("list[Plain]", texts),
                    "texttemplate": "%{text}",
                    "textfont": {"size": 10},
                    "hovertext": cast("list[Plain]", hovers),
                    "hoverinfo": "text",
                    "colorscale": "Cividis",
                    "showscale": False,
                    "xgap": 2,
                    "ygap": 2,
                }
            ],
            "layout": {
                "xaxis": {"side": "top", "showgrid": False, "type": "category", "fixedrange": True},
                "yaxis": {"autorange": "reversed", "showgrid": False, "fixedrange": True},
                "margin": {"l": 40, "r": 8, "t": 40, "b": 8},
                "dragmode": False,
            },
        },
        "Accuracy by corruption and condition, mean over severities and models, "
        f"n = {counted(len(found), 'model')}; yellow is better.",
        height=max(300, 70 + 22 * len(names)),
    )
