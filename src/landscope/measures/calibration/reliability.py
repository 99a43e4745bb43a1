"""The reliability table: confidence against accuracy in bins of confidence (Murphy and Winkler 1977; Guo et al. 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from landscope.measures.calibration.bins import equal_mass_edges, equal_width_edges, find_bins
from landscope.measures.calibration.scores import Array, Logits, Scores

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["Reliability", "reliability"]

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
        from landscope.measures.calibration.reliability_plot import plot_reliability

        return plot_reliability(self, ax)


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
    scores = Scores.of(logits, labels)
    confidence = scores.confidence
    edges = equal_width_edges(n_bins) if bins == "equal_width" else equal_mass_edges(confidence, n_bins)
    place = find_bins(confidence, edges)
    rows = torch.stack([torch.ones_like(confidence), confidence, scores.correct], 1)
    count, stated, right = torch.zeros(n_bins, 3, dtype=torch.float64).index_add_(0, place, rows).T.numpy()
    held = np.where(count > 0, count, np.nan)
    return Reliability(edges.numpy(), count.astype(np.int64), stated / held, right / held)
