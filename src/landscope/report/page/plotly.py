"""Pieces of Plotly figures that several sections draw."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from landscope.core.json import Plain
from landscope.report.data.cohorts import Cohorts
from landscope.report.page.embedding import plot_text, rounded

__all__ = ["SPREAD", "Floats", "axis", "band", "decimated", "line_of", "model_line", "spans_decades"]

Floats = NDArray[np.float64]

SPREAD = 100.0
"""A positive axis whose largest value is more than so many times the smallest is logarithmic."""
POINTS = 200
"""Of a curve."""
DASHES = ("solid", "dash", "dot")
"""Of the first eight conditions, the second and the third: there are eight colours."""


def spans_decades(values: Iterable[float], spread: float = SPREAD) -> bool:
    """Whether a logarithmic axis shows more: all values positive, more than two decades apart.

    >>> spans_decades([0.001, 5.0]), spans_decades([0.0, 5.0]), spans_decades([1.0, 5.0])
    (True, False, False)
    """
    known = np.array([v for v in values if np.isfinite(v)], dtype=np.float64)
    return bool(len(known) and known.min() > 0 and known.max() / spread > known.min())


def axis(title: str, values: Iterable[float]) -> dict[str, Plain]:
    """An axis that is logarithmic where that shows more, with a tick for every decade."""
    known = [v for v in values if np.isfinite(v)]
    if not spans_decades(known):
        return {"title": {"text": plot_text(title)}, "exponentformat": "power"}
    return {"title": {"text": plot_text(title)}, "type": "log", "exponentformat": "power", "dtick": 1}


def decimated(length: int, most: int = POINTS) -> NDArray[np.intp]:
    """Which points of a curve to keep: the ends and evenly spaced ones between.

    >>> decimated(3), len(decimated(100_000))
    (array([0, 1, 2]), 200)
    """
    return np.unique(np.linspace(0, length - 1, min(length, most)).round().astype(np.intp))


def line_of(condition: int, width: float) -> dict[str, Plain]:
    """How the curves of a condition are drawn.

    >>> line_of(9, 2)
    {'color': '@c9', 'width': 2, 'dash': 'dash'}
    """
    return {"color": f"@c{condition}", "width": width, "dash": DASHES[condition // 8 % len(DASHES)]}


def model_line(study: Cohorts, run: int, x: Sequence[float] | Floats, y: Sequence[float] | Floats) -> dict[str, Plain]:
    """A curve of one model in its condition's colour, which lights up with the model."""
    kept = decimated(len(x))
    name = plot_text(study.run_name(run))
    return {
        "type": "scatter",
        "mode": "lines",
        "x": rounded(np.asarray(x, dtype=np.float64)[kept]),
        "y": rounded(np.asarray(y, dtype=np.float64)[kept]),
        "line": line_of(study.condition_of[run], 1.4),
        "opacity": 0.75,
        "hoverinfo": "text+x+y",
        "text": name,
        "showlegend": False,
        "meta": {"run": run},
    }


def band(x: Floats, low: Floats, high: Floats, colour: str, name: str) -> dict[str, Plain]:
    """The area between two curves."""
    return {
        "type": "scatter",
        "mode": "lines",
        "x": [*_listed(x), *_listed(x[::-1])],
        "y": [*_listed(high), *_listed(low[::-1])],
        "fill": "toself",
        "fillcolor": colour,
        "line": {"width": 0},
        "opacity": 0.18,
        "hoverinfo": "skip",
        "showlegend": False,
        "name": plot_text(name),
    }


def _listed(values: Floats) -> list[Plain]:
    shown = rounded(values)
    assert isinstance(shown, list)
    return shown
