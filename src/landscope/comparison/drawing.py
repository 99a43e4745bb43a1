"""The figure of a comparison: relative changes with their intervals, and the loss on the lines from the first model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from landscope.comparison.agreement import Agreement
from landscope.comparison.differences import Difference, Verdict
from landscope.measures.base import MEASURES

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, MUTED = "#1d2126", "#646c76"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#c2589b", "#d99000", "#46a5dc", "#6f4e9c", "#6d7278")
ROW = 0.24
LEAST, ROOM = 1.0, 1.25
"""The axis reaches at least this far in relative changes, and this many times the largest; longer intervals are cut there."""


def plot_comparison(
    shown: Mapping[str, Sequence[Difference]], agreements: Mapping[str, Agreement], first: str
) -> Figure:
    """Changes on the left, the line on the right where there is one."""
    from matplotlib.figure import Figure

    drawn = [d for held in shown.values() for d in held if d.relative is not None and not d.first.status.is_bound]
    lines = {model: alike.line for model, alike in agreements.items() if alike.line is not None}
    models = list(agreements)
    names = list(dict.fromkeys(d.measure for d in drawn))
    height = max(2.6, 0.9 + ROW * max(len(names), 1) * max(1.0, 0.6 * len(models)))
    figure = Figure(figsize=(9.6 if lines else 6.2, height), layout="constrained")
    axes = figure.subplots(1, 1 + bool(lines), squeeze=False, width_ratios=(1.3, 1)[: 1 + bool(lines)])[0]
    _changes(axes[0], drawn, names, models, first)
    if lines:
        for number, (model, line) in enumerate(lines.items()):
            assert line is not None
            colour = COLOURS[models.index(model) % len(COLOURS)]
            axes[1].plot(line.t, line.loss, color=colour, lw=1.6, label=model)
            ends = line.loss[0] + line.t * (line.loss[-1] - line.loss[0])
            axes[1].plot(line.t, ends, color=colour, lw=0.8, ls=":", label="between the ends" if number == 0 else None)
        axes[1].set_xlabel(f"from {first} (0) to the other (1)", fontsize=8, color=MUTED)
        axes[1].set_ylabel("loss", fontsize=8, color=MUTED)
        axes[1].set_title("on the straight line between the weights", loc="left", fontsize=9, color=INK)
        axes[1].legend(frameon=False, fontsize=7)
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
        ax.tick_params(colors=INK, labelsize=8)
        ax.grid(True, axis="x", color="#e9eae5", lw=0.7)
        ax.set_axisbelow(True)
    return figure


def _changes(axes: Axes, drawn: Sequence[Difference], names: Sequence[str], models: Sequence[str], first: str) -> None:
    """A point with its interval for every measure whose sign is the same at both models; filled where the change is real."""
    step = 0.7 / len(models)
    reach = 100 * max(LEAST, ROOM * max((abs(d.relative or 0.0) for d in drawn), default=0.0))
    for d in drawn:
        number = models.index(d.model)
        colour = COLOURS[number % len(COLOURS)]
        row = names.index(d.measure) + step * (number - (len(models) - 1) / 2)
        ends = np.clip(100 * np.array(d.interval) / abs(d.first.value), -reach, reach)
        axes.plot(ends, [row, row], color=colour, lw=1.4, solid_capstyle="butt")
        filled = colour if d.verdict is Verdict.REAL else "white"
        axes.plot(100 * (d.relative or 0.0), row, "o", ms=4.5, color=colour, mfc=filled)
    axes.axvline(0, color=MUTED, lw=0.8)
    titles = [MEASURES[name].title if name in MEASURES else name for name in names]
    axes.set_yticks(range(len(names)), titles)
    axes.set_ylim(len(names) - 0.4, -0.6)
    axes.set_xlim(-reach, reach)
    for number, model in enumerate(models if len(models) > 1 else ()):
        axes.plot([], [], "o", ms=4.5, color=COLOURS[number % len(COLOURS)], label=model)
    if len(models) > 1:
        axes.legend(frameon=False, fontsize=7)
    other = models[0] if len(models) == 1 else "the others"
    axes.set_xlabel(
        f"change from {first} to {other} in %, with its adjusted 95 % interval; filled: real", fontsize=8, color=MUTED
    )
    axes.set_title("relative change", loc="left", fontsize=9, color=INK)
