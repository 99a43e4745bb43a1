"""Training curves: a line for every model, or mean and spread over the models of a condition where there are many."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from landscope.core.schema import Plain
from landscope.report.cohorts import Study
from landscope.report.embedding import plot_text, rounded
from landscope.report.section import Panels, Plot, Section
from landscope.report.traces import axis, band, decimated, model_line

__all__ = ["history_section"]

LINES = 60
"""More runs than these are shown by condition."""
PANELS = 8
TIMES = ("epoch", "step", "iteration")
SCHEDULES = ("lr", "learning_rate")
"""What was set and not found out: shown last."""
NOT_CURVES = (*TIMES, "seconds", "time", "time_s", "samples")

Curves = dict[int, tuple[list[float], list[float]]]


def history_section(study: Study) -> Section:
    """One panel for each column of the histories."""
    columns = sorted(
        dict.fromkeys(key for record in study.records for row in record.history for key in row),
        key=SCHEDULES.__contains__,
    )
    time = next((name for name in TIMES if name in columns), "")
    panels = []
    for column in columns:
        curves = _curves(study, column, time)
        told = {value for _, y in curves.values() for value in y}
        if column in NOT_CURVES or len(told) < 2 or not any(len(x) > 1 for x, _ in curves.values()):
            continue
        panels.append(_panel(study, column, time or "row", curves))
    return Section("training", "Training curves", [Panels(panels[:PANELS])] if panels else [])


def _curves(study: Study, column: str, time: str) -> Curves:
    found: Curves = {}
    for run, record in enumerate(study.records):
        points = [
            (_number(row, time, float(place)), _number(row, column, np.nan)) for place, row in enumerate(record.history)
        ]
        kept = [(x, y) for x, y in points if np.isfinite(x) and np.isfinite(y)]
        if kept:
            found[run] = ([x for x, _ in kept], [y for _, y in kept])
    return found


def _number(row: Mapping[str, Plain], key: str, otherwise: float) -> float:
    value = row.get(key)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else otherwise


def _panel(study: Study, column: str, time: str, curves: Curves) -> Plot:
    name = "learning rate" if column in SCHEDULES else column.replace("_", " ")
    many = len(curves) > LINES
    data: list[Plain] = [
        *(_by_condition(study, curves) if many else (model_line(study, r, *c) for r, c in curves.items()))
    ]
    what = "mean and standard deviation of each condition" if many else "a line for every model"
    return Plot(
        f"history-{column}",
        {
            "data": data,
            "layout": {
                "xaxis": {"title": {"text": plot_text(time)}},
                "yaxis": axis(name, (value for _, y in curves.values() for value in y)),
            },
        },
        f"{name[:1].upper()}{name[1:]} during training: {what}, n = {len(curves)}.",
        height=300,
    )


def _by_condition(study: Study, curves: Curves) -> list[Plain]:
    data: list[Plain] = []
    for number, condition in enumerate(study.conditions):
        members = [curve for run, curve in curves.items() if study.condition_of[run] == number]
        if not members:
            continue
        grid = np.unique(np.concatenate([x for x, _ in members]))
        grid = grid[decimated(len(grid))]
        # A run that ended early says nothing about later epochs.
        values = np.array([np.interp(grid, x, y, left=np.nan, right=np.nan) for x, y in members])
        count = np.isfinite(values).sum(0)
        mean = np.nansum(values, 0) / np.maximum(count, 1)
        spread = np.sqrt(np.nansum((values - mean) ** 2, 0) / np.maximum(count - 1, 1))
        if len(study.conditions) <= 12:
            data.append(band(grid, mean - spread, mean + spread, f"@c{number}", condition))
        data.append(
            {
                "type": "scatter",
                "mode": "lines",
                "x": rounded(grid),
                "y": rounded(mean),
                "line": {"color": f"@c{number}", "width": 2},
                "hoverinfo": "text+x+y",
                "text": plot_text(f"{condition}, mean of {len(members)}"),
                "showlegend": False,
                "meta": {"condition": number},
            }
        )
    return data
