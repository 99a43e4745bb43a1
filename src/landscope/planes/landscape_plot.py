"""Pictures of a plane: labelled lines of equal loss over colours, or the surface; one panel for each probe, on one scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from landscope.planes.cut import Floats
from landscope.planes.scale import Scale

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure
    from mpl_toolkits.mplot3d import Axes3D  # type: ignore[import-untyped]

    from landscope.planes.landscape import Landscape

__all__ = ["plot_contours", "plot_surface"]

COLOURS = "viridis"
"""Even in lightness, and told apart by the colour-blind and in grey."""
INK, PAPER, RED = "#1a1a1a", "#ffffff", "#d1495b"
DARK = 0.45
"""Part of the colours, from the low end, on which lines are light."""


def plot_contours(found: Landscape, metric: str = "loss") -> Figure:
    """Draw lines of equal loss with their values; where the loss is not finite the plane is hatched.

    >>> import torch
    >>> from landscope.core.probe import Probe
    >>> from landscope.planes.landscape import landscape
    >>> probe = Probe(torch.nn.Linear(2, 2), (torch.randn(8, 2), torch.arange(8) % 2))
    >>> plot_contours(landscape(probe, resolution=5)).axes[0].get_xlabel()
    '1st random direction, in filter norms'
    """
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    panels, scale = _panels(found, metric)
    figure = Figure(figsize=(1.3 + 4.2 * len(panels), 4.3), layout=ConstrainedLayoutEngine(h_pad=0.08))
    grid = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    for ax, (title, values) in zip(grid, panels.items(), strict=True):
        drawn = _contour_panel(ax, found, values, scale)
        ax.set(xlabel=found.labels[0], xlim=(found.a[0], found.a[-1]), ylim=(found.b[0], found.b[-1]))
        ax.locator_params(nbins=5)
        ax.set_title(title if len(panels) > 1 else "", fontsize="medium")
    grid[0].set_ylabel(found.labels[1])
    if found.path is not None:
        grid[0].legend(loc="best", fontsize=7, framealpha=0.85, edgecolor="none")
    bar = figure.colorbar(drawn, ax=list(grid), label=_label(found, metric, scale), ticks=scale.levels, pad=0.02)
    bar.ax.set_yticklabels([scale.text(level) for level in scale.levels])
    bar.ax.minorticks_off()
    bar.outline.set_visible(False)
    return figure


def plot_surface(found: Landscape, metric: str = "loss") -> Figure:
    """Draw the surface, and its contours below it; heights are logarithmic where the range is large."""
    from matplotlib.figure import Figure

    panels, scale = _panels(found, metric)
    figure = Figure(figsize=(5.4 * len(panels), 4.8))
    figure.subplots_adjust(left=0.01, right=0.93, bottom=0.06, top=0.96, wspace=0.12)
    for index, (title, values) in enumerate(panels.items()):
        ax = figure.add_subplot(1, len(panels), index + 1, projection="3d")
        _surface_panel(ax, found, values, scale)
        ax.set_zlabel(_label(found, metric, scale), labelpad=7)
        ax.set_title(title if len(panels) > 1 else "", fontsize="medium", y=0.98)
        for axis in (ax.xaxis, ax.yaxis, ax.zaxis):
            axis.label.set_fontsize(8)
    return figure


def _panels(found: Landscape, metric: str) -> tuple[dict[str, Floats], Scale]:
    """What each panel shows, by its title, and the scale of all."""
    grids = {f"{name}, {values.samples:,} samples": values.metric(metric) for name, values in found.series().items()}
    return grids, Scale.of(list(grids.values()), linear=metric == "accuracy")


def _contour_panel(ax: Axes, found: Landscape, values: Floats, scale: Scale) -> ScalarMappable:
    inside = np.ma.clip(np.ma.masked_invalid(values), scale.low, scale.high)
    ax.patch.set(facecolor="#e6e6e6", hatch="///", edgecolor="#b0b0b0", linewidth=0)
    norm = scale.norm()
    bands = ax.contourf(found.a, found.b, inside, levels=scale.bands(), norm=norm, cmap=COLOURS)
    bands.set_edgecolor("face")  # no seams between bands in vector formats
    inks = [PAPER if norm(level) < DARK else INK for level in scale.levels]
    lines = ax.contour(found.a, found.b, inside, levels=scale.levels, colors=inks, linewidths=0.7, alpha=0.9)
    ax.clabel(lines, fmt=scale.text, fontsize=7, inline_spacing=3)
    if found.path is not None:
        ax.plot(*found.path.T, "-o", color=PAPER, ms=4.5, lw=2.4)
        ax.plot(*found.path.T, "-o", color=RED, ms=3.0, lw=1.2, label="checkpoints")
        ax.plot(*found.path[0], "s", color=RED, ms=6.5, mec=PAPER, ls="none", label="first of them")
    ax.plot(0, 0, "*", ms=11, color=PAPER, mec=INK, mew=0.8, ls="none", label="the model", zorder=5)
    if 0.4 < np.ptp(found.a) / np.ptp(found.b) < 2.5:
        ax.set_aspect("equal")
    return bands


def _surface_panel(ax: Axes3D, found: Landscape, values: Floats, scale: Scale) -> None:
    heights = scale.heights(np.where(np.isfinite(values), values, np.nan))
    floor, top = (float(h) for h in scale.heights(np.array([scale.low, scale.high])))
    base = floor - 0.45 * (top - floor)
    a, b = np.meshgrid(found.a, found.b)
    colours = {"cmap": COLOURS, "vmin": floor, "vmax": top}
    ax.plot_surface(a, b, heights, rcount=80, ccount=80, lw=0.15, edgecolor="#00000040", **colours)
    marks = scale.heights(scale.levels)
    ax.contour(a, b, heights, levels=marks, zdir="z", offset=base, linewidths=0.9, **colours)
    ax.set(xlabel=found.labels[0], ylabel=found.labels[1], zlim=(base, top))
    ax.locator_params(axis="x", nbins=5)
    ax.locator_params(axis="y", nbins=5)
    every = 1 + len(marks) // 8
    ax.set_zticks(marks[::every], [scale.text(level) for level in scale.levels[::every]])
    ax.view_init(elev=28, azim=-58)
    ax.set_box_aspect((1, 1, 0.75), zoom=0.96)
    ax.tick_params(labelsize=7, pad=1)


def _label(found: Landscape, metric: str, scale: Scale) -> str:
    name = f"loss ({found.settings.get('loss')})" if metric == "loss" else "accuracy"
    return f"{name}, drawn up to {scale.high:.3g}" if scale.clipped else name
