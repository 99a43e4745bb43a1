"""The loss on a plane through each model: conditions side by side on one scale, and any model as a surface."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from landscope.core.text import counted, decimal, significant
from landscope.planes import Landscape
from landscope.report.data.cohorts import Cohorts
from landscope.report.data.extras import Landscapes, fault_notes, gather, read_landscape, spread_over_conditions
from landscope.report.page.blocks import Block, Prose, Section
from landscope.report.page.figure import Axis, ColourScale, Contour, Figure, Panel, decimated, spans_decades

MODELS, ACROSS, LEAST = 16, 4, 210
"""Models to choose from, panels in a row on paper, and the least width of one in the browser."""
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
    """One model of every condition side by side on one scale; then any model, chosen from a list or by a click elsewhere."""
    found, faults = gather(study, "landscape", read_landscape)
    shown = spread_over_conditions(study, found, MODELS)
    blocks: list[Block] = []
    if shown:
        scale = _loss_scale(shown.values())
        caption = _caption(shown, len(found), scale)
        beside = _side_by_side(study, shown, scale)
        blocks.append(Prose(caption, scripted=True))
        blocks.append(
            Figure(
                "landscape",
                beside,
                caption,
                across=min(len({study.condition_of[run] for run in shown}), ACROSS),
                least=LEAST,
            )
        )
        alone = [
            _panel(run, split, landscape, scale, title=f"{study.run_name(run)}, {split}")
            for run, landscapes in shown.items()
            for split, landscape in landscapes.items()
        ]
        blocks.append(Prose("Any of them, also as a surface", tone="heading", scripted=True))
        blocks.append(
            Figure("landscapes", alone, f"{len(alone)} planes, on the scale of the ones above.", kind="landscape")
        )
    return Section("landscapes", "Loss landscapes", [*blocks, *fault_notes(faults)], _so_what(study, shown))


def _side_by_side(study: Cohorts, shown: dict[int, Landscapes], scale: ColourScale) -> list[Panel]:
    """The first model of every condition, the training rows in the first row of panels, other splits in the next ones."""
    first: dict[int, int] = {}
    for run in shown:
        first.setdefault(study.condition_of[run], run)
    splits = dict.fromkeys(split for run in first.values() for split in shown[run])
    return [
        _panel(run, split, shown[run][split], scale, title=f"{study.conditions[number]}, {split}", beside=True)
        for split in splits
        for number, run in sorted(first.items())
        if split in shown[run]
    ]


def _panel(
    run: int, split: str, landscape: Landscape, scale: ColourScale, *, title: str, beside: bool = False
) -> Panel:
    across, along = decimated(len(landscape.a), POINTS), decimated(len(landscape.b), POINTS)
    heights = landscape.loss[np.ix_(along, across)]
    plane = Contour(landscape.a[across], landscape.b[along], heights, scale, run, split, landscape.path, bar=not beside)
    x, y = ("1st direction", "2nd direction") if beside else (str(label) for label in landscape.labels)
    return Panel(
        f"landscape-{run}-{split}" + "-alone" * (not beside),
        [plane],
        Axis(x),
        Axis(y),
        title=title,
        height=270 if beside else 380,
        square=True,
        on_paper=beside,
    )


def _so_what(study: Cohorts, shown: dict[int, Landscapes]) -> str:
    """How far the loss rises half-way to the edge, condition by condition."""
    rises = {}
    for name, landscapes in study.by_condition(shown).items():
        found = (_rise(next(iter(planes.values()))) for planes in landscapes)
        if (rise := next((each for each in found if each is not None), None)) is not None:
            rises[name] = rise
    if len(rises) < 2:
        return ""
    order = sorted(rises.items(), key=lambda each: each[1])
    named = ", ".join(f"{name} {significant(rise, 2)}" for name, rise in order)
    return (
        f"Half-way to the edge of the plane the loss is higher by, on average: {named} (one model each). A plane shows two "
        f"directions of many: what looks wide here need not be flat elsewhere."
    )


def _rise(plane: Landscape) -> float | None:
    """The mean rise of the loss on a square half-way to the edge of the plane; `None` where it is not finite."""
    a, b = (np.abs(axis) / np.abs(axis).max() for axis in (plane.a, plane.b))
    away = np.maximum(a[None, :], b[:, None])
    half = away == away.flat[np.abs(away - 0.5).argmin()]
    rise = float(plane.loss[half].mean() - plane.loss.flat[away.argmin()])
    return rise if np.isfinite(rise) else None


def _caption(shown: dict[int, Landscapes], count: int, scale: ColourScale) -> str:
    first = next(iter(next(iter(shown.values())).values()))
    kind = str(first.directions.get("kind", "plane")).replace("_", " ")
    some = f"{len(shown)} of {counted(count, 'model')}" if len(shown) < count else counted(count, "model")
    cosine = first.directions.get("cosine")
    angle = f", at a cosine of {decimal(cosine, '.3f')}" if isinstance(cosine, float) else ""
    paths = any(plane.path is not None for planes in shown.values() for plane in planes.values())
    way = ", the line the weights on the way there" if paths else ""
    return (
        f"Loss around the weights of a model along two directions ({kind}: {'; '.join(map(str, first.labels))}{angle}). The "
        f"cross marks the model itself{way}. All planes share one colour scale, so that they can be compared: dark is a loss of "
        f"{significant(scale.low, 2)}, bright one of {significant(scale.high, 2)}; {some}."
    )
