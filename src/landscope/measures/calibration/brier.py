"""The Brier score of class probabilities, and the parts that it consists of.

    BS = mean_i Σ_c (p_ic − 1[y_i = c])²                                        Brier 1950; between 0 and 2

Per class, and with the probability of the class sorted into bins b of equal width (Murphy 1973; Stephenson et al. 2008
for the spread inside a bin, which Murphy's forecasts of a few fixed values do not have):

    BS = reliability − resolution + uncertainty + within_bins
    reliability  Σ_c Σ_b n_cb/n (p̄_cb − ō_cb)²      how far stated probabilities are from frequencies: 0 is calibrated
    resolution   Σ_c Σ_b n_cb/n (ō_cb − ō_c)²        how far the frequencies of the bins are from the base rate: more is better
    uncertainty  Σ_c ō_c (1 − ō_c)                    the data's own, whatever the model
    within_bins  mean over samples of (p − p̄)² − 2 (p − p̄)(o − ō), which goes to 0 as bins narrow

with p̄, ō the mean probability and the frequency of the class in the bin, ō_c in all samples. The identity is exact.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

import torch

from landscope.core.estimate import Estimate
from landscope.measures.calibration.bins import equal_width_edges, find_bins
from landscope.measures.calibration.resampling import mean_estimate
from landscope.measures.calibration.scores import Array, Logits, Scores

__all__ = ["BrierParts", "brier", "brier_parts", "brier_value"]


@dataclass(frozen=True)
class BrierParts:
    """What a Brier score consists of: score = reliability − resolution + uncertainty + within_bins."""

    score: float
    reliability: float
    resolution: float
    uncertainty: float
    within_bins: float


def brier_value(logits: Logits, labels: Array) -> float:
    """mean_i Σ_c (p_ic − 1[y_i = c])²."""
    return _score(Scores.of(logits, labels)).value


def brier_parts(logits: Logits, labels: Array, n_bins: int = 15) -> BrierParts:
    """The score and its parts over `n_bins` bins of equal width for each class. O(n·C).

    >>> brier_parts(torch.zeros(4, 2), torch.tensor([0, 1, 1, 1]))
    BrierParts(score=0.5, reliability=0.125, resolution=0.0, uncertainty=0.375, within_bins=0.0)
    """
    return _parts(Scores.of(logits, labels), n_bins)


def brier(logits: Logits, labels: Array, n_bins: int = 15) -> Estimate:
    """The Brier score with its standard error; its parts are in `details`. O(n·C).

    >>> brier(torch.zeros(4, 2), torch.tensor([0, 1, 1, 1])).value
    0.5
    """
    scores = Scores.of(logits, labels)
    return _score(scores, asdict(_parts(scores, n_bins)))


def _score(scores: Scores, parts: dict[str, float] | None = None) -> Estimate:
    inside = {key: value for key, value in (parts or {}).items() if key != "score"}
    return mean_estimate((scores.p - scores.one_hot).square().sum(1), dict(inside))


def _parts(scores: Scores, n_bins: int) -> BrierParts:
    p, o = scores.p, scores.one_hot
    n, classes = p.shape
    place = (find_bins(p, equal_width_edges(n_bins)) + n_bins * torch.arange(classes)).flatten()
    sums = torch.zeros(classes * n_bins, 3, dtype=torch.float64)
    sums.index_add_(0, place, torch.stack([torch.ones_like(p), p, o], -1).view(-1, 3))
    count = sums[:, 0]
    mean_p, mean_o = (sums[:, k] / count.clamp(min=1) for k in (1, 2))
    base = o.mean(0)
    off_p, off_o = p - mean_p[place].view_as(p), o - mean_o[place].view_as(o)
    return BrierParts(
        score=float((p - o).square().sum() / n),
        reliability=float((count * (mean_p - mean_o).square()).sum() / n),
        resolution=float((count * (mean_o - base.repeat_interleave(n_bins)).square()).sum() / n),
        uncertainty=float((base * (1 - base)).sum()),
        within_bins=float((off_p * (off_p - 2 * off_o)).sum() / n),
    )
