"""By layer, under changes that keep the function, and on corrupted images."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from landscope.core.text import counted, listed, significant
from landscope.measures.base import MEASURES
from landscope.measures.reading.rows import FISHER_AS_GGN
from landscope.report.data.cohorts import Cohorts
from landscope.report.data.columns import label, of_predictions
from landscope.report.data.extras import (
    Corrupted,
    Layers,
    fault_notes,
    gather,
    read_corruptions,
    read_invariance,
    read_layers,
    spread_over_conditions,
)
from landscope.report.page.blocks import Block, Cell, Heading, Prose, Section, Table, words
from landscope.report.page.figure import (
    Axis,
    Bars,
    Curve,
    Errors,
    Figure,
    Floats,
    Heat,
    Marker,
    Panel,
    model_line,
    value_axis,
)

# Which layers are sharp: every measure of every layer, by condition.


TRACE = "hessian_trace"
BARS = 80
"""More bars than these in a panel are drawn as points."""


def layer_section(study: Cohorts) -> Section:
    """A panel for each measure: mean and spread over the models of a condition."""
    found, faults = gather(study, "layers", read_layers)
    measures = list(dict.fromkeys(name for layers in found.values() for name in layers))
    panels = [_panel(study, name, found) for name in measures if any(each.get(name) for each in found.values())]
    blocks: list[Block] = [Figure("layers", panels, across=2)] if panels else []
    return Section("layers", "Layer by layer", [*blocks, *fault_notes(faults)], _sharpest(found))


def _sharpest(found: Mapping[int, Layers]) -> str:
    """Which layer holds most of the trace, in how many models."""
    counts: Counter[str] = Counter()
    for layers in found.values():
        values = {layer: value for layer, (value, _) in layers.get(TRACE, {}).items()}
        if len(values) > 1:
            counts[max(values, key=lambda layer: values[layer])] += 1
    if not counts:
        return ""
    layer, count = counts.most_common(1)[0]
    return (
        f"The largest part of the Hessian trace lies in {layer}, in {count} of {counted(counts.total(), 'model')}. A layer's "
        f"block says nothing about how layers act together."
    )


def _panel(study: Cohorts, measure: str, found: dict[int, Layers]) -> Panel:
    held = {run: layers[measure] for run, layers in found.items() if layers.get(measure)}
    names = list(dict.fromkeys(layer for rows in held.values() for layer in rows))
    members = {study.conditions.index(name): rows for name, rows in study.by_condition(held).items()}
    moments = {number: _moments(members[number], names) for number in sorted(members)}
    few = len(moments) * len(names) <= BARS
    models = len(held)
    shown = "bars are means over the models of a condition, lines the standard deviation over them"
    if models == len(moments):
        shown = "a bar is one model of its condition, lines its standard error"
    return Panel(
        f"layers-{measure}",
        [(_bars if few else _points)(study, number, names, *both) for number, both in moments.items()],
        Axis(scale="category", angle=-45 if len(names) > 6 else 0)
        if few
        else Axis(ticks=(np.arange(float(len(names))), names), angle=-45),
        value_axis(label(f"train.{measure}"), (value for mean, _ in moments.values() for value in mean)),
        f"Layers from input to output, the others held constant; {shown}. {_members(members)}.",
        title=label(f"train.{measure}"),
        note=f"n = {models}",
        height=320,
    )


def _members(members: Mapping[int, Sequence[object]]) -> str:
    """How many models stand behind the bars.

    >>> _members({0: [1], 1: [1]}), _members({0: [1, 2], 1: [1, 2, 3]})
    ('1 model of each of 2 conditions', '2 to 3 models of each of 2 conditions')
    """
    sizes = sorted(map(len, members.values()))
    each = counted(sizes[0], "model") if sizes[0] == sizes[-1] else f"{sizes[0]} to {sizes[-1]} models"
    return f"{each} of each of {counted(len(sizes), 'condition')}" if len(sizes) > 1 else each


def _moments(rows: Sequence[Mapping[str, tuple[float, float]]], names: Sequence[str]) -> tuple[Floats, Floats]:
    """Mean over the models of a condition and standard deviation, or the standard error of one model."""
    values = np.array([[each.get(layer, (np.nan, 0.0))[0] for layer in names] for each in rows])
    errors = np.array([[each.get(layer, (np.nan, 0.0))[1] for layer in names] for each in rows])
    count = np.isfinite(values).sum(0)
    mean = np.where(count > 0, np.nansum(values, 0) / np.maximum(count, 1), np.nan)
    spread = np.sqrt(np.nansum((values - mean) ** 2, 0) / np.maximum(count - 1, 1)) if len(rows) > 1 else errors[0]
    return mean, spread


def _bars(study: Cohorts, number: int, names: Sequence[str], mean: Floats, spread: Floats) -> Bars:
    return Bars(names, mean, Errors(spread, colour="@muted", cap=2), number, study.conditions[number])


def _points(study: Cohorts, number: int, names: Sequence[str], mean: Floats, spread: Floats) -> Curve:
    return Curve(
        np.arange(float(len(names))),
        mean,
        f"@c{number}",
        width=1.2,
        marker=Marker(6),
        y_error=Errors(spread, colour="@muted", cap=2),
        hover=[f"{study.conditions[number]}, {name}" for name in names],
        hover_numbers="y",
        condition=number,
    )


# How far each measure moves when the parameters change and the function does not (Dinh et al. 2017).


STILL = 1e-3
"""Relative change that counts as rounding."""
STAYED = ("unchanged", "by definition", "–")
RESOLVED = 0.1
"""Three standard errors above which a change of that size could hide in them."""


def invariance_section(study: Cohorts) -> Section:
    """A table: measures down, transformations across, the median change over the models in the cells."""
    found, faults = gather(study, "invariance", read_invariance)
    measures = list(dict.fromkeys(name for each in found.values() for name in each))
    kinds = list(dict.fromkeys(kind for each in found.values() for moved in each.values() for kind in moved))
    kinds = [kind for kind in kinds if any(moved.get(kind) for each in found.values() for moved in each.values())]
    rows: list[list[Cell]] = []
    for measure in _once(measures):
        cells = []
        for kind in kinds:
            moved = [each.get(measure, {}).get(kind) for each in found.values()]
            known = [pair for pair in moved if pair is not None and math.isfinite(pair[0])]
            cells.append(_cell(known, by_definition=measure in MEASURES and kind in MEASURES[measure].invariant_to))
        rows.append([Cell(label(f"train.{measure}"), title=measure), *cells])
    blocks: list[Block] = []
    if rows:
        count = len(found)
        gap = (
            "A dash: no place for it in the network. " if any(cell.text == "–" for row in rows for cell in row) else ""
        )
        blocks = [
            Prose(
                "A measure that moves while the function stays the same cannot by itself explain how well the function "
                "generalises. Each column changes the parameters of a model and not a single prediction."
            ),
            Table(
                [*words("measure"), *(Heading(kind.replace("_", " ")) for kind in kinds)],
                rows,
                f"Median relative change of the measure over {counted(count, 'model')}. {gap}“Unchanged”: within three standard "
                f"errors, and these below {100 * RESOLVED:g} %. Where they are larger or not known: “by definition”, or “cannot "
                f"tell”. Measures of predictions alone cannot move.",
            ),
        ]
    return Section(
        "invariances", "Does the measure depend on the function alone?", [*blocks, *fault_notes(faults)], _moving(rows)
    )


def _moving(rows: Sequence[Sequence[Cell]]) -> str:
    """Which measures move with the parameters alone."""
    moved = [first.text for first, *cells in rows if any(cell.mark == "bad" for cell in cells)]
    still = [first.text for first, *cells in rows if all(cell.text in STAYED for cell in cells)]
    if not moved:
        return ""
    kept = f" Only {listed(still)} did not move." if still else " None was unchanged by all of them."
    return (
        f"{len(moved)} of {counted(len(rows), 'measure')} can be changed without changing one prediction: compare them between "
        f"networks of one architecture that were trained alike.{kept}"
    )


def _once(measures: Sequence[str]) -> list[str]:
    """Without measures of predictions, and what has the value of another.

    >>> _once(["loss", "hessian_top_eigenvalue", "hessian_spectrum", "ggn_trace", "fisher_trace", "mine"])
    ['hessian_top_eigenvalue', 'ggn_trace', 'mine']
    """
    same = {name: MEASURES[name].same_value_as or FISHER_AS_GGN.get(name, "") for name in measures if name in MEASURES}
    return [name for name in measures if same.get(name, "") not in measures and not of_predictions(name)]


def _cell(moved: list[tuple[float, float]], *, by_definition: bool) -> Cell:
    if not moved:
        return Cell("–", mark="muted")
    change = float(np.median([c for c, _ in moved]))
    error = float(np.median([e for _, e in moved]))
    shown = f"{significant(100 * change, 2)} % ± {significant(100 * error, 2)} %"
    if change <= STILL:
        return Cell("unchanged", mark="good", title=shown)
    if change > 3 * error:
        return Cell(f"{significant(100 * change, 2)} %", mark="bad", title=shown)
    if not 3 * error <= RESOLVED:  # large, or not known
        return Cell("by definition" if by_definition else "cannot tell", mark="muted", title=shown)
    return Cell("unchanged", mark="good", title=shown)


# Accuracy on corrupted images: how it falls with severity, and which corruptions hurt which condition.


MODELS = 60


def corruption_section(study: Cohorts) -> Section:
    """A line for every model over severity, and a heat map of conditions and corruptions."""
    found, faults = gather(study, "corruptions", read_corruptions)
    blocks: list[Block] = []
    if found:
        caption = "Accuracy over severity, a line for every model, and by corruption and condition; yellow is better."
        blocks = [Figure("corruptions", [_severity(study, found), _kinds(study, found)], caption, across=2)]
    return Section("corruptions", "Corrupted images", [*blocks, *fault_notes(faults)], _hurt(study, found))


def _hurt(study: Cohorts, found: Mapping[int, Corrupted]) -> str:
    """How much accuracy corruption costs each condition, and which corruption hurts most."""
    if not found:
        return ""
    lost = study.by_condition({run: each.clean - float(each.accuracy.mean()) for run, each in found.items()})
    means = sorted((float(np.mean(values)), name) for name, values in lost.items())
    named = ", ".join(f"{name} {mean:.3f}" for mean, name in means)
    kinds: dict[str, list[float]] = {}
    for each in found.values():
        for name, row in zip(each.names, each.accuracy, strict=True):
            kinds.setdefault(name, []).append(each.clean - float(row.mean()))
    worst = max(kinds, key=lambda name: float(np.mean(kinds[name])))
    return f"Accuracy lost on average: {named}. The most harmful corruption is {worst.replace('_', ' ')}."


def _severity(study: Cohorts, found: dict[int, Corrupted]) -> Panel:
    shown = spread_over_conditions(study, found, MODELS)
    count = len(next(iter(found.values())).names)
    return Panel(
        "severity",
        [
            model_line(study, run, [0, *each.severities], [each.clean, *each.accuracy.mean(0)])
            for run, each in shown.items()
        ],
        Axis("severity", step=1),
        Axis("accuracy"),
        f"Accuracy, mean over {counted(count, 'corruption')}; severity 0 is the clean image. A line for every "
        f"model, n = {len(shown)}.",
        note=f"n = {len(shown)}",
        height=360,
    )


def _kinds(study: Cohorts, found: dict[int, Corrupted]) -> Panel:
    names = list(dict.fromkeys(name for each in found.values() for name in each.names))
    numbers = sorted({study.condition_of[run] for run in found})
    values = np.full((len(names), len(numbers)), np.nan)
    for column, number in enumerate(numbers):
        members = [each for run, each in found.items() if study.condition_of[run] == number]
        for row, name in enumerate(names):
            known = [float(each.accuracy[each.names.index(name)].mean()) for each in members if name in each.names]
            if known:
                values[row, column] = np.mean(known)
    conditions = [study.conditions[number] for number in numbers]
    heat = Heat(
        conditions,
        [name.replace("_", " ") for name in names],
        values,
        [
            [f"{name}, {condition}: {v:.3f}" for condition, v in zip(conditions, row, strict=True)]
            for name, row in zip(names, values, strict=True)
        ],
        [[f"{v:.2f}" if np.isfinite(v) else "" for v in row] for row in values],
        scale="sequential",
    )
    return Panel(
        "corruption-kinds",
        [heat],
        Axis(scale="category", top=True),
        Axis(),
        "Accuracy by corruption and condition, mean over severities and models, "
        f"n = {counted(len(found), 'model')}; yellow is better.",
        note=f"n = {len(found)}",
        height=max(300, 70 + 22 * len(names)),
        fixed=True,
    )
