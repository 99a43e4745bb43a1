"""Figures in the browser: what Plotly, and the page's script around it, draw them from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np

from landscope.core.json import Plain
from landscope.report.page.blocks import Block, Panels, Plot
from landscope.report.page.figure import (
    Axis,
    Band,
    Bars,
    Contour,
    Curve,
    Errors,
    Figure,
    Heat,
    Mark,
    Marker,
    Panel,
    Points,
    Rule,
)
from landscope.report.page.html import plot_text, rounded
from landscope.report.page.style import DIVERGING

Trace = dict[str, Plain]


def in_browser(figure: Figure) -> list[Block]:
    """A plot for each panel, or one for all of them where the script arranges them."""
    first = figure.panels[0]
    caption = figure.caption or first.caption
    if figure.kind == "forest":
        return [Plot(figure.name, _forest(figure), caption, "forest", height=first.height)]
    if figure.kind == "landscape":
        return [Plot(figure.name, _landscape(figure), caption, "landscape", height=first.height)]
    plots = [_plot(panel, figure.kind == "explorer") for panel in figure.panels]
    return [Panels(plots, figure.least)] if figure.kind == "grid" else [*plots]


def _plot(panel: Panel, explorer: bool) -> Plot:
    if panel.columns is not None:
        x, y = panel.columns
        kind: Literal["scatter", "explorer"] = "explorer" if explorer else "scatter"
        return Plot(panel.key, {"x": x, "y": y}, panel.caption, kind, panel.title, panel.height)
    spec: Trace = {
        "data": [trace for mark in panel.marks for trace in _traces(mark)],
        "layout": _layout(panel),
    }
    return Plot(panel.key, spec, panel.caption, title=panel.title, height=panel.height)


def _layout(panel: Panel) -> Trace:
    layout: Trace = {}
    x, y = _axis(panel.x), _axis(panel.y)
    for axis in (x, y) if panel.fixed else ():
        axis["fixedrange"] = True
    if panel.square:
        x["constrain"], y["constrain"], y["scaleanchor"] = "domain", "domain", "x"
        y["constraintoward"] = "top"
    if any(isinstance(mark, Heat) for mark in panel.marks):
        x["showgrid"] = y["showgrid"] = False
        y["autorange"] = "reversed"
        if panel.x.top:
            layout["margin"] = {"l": 40, "r": 8, "t": 40, "b": 8}
    if any(isinstance(mark, Bars) for mark in panel.marks):
        layout |= {"barmode": "group", "bargap": 0.25}
    if any(isinstance(mark, Curve | Points) and mark.legend for mark in panel.marks):
        layout["showlegend"] = True
        if panel.fixed:
            layout["margin"] = {"l": 60, "r": 10, "t": 30, "b": 36}
    if panel.fixed:
        layout["dragmode"] = False
    rules: list[Plain] = [_rule(mark) for mark in panel.marks if isinstance(mark, Rule)]
    if rules:
        layout["shapes"] = rules
    return layout | {"xaxis": x, "yaxis": y}


def _axis(axis: Axis) -> Trace:
    found: Trace = {}
    if axis.title or axis.powers:
        found["title"] = {"text": plot_text(axis.title)}
    if axis.scale:
        found["type"] = axis.scale
    if axis.powers:
        found["exponentformat"] = "power"
    if axis.step is not None:
        found["dtick"] = axis.step
    if axis.range is not None:
        ends = [math.log10(end) for end in axis.range] if axis.scale == "log" else axis.range
        found["range"] = rounded(ends)
    if axis.ticks is not None:
        places, texts = axis.ticks
        found |= {"tickvals": rounded(places), "ticktext": [plot_text(text) for text in texts]}
    if axis.angle is not None:
        found["tickangle"] = axis.angle
    if axis.zero:
        found["zeroline"] = True
    if axis.top:
        found["side"] = "top"
    return found


def _traces(mark: Mark) -> Iterator[Trace]:
    if isinstance(mark, Curve):
        yield _line(mark)
    elif isinstance(mark, Points):
        yield _points(mark)
    elif isinstance(mark, Band):
        yield _band(mark)
    elif isinstance(mark, Bars):
        yield _bars(mark)
    elif isinstance(mark, Heat):
        yield _heat(mark)
    elif isinstance(mark, Contour):
        yield from _contour(mark)


def _contour(plane: Contour) -> Iterator[Trace]:
    """Lines of equal height with a bar of the scale, the way there, and a cross at the model."""
    low, high = (math.log10(end) if plane.scale.logarithmic else end for end in (plane.scale.low, plane.scale.high))
    heights = np.log10(plane.heights) if plane.scale.logarithmic else plane.heights
    bar: Trace = {
        "thickness": 8,
        "outlinewidth": 0,
        "tickfont": {"size": 10},
        "title": {"text": "loss", "font": {"size": 10}},
    }
    if plane.scale.logarithmic:
        decades = np.arange(math.ceil(low), math.floor(high) + 1)
        places = decades if len(decades) > 1 else np.linspace(low, high, 4)
        bar |= {"tickvals": rounded(places), "ticktext": [f"{10.0**place:.2g}" for place in places]}
    yield {
        "type": "contour",
        "x": rounded(plane.x, 4),
        "y": rounded(plane.y, 4),
        "z": rounded(heights, 4),
        "zmin": low,
        "zmax": high,
        "colorscale": "Viridis",
        "contours": {"coloring": "heatmap", "start": low, "end": high, "size": (high - low or 1) / 14},
        "line": {"width": 0.7, "color": "rgba(255,255,255,0.55)"},
        "colorbar": bar,
        "showscale": plane.bar,
        "text": [[f"loss {value:.4g}" for value in row] for row in plane.heights.tolist()],
        "hoverinfo": "text",
    }
    if plane.path is not None:
        x, y = rounded(plane.path[:, 0], 4), rounded(plane.path[:, 1], 4)
        white: Trace = {"color": "#ffffff", "width": 1.2}
        yield {"type": "scatter", "mode": "lines+markers", "x": x, "y": y, "line": white, "hoverinfo": "skip"} | {
            "marker": {"size": 4, "color": "#ffffff"}
        }
    cross: Trace = {"symbol": "cross-thin", "size": 12, "line": {"color": "#ffffff", "width": 2}}
    yield {"type": "scatter", "mode": "markers", "x": [0], "y": [0], "marker": cross, "hoverinfo": "skip"}


def _line(line: Curve) -> Trace:
    trace: Trace = {
        "type": "scatter",
        "mode": "lines" if line.marker is None else "lines+markers",
        "x": rounded(line.x),
        "y": rounded(line.y),
        "line": {"color": line.colour, "width": line.width, "dash": line.dash},
        **({"showlegend": False} if not line.legend else {"name": plot_text(line.legend)}),
        **_hover(line.hover, line.hover_numbers),
    }
    if line.opacity < 1:
        trace["opacity"] = line.opacity
    if line.marker is not None:
        trace["marker"] = _marker(line.marker, line.colour)
    if line.y_error is not None:
        trace["error_y"] = _errors(line.y_error)
    if line.over_gaps:
        trace["connectgaps"] = True
    if line.run is not None:
        trace["meta"] = {"run": line.run}
    elif line.condition is not None:
        trace["meta"] = {"condition": line.condition}
    return trace


def _hover(hover: str | Sequence[str], numbers: str) -> Trace:
    if not hover:
        return {"hoverinfo": "skip"}
    text: Plain = plot_text(hover) if isinstance(hover, str) else [plot_text(each) for each in hover]
    return {"text": text, "hoverinfo": f"text+{numbers}"} if numbers else {"hovertext": text, "hoverinfo": "text"}


def _points(points: Points) -> Trace:
    trace: Trace = {
        "type": "scatter",
        "mode": "markers",
        "x": rounded(points.x),
        "y": rounded(points.y),
        "marker": _marker(points.marker, points.colour),
        **_hover(points.hover, ""),
    }
    if points.legend:
        trace["name"] = plot_text(points.legend)
    for key, errors in (("error_x", points.x_error), ("error_y", points.y_error)):
        if errors is not None:
            trace[key] = _errors(errors)
    if points.runs:
        trace["selected"] = {"marker": {"opacity": 1, "size": 11}}
        trace["unselected"] = {"marker": {"opacity": 0.1}}
        trace["meta"] = {"runs": [*points.runs]}
    return trace


def _marker(marker: Marker, colour: str) -> Trace:
    size: Plain = marker.size if isinstance(marker.size, int | float) else rounded(marker.size)
    found: Trace = {"color": colour, "size": size}
    if marker.symbol:
        found["symbol"] = marker.symbol + "-open" * marker.hollow
    if marker.opacity is not None:
        found["opacity"] = marker.opacity
    return found


def _errors(errors: Errors) -> Trace:
    found: Trace = {
        "type": "data",
        "array": rounded(errors.plus),
        "thickness": errors.thickness,
        "width": errors.cap,
    }
    if errors.minus is not None:
        found |= {"symmetric": False, "arrayminus": rounded(errors.minus)}
    if errors.colour:
        found["color"] = errors.colour
    return found


def _band(band: Band) -> Trace:
    return {
        "type": "scatter",
        "mode": "lines",
        "x": rounded(np.concatenate([band.x, band.x[::-1]])),
        "y": rounded(np.concatenate([band.high, band.low[::-1]])),
        "fill": "toself",
        "fillcolor": band.colour,
        "line": {"width": 0},
        "opacity": 0.18,
        "hoverinfo": "skip",
        "showlegend": False,
        "name": plot_text(band.name),
    }


def _bars(bars: Bars) -> Trace:
    return {
        "type": "bar",
        "name": plot_text(bars.name),
        "x": [plot_text(category) for category in bars.categories],
        "y": rounded(bars.values),
        "error_y": _errors(bars.error),
        "marker": {"color": f"@c{bars.condition}"},
        "hoverinfo": "x+y+name",
        "showlegend": False,
        "meta": {"condition": bars.condition},
    }


def _heat(heat: Heat) -> Trace:
    trace: Trace = {
        "type": "heatmap",
        "x": [plot_text(name) for name in heat.columns],
        "y": [plot_text(name) for name in heat.rows],
        "z": rounded(heat.values, 4 if heat.texts else 3),
        "hovertext": [[plot_text(text) for text in row] for row in heat.hover],
        "hoverinfo": "text",
        "colorscale": "Cividis",
    }
    if heat.scale == "diverging":
        trace |= {"zmin": -1, "zmax": 1, "colorscale": [[place, shade] for place, shade in DIVERGING]}
    if heat.texts:
        trace |= {"text": [[*row] for row in heat.texts], "texttemplate": "%{text}", "textfont": {"size": 10}}
        trace |= {"showscale": False, "xgap": 2, "ygap": 2}
    else:
        bar: Trace = {"thickness": 10, "outlinewidth": 0, "title": {"text": plot_text(heat.bar)}}
        trace |= {"colorbar": bar, "xgap": 1, "ygap": 1}
    return trace


def _rule(rule: Rule) -> Trace:
    line: Trace = {"color": "@muted", "width": 1, "dash": "dot"}
    return {"type": "line", "x0": rule.x, "x1": rule.x, "y0": 0, "y1": 1, "yref": "paper", "line": line}


def _forest(figure: Figure) -> Trace:
    """A facet for each panel: its rows by name, with value, bounds, and whether they are filled."""
    assert figure.panels[0].y.ticks is not None
    names = figure.panels[0].y.ticks[1]
    facets: list[Plain] = []
    for panel in figure.panels:
        rows: dict[int, Plain] = {}
        for mark in panel.marks:
            if isinstance(mark, Points):
                rows |= _forest_rows(mark, names)
        facets.append({"name": panel.title, "rows": [rows[place] for place in sorted(rows)]})
    return {"measures": [*names], "outcomes": facets}


def _forest_rows(points: Points, names: Sequence[str]) -> dict[int, Plain]:
    found: dict[int, Plain] = {}
    bars = points.x_error
    assert bars is not None
    assert bars.minus is not None
    for value, place, plus, minus, text in zip(points.x, points.y, bars.plus, bars.minus, points.hover, strict=True):
        found[int(place)] = {
            "measure": names[int(place)],
            "value": rounded(value),
            "low": rounded(value - minus),
            "high": rounded(value + plus),
            "sure": not points.marker.hollow,
            "text": text,
        }
    return found


def _landscape(figure: Figure) -> Trace:
    """The planes of each run."""
    planes = [mark for panel in figure.panels for mark in panel.marks if isinstance(mark, Contour)]
    scale = planes[0].scale
    models: dict[int, list[Plain]] = {}
    for plane in planes:
        models.setdefault(plane.run, []).append(
            {
                "name": plane.name,
                "x": rounded(plane.x, 4),
                "y": rounded(plane.y, 4),
                "z": rounded(plane.heights, 4),
                "path": None if plane.path is None else rounded(plane.path, 4),
            }
        )
    return {
        "models": [{"run": run, "splits": splits} for run, splits in models.items()],
        "log": scale.logarithmic,
        "ends": rounded([scale.low, scale.high], 4),
        "title": scale.title,
        "labels": [figure.panels[0].x.title, figure.panels[0].y.title],
    }
