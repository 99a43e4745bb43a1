"""Accuracy on corrupted images: how it falls with severity, and which corruptions hurt which condition."""

from __future__ import annotations

from typing import cast

import numpy as np

from landscope.core.schema import Plain
from landscope.core.words import counted
from landscope.report.cohorts import Study
from landscope.report.embedding import plot_text, rounded
from landscope.report.extras import Corrupted, gather, read_corruptions, spread_over_conditions
from landscope.report.section import Block, Panels, Plot, Section
from landscope.report.traces import model_line

__all__ = ["corruption_section"]

MODELS = 60


def corruption_section(study: Study) -> Section:
    """A line for every model over severity, and a heat map of conditions and corruptions."""
    found, gathered = gather(study, "corruptions", read_corruptions)
    blocks: list[Block] = [Panels([_severity(study, found), _kinds(study, found)])] if found else []
    return Section("corruptions", "Corrupted images", [*blocks, *gathered.notes])


def _severity(study: Study, found: dict[int, Corrupted]) -> Plot:
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


def _kinds(study: Study, found: dict[int, Corrupted]) -> Plot:
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
