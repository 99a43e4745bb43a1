"""The loss on a plane through a trained network (Goodfellow et al. 2015; Li et al. 2018).

    L(θ + a d₁ + b d₂)        on a grid of a and b

Two directions of very many: a plane shows what is in it. Along a random direction of length 1 the curvature is about
tr H / P, far below the largest one, which `plane="eigenvectors"` shows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from landscope.core.errors import UnknownNameError
from landscope.core.probe import Probe
from landscope.measures.sharpness.perturbation import Include
from landscope.planes.choosing import chosen_slice
from landscope.planes.cut import Cut, Floats
from landscope.planes.measuring import Span, axis, measure_grid
from landscope.planes.slices import Direction, Slice
from landscope.planes.states import State
from landscope.planes.sweep import Deadline

if TYPE_CHECKING:
    from matplotlib.figure import Figure

__all__ = ["Landscape", "landscape"]

Plane = Literal["random", "eigenvectors", "trajectory"]
MARGIN = 0.15
"""Room around a trajectory, as a part of its extent."""


@dataclass(frozen=True, eq=False)
class Landscape(Cut):
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
        from landscope.planes.landscape_plot import plot_contours, plot_surface

        kinds = {"contour": plot_contours, "surface": plot_surface}
        if kind not in kinds:
            raise UnknownNameError.among("kind of figure", str(kind), kinds)
        return kinds[kind](self, metric)

    def __repr__(self) -> str:
        low, size = self.lowest, f"{len(self.a)} × {len(self.b)}"
        return (
            f"Landscape({self.directions['kind']}, {size} points, lowest {low[2]:.4g} at ({low[0]:.3g}, {low[1]:.3g}))"
        )


def landscape(
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
