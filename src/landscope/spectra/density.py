"""A smooth density from quadrature nodes and weights, with its standard error."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import stdtrit

from landscope.spectra.probes import TWO_SIGMA

__all__ = ["smoothed"]

Array = NDArray[np.float64]


def smoothed(
    nodes: Array, weights: Array, size: int, grid: Array | None = None, sigma: float | None = None
) -> tuple[Array, Array, Array]:
    """Grid, mean over probes of Σⱼ wⱼ N(grid; θⱼ, σ²), and its standard error at each point.

    The bar is the larger of two: the law of sphere probes, 2/P · E Var_v(kernel) per probe, which holds for one probe
    too; and the scatter between probes, which also sees what too few steps for this σ do to the nodes.

    >>> grid, density, band = smoothed(np.array([[0.0]]), np.array([[1.0]]), 10, np.array([0.0]), sigma=1.0)
    >>> density.round(4), band
    (array([0.3989]), array([0.]))
    """
    low, high = float(nodes.min()), float(nodes.max())
    if sigma is None:
        sigma = 0.01 * (high - low) or 0.01 * max(abs(high), 1.0)
    if not sigma > 0:
        raise ValueError(f"sigma must be positive, got {sigma}")
    if grid is None:
        grid = np.linspace(low - 5 * sigma, high + 5 * sigma, 1001)
    probes = len(nodes)
    means, spreads, fourths = (np.empty((probes, len(grid))) for _ in range(3))
    for i in range(probes):
        kernel = np.exp(-0.5 * ((grid[:, None] - nodes[i]) / sigma) ** 2) / (sigma * np.sqrt(2 * np.pi))
        means[i] = kernel @ weights[i]
        centred = kernel - means[i][:, None]
        spreads[i], fourths[i] = centred**2 @ weights[i], centred**4 @ weights[i]
    spread, fourth = spreads.mean(0), fourths.mean(0)
    dimension = np.divide(size * spread**2, fourth, out=np.ones_like(spread), where=fourth > 0)
    widened = stdtrit(probes * np.maximum(1.0, dimension), TWO_SIGMA) / 2
    band = widened * np.sqrt(2 * spread / (size * probes))
    if probes > 1:
        band = np.maximum(band, means.std(0, ddof=1) / np.sqrt(probes))
    return grid, means.mean(0), band
