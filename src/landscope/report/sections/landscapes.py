"""The loss on a plane through each model, as lines of equal loss and as a surface, for every split it was measured on."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from landscope.core.text import counted
from landscope.planes import Landscape
from landscope.report.data.cohorts import Cohorts
from landscope.report.data.extras import Landscapes, gather, read_landscape, spread_over_conditions
from landscope.report.page.blocks import Block, Section
from landscope.report.page.figure import Axis, ColourScale, Contour, Figure, Panel, decimated, spans_decades

__all__ = ["landscape_section"]

MODELS, ON_PAPER = 16, 6
POINTS = 61
"""Along each axis."""


def _loss_scale(shown: Iterable[Landscapes]) -> ColourScale:
    """One scale for several models and all splits of each, from the lowest loss of any to the highest."""
    losses = np.concatenate([plane.loss.ravel() for landscapes in shown for plane in landscapes.values()])
    known = losses[np.isfinite(losses)]
    low, logarithmic = float(known.min()), spans_decades(known)
    high = max(float(known.max()), low * (1 + 1e-9) + 1e-12)
    return ColourScale(low, high, logarithmic, "loss, logarithmic scale" if logarithmic else "loss")


def landscape_section(study: Cohorts) -> Section:
    """One figure, in which a model is chosen from a list or by a click in any other figure."""
    found, gathered = gather(study, "landscape", read_landscape)
    shown = spread_over_conditions(study, found, MODELS)
    blocks: list[Block] = []
    if shown:
        scale = _loss_scale(shown.values())
        on_paper = spread_over_conditions(study, shown, ON_PAPER)
        panels = [
            _panel(study, run, split, landscape, scale, on_paper=run in on_paper)
            for run, landscapes in shown.items()
            for split, landscape in landscapes.items()
        ]
        across = max(map(len, shown.values()))
        blocks.append(Figure("landscape", panels, _caption(shown, len(found)), kind="landscape", across=across))
    return Section("landscapes", "Loss landscapes", [*blocks, *gathered.notes])


def _panel(study: Cohorts, run: int, split: str, landscape: Landscape, scale: ColourScale, *, on_paper: bool) -> Panel:
    across, along = decimated(len(landscape.a), POINTS), decimated(len(landscape.b), POINTS)
    heights = landscape.loss[np.ix_(along, across)]
    plane = Contour(landscape.a[across], landscape.b[along], heights, scale, run, split, landscape.path)
    return Panel(
        f"landscape-{run}-{split}",
        [plane],
        Axis(),
        Axis(),
        title=f"{study.run_name(run)}, {split}",
        height=380,
        square=True,
        on_paper=on_paper,
    )


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
