"""Which layers are sharp: every measure of every layer, by condition."""

from __future__ import annotations

import numpy as np

from landscope.core.schema import Plain
from landscope.core.words import counted
from landscope.report.cohorts import Study
from landscope.report.columns import label
from landscope.report.embedding import plot_text, rounded
from landscope.report.extras import Layers, gather, read_layers
from landscope.report.section import Block, Panels, Plot, Section
from landscope.report.traces import axis

__all__ = ["layer_section"]

BARS = 80
"""More bars than these in a panel are drawn as points."""


def layer_section(study: Study) -> Section:
    """A panel for each measure: mean and spread over the models of a condition."""
    found, gathered = gather(study, "layers", read_layers)
    measures = list(dict.fromkeys(name for layers in found.values() for name in layers))
    plots = [_panel(study, measure, found) for measure in measures if any(each.get(measure) for each in found.values())]
    blocks: list[Block] = [Panels(plots)] if plots else []
    return Section("layers", "Layer by layer", [*blocks, *gathered.notes])


def _panel(study: Study, measure: str, found: dict[int, Layers]) -> Plot:
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
