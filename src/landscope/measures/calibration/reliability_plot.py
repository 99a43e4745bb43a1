"""The picture of a reliability table: accuracy and its gap to confidence in every bin, and how many samples lie there."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from landscope.measures.calibration.reliability import Reliability

__all__ = ["plot_reliability"]

BLUE, RED, GREEN, INK = "#1f5fa8", "#b5442e", "#2c8a57", "#222222"


def plot_reliability(table: Reliability, ax: Axes | None = None) -> Figure:
    """Draw each bin's accuracy with its 95 % interval at its mean confidence, and the gap between the two.

    >>> import torch
    >>> from landscope.measures.calibration.reliability import reliability
    >>> figure = plot_reliability(reliability(torch.randn(50, 3), torch.arange(50) % 3))
    >>> [axes.get_ylabel() for axes in figure.axes]
    ['accuracy', 'share of samples']
    """
    lower: Axes | None = None
    if ax is None:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(5.2, 6.6), layout="constrained")
        ax, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 1))
    assert ax is not None
    shown = table.counts > 0
    middle, width = (table.edges[:-1] + np.diff(table.edges) / 2)[shown], np.diff(table.edges)[shown]
    stated, right, count = table.confidence[shown], table.accuracy[shown], table.counts[shown]
    low, high = (bound[shown] for bound in table.accuracy_interval())
    base = np.minimum(stated, right)
    ax.bar(middle, base, width, color=BLUE, alpha=0.75, edgecolor="white")
    for over, colour, name in (
        (stated >= right, RED, "too confident"),
        (stated < right, GREEN, "not confident enough"),
    ):
        gap = np.where(over, np.abs(stated - right), 0.0)
        ax.bar(middle, gap, width, base, color=colour, alpha=0.4, edgecolor="white", label=name)
    ax.vlines(stated, low, high, color=INK, lw=1.2)
    ax.plot(stated, right, "o", ms=3.5, color=INK, label="accuracy, 95 % interval")
    ax.plot([0, 1], [0, 1], "--", color=INK, lw=1.0, label="calibrated")
    ax.set(xlim=(0, 1), ylim=(0, 1), ylabel="accuracy")
    ax.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2, fontsize="small", borderaxespad=0.2)
    bottom = ax
    if lower is not None:
        total = float(count.sum())
        lower.bar(middle, count / total, width, color=INK, alpha=0.5, edgecolor="white")
        overall = (("accuracy", BLUE, right), ("mean confidence", RED, stated))
        for name, colour, values in overall:
            mean = float((count * values).sum()) / total
            lower.axvline(mean, color=colour, lw=1.6, label=f"{name} {mean:.3f}")
        lower.set(ylabel="share of samples")
        lower.set_title(f"{int(total):,} samples, calibration error {table.ece:.3f}", loc="left", fontsize=9)
        lower.legend(frameon=True, framealpha=0.8, edgecolor="none", loc="upper left", fontsize="small")
        bottom = lower
    bottom.set_xlabel("confidence")
    for axes in {ax, bottom}:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(True, alpha=0.2, lw=0.6)
        axes.set_axisbelow(True)
    return cast("Figure", ax.get_figure(root=True))
