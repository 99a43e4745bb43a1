"""A picture of a line: the loss of every probe along it, and the accuracy below."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from landscope.planes.scale import Scale

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from landscope.planes.line import Line

__all__ = ["plot_line"]

SERIES = ("#0b5394", "#d1495b", "#2c8a57", "#8a5a00", "#6a4c93")
"""Told apart by the colour-blind together with the line styles."""
STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))


def plot_line(found: Line) -> Figure:
    """Draw loss, and accuracy where there is one, over t; vertical lines mark the models.

    >>> import torch
    >>> from landscope.core.probe import Probe
    >>> from landscope.planes.line import line
    >>> figure = plot_line(line(Probe(torch.nn.Linear(2, 2), (torch.randn(8, 2), torch.arange(8) % 2)), resolution=5))
    >>> [axes.get_ylabel() for axes in figure.axes]
    ['loss (cross_entropy)', 'accuracy']
    """
    from matplotlib.figure import Figure

    series = found.series()
    right = {name: values.accuracy for name, values in series.items() if values.accuracy is not None}
    figure = Figure(figsize=(5.6, 4.6 if right else 3.4), layout="constrained")
    rows = figure.subplots(1 + bool(right), 1, sharex=True, squeeze=False, height_ratios=(2, 1)[: 1 + bool(right)])[
        :, 0
    ]
    scale = Scale.of([values.loss for values in series.values()])
    looks = {name: {"color": SERIES[i % 5], "ls": STYLES[i % 5]} for i, name in enumerate(series)}
    for name, values in series.items():
        loss = np.where(np.isfinite(values.loss), values.loss, np.nan)
        rows[0].plot(found.t, scale.clip(loss), lw=1.6, label=f"{name}, {values.samples:,} samples", **looks[name])
        for t in found.t[~np.isfinite(values.loss)]:
            rows[0].axvspan(*_cell(found.t, float(t)), color="#e6e6e6", lw=0, zorder=0)
    label = f"loss ({found.settings.get('loss')})" + (f", up to {scale.high:.3g}" if scale.clipped else "")
    rows[0].set(ylabel=label, yscale="log" if scale.logarithmic else "linear")
    for name, accuracy in right.items():
        rows[1].plot(found.t, accuracy, lw=1.6, **looks[name])
        rows[1].set(ylabel="accuracy", ylim=(-0.02, 1.02))
    for ax in rows:
        for end in found.ends or (0.0,):
            ax.axvline(end, color="#1a1a1a", lw=0.8, ls=":")
        ax.spines[["top", "right"]].set_visible(False)
        ax.grid(True, alpha=0.2, lw=0.6)
    if len(series) > 1:
        rows[0].legend(frameon=False, fontsize="small")
    rows[-1].set(xlabel=found.labels[0], xlim=(found.t[0], found.t[-1]))
    return figure


def _cell(t: np.ndarray, at: float) -> tuple[float, float]:
    """The interval around a point, half-way to its neighbours."""
    edges = np.concatenate([t[:1], (t[1:] + t[:-1]) / 2, t[-1:]])
    i = int(np.searchsorted(t, at))
    return float(edges[i]), float(edges[i + 1])
