"""The loss along a line: from a point along a direction, or between two models.

    L(θ + t d)        and        L((1 − t) θ_a + t θ_b)

Between models (Goodfellow et al. 2015) all parameters move, measured or not, and in `eval` mode the running statistics
of BatchNorm with them: right at the ends, too hard a test in the middle (Jordan et al. 2023), and undefined beyond the
ends where a variance turns negative. `mode="batch_statistics"` has them estimated afresh at every point.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from landscope.core import display
from landscope.core.errors import NotApplicableError, OperandError
from landscope.measures.consistency.barrier import Barrier
from landscope.planes.directions import chosen_slice
from landscope.planes.grid import Deadline, Span, axis, measure_grid
from landscope.planes.result import Floats, SliceValues
from landscope.planes.scale import Scale
from landscope.planes.slices import Direction, Slice, State, moving, read_state
from landscope.probe.perturbed import Include
from landscope.probe.probe import Probe

if TYPE_CHECKING:
    from matplotlib.figure import Figure


# A picture of a line: the loss of every probe along it, and the accuracy below.


SERIES = ("#0b5394", "#d1495b", "#2c8a57", "#8a5a00", "#6a4c93")
"""With the line styles, distinguishable by the colour-blind."""
STYLES = ("-", "--", "-.", ":", (0, (5, 1, 1, 1, 1, 1)))


def plot_line(found: Line) -> Figure:
    """Draw loss, and accuracy where there is one, over t; vertical lines mark the models.

    >>> import torch
    >>> from landscope.probe.probe import Probe
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


@dataclass(frozen=True, eq=False)
class Line(SliceValues):
    """Loss, and accuracy where it applies, along a line: `loss[i]` at t[i]."""

    @property
    def t(self) -> Floats:
        """Coordinates along the direction; between models 0 is the first and 1 the second."""
        return self.axes[0]

    @property
    def ends(self) -> tuple[float, float] | None:
        """Where the two models lie, if the line is one between models."""
        return (0.0, 1.0) if self.directions["kind"] == "between" else None

    @property
    def barrier(self) -> Barrier:
        """The barrier between the two models: how far the loss rises above the straight line between theirs."""
        if self.ends is None:
            raise NotApplicableError("a barrier is between two models: see between(probe, other)")
        inside = (self.t >= 0) & (self.t <= 1)
        return Barrier(self.t[inside], self.loss[inside], None, self.values.samples)

    def plot(self) -> Figure:
        """A figure: loss over t for every probe, and accuracy on an axis of its own."""
        return plot_line(self)

    def _repr_html_(self) -> str:
        return display.picture(self.plot(), repr(self))

    def __repr__(self) -> str:
        low = int(self.loss.argmin())
        kind = self.directions["kind"]
        return f"Line({kind}, {len(self.t)} points, lowest {self.loss[low]:.4g} at {self.t[low]:.3g})"


def line(  # noqa: PLR0913 (options of a public function, by keyword)
    probe: Probe,
    *,
    direction: Literal["random", "eigenvector"] | Slice | Direction = "random",
    normalisation: Literal["filter", "layer", "none"] | None = None,
    include: Include | None = None,
    resolution: int = 101,
    span: Span = 1.0,
    seed: int = 0,
    metrics: Sequence[str] | None = None,
    others: Mapping[str, Probe] | None = None,
    progress: bool | None = False,
    seconds: float | None = None,
) -> Line:
    """Evaluate the loss along one direction from the probe's point; arguments as for `landscape`. One forward pass per point.

    >>> import torch
    >>> probe = Probe(torch.nn.Linear(1, 1, bias=False), (torch.ones(4, 1), torch.zeros(4, 1)), "mse")   # L = w²
    >>> found = line(probe, direction=torch.ones(1), resolution=3)
    >>> bool(np.allclose(found.loss, (probe.vector().item() + found.t) ** 2))
    True
    """
    wish: str | Slice | Sequence[Direction]
    if isinstance(direction, str):
        wish = {"eigenvector": "eigenvectors"}.get(direction, direction)
    else:
        wish = direction if isinstance(direction, Slice) else [direction]
    deadline = Deadline(seconds, probe.device)
    with probe.ledger.metered() as meter, probe.ledger.limited(deadline.seconds):
        cut = chosen_slice(probe, wish, 1, normalisation, include, seed)
    return measure_grid(
        Line,
        probe,
        cut,
        [axis(span, resolution)],
        metrics=metrics,
        others=others,
        deadline=deadline,
        progress=progress,
        settings={"resolution": resolution},
        spent=meter.cost.passes,
    )


def between(
    probe: Probe,
    other: State,
    *,
    resolution: int = 61,
    span: tuple[float, float] = (-0.5, 1.5),
    metrics: Sequence[str] | None = None,
    others: Mapping[str, Probe] | None = None,
    progress: bool | None = False,
) -> Line:
    """Evaluate the loss on the line from the probe's model (t = 0) to another model or state dict (t = 1), and beyond.

    Both ends are among the points, whatever the resolution.

    >>> import torch
    >>> a, b = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    >>> found = between(Probe(a, (torch.randn(9, 2), torch.arange(9) % 2)), b)
    >>> found.ends, round(found.barrier.height, 6)        # cross-entropy is convex in a linear layer
    ((0.0, 1.0), 0.0)
    """
    origin, target = moving(probe), read_state(probe, other, "the other model")
    cut = Slice(
        kind="between",
        origin={name: origin[name] for name in target},
        directions=({name: value.to(origin[name]) - origin[name] for name, value in target.items()},),
        labels=("position between the models (0: first, 1: second)",),
    )
    t = axis(span, resolution)
    if not t[0] <= 0 < 1 <= t[-1]:
        raise OperandError(f"span must hold both models, at 0 and 1; got {span}")
    close = np.abs(t - np.round(t)) < 1e-9
    t = np.union1d(np.where(close, np.round(t), t), [0.0, 1.0])
    return measure_grid(
        Line,
        probe,
        cut,
        [t],
        metrics=metrics,
        others=others,
        deadline=Deadline(None, probe.device),
        progress=progress,
        settings={"resolution": resolution},
    )
