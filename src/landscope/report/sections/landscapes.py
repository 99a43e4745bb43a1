"""The loss on a plane through each model, as lines of equal loss and as a surface, for every split it was measured on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from landscope.core.json import Plain
from landscope.core.text import counted
from landscope.planes import Landscape
from landscope.report.data.cohorts import Cohorts
from landscope.report.data.extras import Landscapes, gather, read_landscape, spread_over_conditions
from landscope.report.page.blocks import Block, Plot, Section
from landscope.report.page.embedding import rounded
from landscope.report.page.plotly import decimated, spans_decades

__all__ = ["LossScale", "landscape_section", "loss_scale"]

MODELS = 16
POINTS = 61
"""Along each axis."""


@dataclass(frozen=True)
class LossScale:
    """The colours of all planes of a figure: from the lowest loss of any to the highest, so that models can be compared."""

    low: float
    high: float
    logarithmic: bool

    @property
    def title(self) -> str:
        """Of the colour bar, which tells the kind of scale."""
        return "loss, logarithmic scale" if self.logarithmic else "loss"


def loss_scale(shown: Iterable[Landscapes]) -> LossScale:
    """One scale for several models and all splits of each."""
    losses = np.concatenate([plane.loss.ravel() for landscapes in shown for plane in landscapes.values()])
    known = losses[np.isfinite(losses)]
    low = float(known.min())
    return LossScale(low, max(float(known.max()), low * (1 + 1e-9) + 1e-12), spans_decades(known))


def landscape_section(study: Cohorts) -> Section:
    """One figure, in which a model is chosen from a list or by a click in any other figure."""
    found, gathered = gather(study, "landscape", read_landscape)
    shown = spread_over_conditions(study, found, MODELS)
    blocks: list[Block] = []
    if shown:
        scale = loss_scale(shown.values())
        models: list[Plain] = [
            {"run": run, "splits": [_surface(split, landscape) for split, landscape in landscapes.items()]}
            for run, landscapes in shown.items()
        ]
        spec: dict[str, Plain] = {
            "models": models,
            "log": scale.logarithmic,
            "ends": rounded([scale.low, scale.high], 4),
            "title": scale.title,
        }
        blocks.append(Plot("landscape", spec, _caption(shown, len(found)), kind="landscape", height=380))
    return Section("landscapes", "Loss landscapes", [*blocks, *gathered.notes])


def _surface(split: str, landscape: Landscape) -> dict[str, Plain]:
    across, along = decimated(len(landscape.a), POINTS), decimated(len(landscape.b), POINTS)
    path = landscape.path
    return {
        "name": split,
        "x": rounded(landscape.a[across], 4),
        "y": rounded(landscape.b[along], 4),
        "z": rounded(landscape.loss[np.ix_(along, across)], 4),
        "path": None if path is None else rounded(path, 4),
    }


def _caption(shown: dict[int, Landscapes], count: int) -> str:
    first = next(iter(next(iter(shown.values())).values()))
    about = first.directions
    labels = [str(label) for label in first.labels]
    kind = str(about.get("kind", "plane")).replace("_", " ")
    some = f"{len(shown)} of {counted(count, 'model')}" if len(shown) < count else counted(count, "model")
    cosine = about.get("cosine")
    angle = f" Cosine between them: {cosine:.3f}." if isinstance(cosine, float) else ""
    return (
        f"Loss around the weights of a model ({kind} directions: {'; '.join(labels)}); the cross marks the model itself. "
        f"All panels of all models share one colour scale, so that they can be compared; {some}.{angle} "
        f"A plane shows two of many directions."
    )
