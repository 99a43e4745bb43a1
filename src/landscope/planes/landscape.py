"""The loss on a plane through a trained network (Goodfellow et al. 2015; Li et al. 2018).

    L(θ + a d₁ + b d₂)        on a grid of a and b

These are two directions of very many: a plane shows only what lies in it. Along a random direction of length 1 the curvature is
about tr H / P, far below the largest one, which `plane="eigenvectors"` shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from landscope.core import display
from landscope.core.errors import UnknownNameError
from landscope.planes.directions import chosen_slice
from landscope.planes.grid import Deadline, Span, axis, measure_grid
from landscope.planes.result import Floats, SliceValues
from landscope.planes.scale import Scale
from landscope.planes.slices import Direction, Slice, State
from landscope.probe.perturbed import Include
from landscope.probe.probe import Probe

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.cm import ScalarMappable
    from matplotlib.figure import Figure
    from mpl_toolkits.mplot3d import Axes3D  # type: ignore[import-untyped]


# Pictures of a plane: labelled lines of equal loss over colours, or the surface; one panel for each probe, on one scale.


COLOURS = "viridis"
"""Even in lightness; readable by the colour-blind and in grey."""
INK, PAPER, RED = "#1a1a1a", "#ffffff", "#d1495b"
DARK = 0.45
"""Part of the colours, from the low end, on which lines are light."""


def plot_contours(found: Landscape, metric: str = "loss") -> Figure:
    """Draw lines of equal loss with their values; where the loss is not finite the plane is hatched.

    >>> import torch
    >>> from landscope.probe.probe import Probe
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
        for side in (ax.xaxis, ax.yaxis, ax.zaxis):
            side.label.set_fontsize(8)
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


Plane = Literal["random", "eigenvectors", "trajectory"]
MARGIN = 0.15
"""Room around a trajectory, as a part of its extent."""


@dataclass(frozen=True, eq=False)
class Landscape(SliceValues):
    """Loss, and accuracy where it applies, on a plane: `loss[j, i]` at (a[i], b[j])."""

    @property
    def a(self) -> Floats:
        """Coordinates along the first direction (nx,)."""
        return self.axes[0]

    @property
    def b(self) -> Floats:
        """Coordinates along the second direction (ny,)."""
        return self.axes[1]

    @property
    def path(self) -> Floats | None:
        """(a, b) of every checkpoint (k, 2), where the plane is that of a trajectory."""
        found = self.directions.get("checkpoints")
        return None if found is None else np.array(found, dtype=np.float64)

    @property
    def lowest(self) -> tuple[float, float, float]:
        """(a, b, loss) of the lowest node."""
        j, i = np.unravel_index(int(self.loss.argmin()), self.loss.shape)
        return float(self.a[i]), float(self.b[j]), float(self.loss[j, i])

    def plot(self, kind: Literal["contour", "surface"] = "contour", metric: str = "loss") -> Figure:
        """A figure with one panel for each probe: lines of equal loss, or the surface."""
        kinds = {"contour": plot_contours, "surface": plot_surface}
        if kind not in kinds:
            raise UnknownNameError.among("kind of figure", str(kind), kinds)
        return kinds[kind](self, metric)

    def _repr_html_(self) -> str:
        return display.picture(self.plot(), repr(self))

    def __repr__(self) -> str:
        low, size = self.lowest, f"{len(self.a)} × {len(self.b)}"
        return (
            f"Landscape({self.directions['kind']}, {size} points, lowest {low[2]:.4g} at ({low[0]:.3g}, {low[1]:.3g}))"
        )


def landscape(  # noqa: PLR0913 (options of a public function, by keyword)
    probe: Probe,
    *,
    plane: Plane | Slice | Sequence[Direction] = "random",
    normalisation: Literal["filter", "layer", "none"] | None = None,
    include: Include | None = None,
    resolution: int | tuple[int, int] = 51,
    span: Span | tuple[Span, Span] | None = None,
    seed: int = 0,
    metrics: Sequence[str] | None = None,
    others: Mapping[str, Probe] | None = None,
    checkpoints: Sequence[State] | None = None,
    progress: bool | None = False,
    seconds: float | None = None,
) -> Landscape:
    """Evaluate the loss on a plane through the probe's point. resolution² forward passes.

    Args:
        probe: the point, with its data.
        plane: `"random"` directions; the top two `"eigenvectors"` of the Hessian; the principal directions of the
            `"trajectory"` that `checkpoints` are of; two directions of your own; or a `Slice` made before.
        normalisation: `"filter"` (default for random directions), `"layer"`, or `"none"` (default for all others).
        include: what moves: `"weights"` (default for random directions: no biases, no parameters of normalisation
            layers), `"all"` (default for all others), or names, layers and patterns.
        resolution: points along each axis, or (along a, along b).
        span: a and b run over ±span, over a pair (from, to), or over a pair of such pairs. Default ±1; for a trajectory
            what shows all of it. A step of 1 is as long as each filter or layer itself with those normalisations,
            else as the direction: a Euclidean distance of 1 for eigenvectors and trajectories.
        seed: for random directions and the search for eigenvectors.
        metrics: `("loss",)`, `("loss", "accuracy")`; default: accuracy too where it applies.
        others: further probes at the same model, evaluated at the same points: `{"test": test_probe}`.
        checkpoints: state dicts or models.
        progress: show it (`None`: on a terminal only).
        seconds: time allowed; if it is not enough, a coarser grid comes back, with the status `budget spent`.

    >>> import torch
    >>> net = torch.nn.Sequential(torch.nn.Linear(2, 4), torch.nn.ReLU(), torch.nn.Linear(4, 2))
    >>> probe = Probe(net, (torch.randn(20, 2), torch.arange(20) % 2))
    >>> found = landscape(probe, resolution=5)
    >>> found.loss.shape, abs(found.centre_loss - probe.value()) < 1e-6
    ((5, 5), True)
    """
    deadline = Deadline(seconds, probe.device)
    nx, ny = (resolution, resolution) if isinstance(resolution, int) else resolution
    with probe.ledger.metered() as meter, probe.ledger.limited(deadline.seconds):
        cut = chosen_slice(probe, plane, 2, normalisation, include, seed, checkpoints)
    spans = _around(cut) if span is None else _for_both(span)
    axes = [axis(extent, count) for extent, count in zip(spans, (nx, ny), strict=True)]
    if span is None:
        axes = [values - values[np.abs(values).argmin()] for values in axes]  # the origin is a node
    return measure_grid(
        Landscape,
        probe,
        cut,
        axes,
        metrics=metrics,
        others=others,
        deadline=deadline,
        progress=progress,
        settings={"resolution": [nx, ny]},
        spent=meter.cost.passes,
    )


def _for_both(span: Span | tuple[Span, Span]) -> tuple[Span, Span]:
    """One span for each axis; two numbers are one span, from … to."""
    if isinstance(span, (int, float)):
        return span, span
    first, second = span
    if isinstance(first, (int, float)) and isinstance(second, (int, float)):
        return (first, second), (first, second)
    return first, second


def _around(cut: Slice) -> tuple[Span, Span]:
    """±1, or what shows the whole of a trajectory and the origin."""
    path = cut.details.get("checkpoints")
    if path is None:
        return 1.0, 1.0
    points = np.vstack([np.array(path, dtype=np.float64), np.zeros(2)])
    low, high = points.min(0), points.max(0)
    room = MARGIN * np.maximum(high - low, 0.25 * (high - low).max())
    spans = [(float(a), float(b)) for a, b in zip(low - room, high + room, strict=True)]
    return spans[0], spans[1]
