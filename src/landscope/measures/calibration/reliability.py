"""The reliability table: confidence against accuracy in bins of confidence (Murphy and Winkler 1977; Guo et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, cast

import numpy as np
import torch
from numpy.typing import NDArray

from landscope.core import display
from landscope.measures.calibration.scores import Array, Logits, equal_mass_edges, equal_width_edges, find_bins, scored

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# The picture of a reliability table: accuracy and its gap to confidence in every bin, and how many samples lie there.


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


Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Reliability:
    """One entry per bin (edges[k], edges[k + 1]]; an empty bin has NaN for its confidence and its accuracy."""

    edges: Floats
    counts: NDArray[np.int64]
    confidence: Floats
    accuracy: Floats

    @property
    def ece(self) -> float:
        """Σ_b n_b/n |acc(b) − conf(b)|: the expected (or, with bins of equal mass, adaptive) calibration error."""
        gaps = np.nan_to_num(np.abs(self.accuracy - self.confidence))
        return float((self.counts * gaps).sum() / self.counts.sum())

    @property
    def mce(self) -> float:
        """The largest |acc(b) − conf(b)|."""
        return float(np.nanmax(np.abs(self.accuracy - self.confidence)))

    def accuracy_interval(self, deviations: float = 1.96) -> tuple[Floats, Floats]:
        """Wilson's score interval of each bin's accuracy, which stays sensible at 0, at 1 and for few samples."""
        n, a, z2 = np.maximum(self.counts, 1), self.accuracy, deviations**2
        centre = (a + z2 / (2 * n)) / (1 + z2 / n)
        half = deviations / (1 + z2 / n) * np.sqrt(a * (1 - a) / n + z2 / (4 * n**2))
        low, high = (np.clip(end, 0.0, 1.0) for end in (centre - half, centre + half))  # rounding leaves −5e-17 at 0
        return low, high

    def to_frame(self) -> pd.DataFrame:
        """One row per bin."""
        import pandas as pd

        low, high = self.accuracy_interval()
        return pd.DataFrame(
            {
                "lower": self.edges[:-1],
                "upper": self.edges[1:],
                "count": self.counts,
                "confidence": self.confidence,
                "accuracy": self.accuracy,
                "accuracy_low": low,
                "accuracy_high": high,
            }
        ).rename_axis("bin")

    def plot(self, ax: Axes | None = None) -> Figure:
        """The reliability diagram, with the distribution of confidence below it in a figure of its own."""
        return plot_reliability(self, ax)

    def _repr_html_(self) -> str:
        return display.picture(self.plot(), f"ECE {self.ece:.3g}")


def reliability(
    logits: Logits, labels: Array, n_bins: int = 15, *, bins: Literal["equal_width", "equal_mass"] = "equal_width"
) -> Reliability:
    """The reliability table of the largest probability. O(n·C).

    >>> table = reliability(torch.zeros(4, 2), torch.tensor([0, 1, 1, 1]), n_bins=2)
    >>> table.counts, table.accuracy, table.ece
    (array([4, 0]), array([0.25,  nan]), 0.25)
    """
    if bins not in ("equal_width", "equal_mass"):
        raise ValueError(f"bins must be 'equal_width' or 'equal_mass', got {bins!r}")
    scores = scored(logits, labels)
    confidence = scores.confidence
    edges = equal_width_edges(n_bins) if bins == "equal_width" else equal_mass_edges(confidence, n_bins)
    place = find_bins(confidence, edges)
    rows = torch.stack([torch.ones_like(confidence), confidence, scores.correct], 1)
    count, stated, right = torch.zeros(n_bins, 3, dtype=torch.float64).index_add_(0, place, rows).T.numpy()
    held = np.where(count > 0, count, np.nan)
    return Reliability(edges.numpy(), count.astype(np.int64), stated / held, right / held)
