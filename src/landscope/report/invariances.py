"""How far each measure moves when the parameters change and the function does not (Dinh et al. 2017)."""

from __future__ import annotations

import math

import numpy as np

from landscope.core.words import counted
from landscope.report.cohorts import Study
from landscope.report.columns import label
from landscope.report.extras import gather, read_invariance
from landscope.report.numerals import significant
from landscope.report.section import Block, Cell, Head, Prose, Section, Table

__all__ = ["invariance_section"]

STILL = 1e-3
"""Relative change that counts as rounding."""


def invariance_section(study: Study) -> Section:
    """A table: measures down, transformations across, the median change over the models in the cells."""
    found, gathered = gather(study, "invariance", read_invariance)
    measures = list(dict.fromkeys(name for each in found.values() for name in each))
    kinds = list(dict.fromkeys(kind for each in found.values() for moved in each.values() for kind in moved))
    rows = []
    for measure in measures:
        cells = [Cell(label(f"train.{measure}"), title=measure)]
        for kind in kinds:
            moved = [each.get(measure, {}).get(kind) for each in found.values()]
            cells.append(_cell([pair for pair in moved if pair is not None and math.isfinite(pair[0])]))
        rows.append(cells)
    blocks: list[Block] = []
    if rows:
        count = len(found)
        blocks = [
            Prose(
                "A measure that moves while the function stays the same cannot by itself explain how well the function "
                "generalises. Each column changes the parameters of a model and not a single prediction."
            ),
            Table(
                [Head("measure", numeric=False), *(Head(kind.replace("_", " ")) for kind in kinds)],
                rows,
                f"Median relative change of the measure over {counted(count, 'model')}; a dash where a network "
                f"has no place for the transformation. “Unchanged”: within three standard errors or {100 * STILL:g} %.",
            ),
        ]
    return Section("invariances", "Does the measure see the function only?", [*blocks, *gathered.notes])


def _cell(moved: list[tuple[float, float]]) -> Cell:
    if not moved:
        return Cell("–", mark="muted")
    change = float(np.median([c for c, _ in moved]))
    error = float(np.nanmedian([e for _, e in moved]))
    shown = f"{significant(100 * change, 2)} %"
    if change <= max(STILL, 3 * error):
        return Cell("unchanged", mark="good", title=shown)
    return Cell(shown, mark="bad", title=f"± {significant(100 * error, 2)} %")
