"""A picture of a spectrum: density with its band, Ritz values with their weights."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["plot_spectrum"]

Array = NDArray[np.float64]

BLUE, GREY = "#1f5fa8", "#4d4d4d"
DECADES = 7
"""How far below its maximum the density is shown."""


def plot_spectrum(density: tuple[Array, Array, Array], ritz: tuple[Array, Array], ax: Axes | None = None) -> Figure:
    """Draw `(grid, density, band)` on a logarithmic axis, and in a figure of its own `(nodes, weights)` below.

    >>> grid = np.linspace(-3, 3, 50)
    >>> figure = plot_spectrum((grid, np.exp(-grid**2), 0.1 * np.exp(-grid**2)), (np.zeros(1), np.ones(1)))
    >>> [axes.get_ylabel() for axes in figure.axes]
    ['density', 'weight']
    """
    lower: Axes | None = None
    if ax is None:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.4, 5.0), layout="constrained")
        ax, lower = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    assert ax is not None
    grid, values, band = density
    floor = float(values.max()) * 10.0**-DECADES
    ax.fill_between(
        grid,
        np.maximum(values - 2 * band, floor),
        np.maximum(values + 2 * band, floor),
        color=BLUE,
        alpha=0.25,
        lw=0,
        label="± 2 standard errors",
    )
    ax.plot(grid, np.maximum(values, floor), color=BLUE, lw=1.4, label="smoothed density")
    ax.set(yscale="log", ylabel="density", ylim=(floor, 3 * float((values + 2 * band).max())))
    ax.legend(frameon=False, loc="upper right", fontsize="small")
    bottom = ax
    if lower is not None:
        nodes, weights = ritz
        shown = weights > 0
        smallest = float(weights[shown].min())
        base = max(smallest, float(weights.max()) * 1e-12) / 2
        lower.vlines(nodes[shown], base, np.maximum(weights[shown], base), color=GREY, lw=0.8)
        lower.plot(nodes[shown], np.maximum(weights[shown], base), "o", color=BLUE, ms=2.5)
        lower.set(yscale="log", ylabel="weight")
        bottom = lower
    bottom.set_xlabel("eigenvalue")
    for axes in {ax, bottom}:
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(True, which="major", alpha=0.2, lw=0.6)
    return cast("Figure", ax.get_figure(root=True))
