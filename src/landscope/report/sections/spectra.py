"""Densities of the eigenvalues of curvature matrices, and IGS over its rank: curves that estimates carry in their details."""

from __future__ import annotations

from typing import cast

import numpy as np

from landscope.core.estimate import Estimate
from landscope.core.text import counted, significant
from landscope.report.data.cohorts import Cohorts, estimate_of
from landscope.report.data.columns import Column, label
from landscope.report.data.extras import spread_over_conditions
from landscope.report.page.blocks import Block, Prose, Section
from landscope.report.page.figure import Axis, Figure, Floats, Mark, Panel, Rule, model_line, value_axis
from landscope.spectra import Spectrum

Curves = dict[int, tuple[Floats, Floats]]

MODELS = 60
"""At most this many curves in a figure."""
PREFERRED = ("hessian", "ggn", "fisher", "")
"""Matrices, the one to show first."""
MATRIX_NAMES = {"hessian": "Hessian", "ggn": "GGN", "fisher": "Fisher"}
CONDITIONS, ACROSS = 12, 2
"""Panels, and how many of them are in a row on paper."""
SETTLED = 0.9
"""Share of its last value from which a curve over ranks counts as level."""
DECADES = 7
"""How far below its maximum a density is shown."""


def densities(study: Cohorts) -> tuple[str, Curves]:
    """The matrix whose spectrum is shown, and grid and density of its eigenvalues by run; empty where there is none.

    One matrix for each network: the Hessian where it was measured. The Gauss–Newton and the Fisher matrix are the same for most
    losses, and close to it at a minimum. Not a number where a density is too small to be seen.
    """
    columns = sorted(_columns(study, "offdiagonal"), key=lambda column: PREFERRED.index(_kind(column)))
    if not columns:
        return "", {}
    estimates = spread_over_conditions(study, _estimates(study, columns[0], "offdiagonal"), MODELS)
    curves: Curves = {}
    for run, estimate in estimates.items():
        grid, density, _ = Spectrum.from_dict(estimate.details).density()
        curves[run] = grid, np.where(density > density.max() * 10.0**-DECADES, density, np.nan)
    return _matrix(columns[0]), curves


def spectrum_section(study: Cohorts) -> Section:
    """The smoothed density of the eigenvalues of each network, a panel for each condition on the same axes."""
    matrix, curves = densities(study)
    if not curves:
        return Section("spectra", "Spectra", [])
    panels = _panels(study, matrix, curves)
    blocks: list[Block] = [
        Prose(
            f"{matrix}: density of the eigenvalues, smoothed by 1% of their range; a line for every model, "
            f"{_of(len(curves), len(study.main))}. Far to the right are the few sharp directions, around 0 the flat ones."
        ),
        Figure(
            "spectra",
            panels[:CONDITIONS],
            f"{matrix}: densities of its eigenvalues, a line for every model.",
            across=ACROSS,
        ),
    ]
    return Section("spectra", "Spectra", blocks, _so_what(study, curves))


def _so_what(study: Cohorts, curves: Curves) -> str:
    """How far the spectra reach in each condition."""
    reach = {run: float(grid[np.isfinite(density)].max()) for run, (grid, density) in curves.items()}
    ends = {name: float(np.median(each)) for name, each in study.by_condition(reach).items()}
    if len(ends) < 2:
        return ""
    near, far = min(ends, key=lambda name: ends[name]), max(ends, key=lambda name: ends[name])
    return (
        f"The largest eigenvalues reach furthest for {far} (about {significant(ends[far], 2)}) and least far for {near} (about "
        f"{significant(ends[near], 2)}). Most eigenvalues are near zero: a trace is made of few directions."
    )


def _panels(study: Cohorts, matrix: str, curves: Curves) -> list[Panel]:
    highest = max(float(np.nanmax(density)) for _, density in curves.values())
    reach = min(float(grid[0]) for grid, _ in curves.values()), max(float(grid[-1]) for grid, _ in curves.values())
    x = Axis("eigenvalue", range=reach, zero=True)
    ends = highest * 10.0**-DECADES, highest * 10.0**0.4
    y = Axis("density", scale="log", range=ends, step=2, powers=True)
    found = []
    for number, condition in enumerate(study.conditions):
        lines = [model_line(study, run, *curve) for run, curve in curves.items() if study.condition_of[run] == number]
        if lines:
            caption = f"{matrix}; n = {counted(len(lines), 'model')}."
            key = f"spectrum-0-{number}"
            found.append(Panel(key, lines, x, y, caption, title=condition, note=f"n = {len(lines)}", height=280))
    return found


def igs_section(study: Cohorts) -> Section:
    """Information-geometric sharpness at every rank that was measured, with its value at full rank."""
    blocks: list[Block] = []
    for place, column in enumerate(_columns(study, "mean_log_curve")):
        found = _estimates(study, column, "mean_log_curve")
        shown = spread_over_conditions(study, found, MODELS)
        curves = {
            run: tuple(np.array(e.details[k], dtype=np.float64) for k in ("ranks", "curve")) for run, e in shown.items()
        }
        marks: list[Mark] = [model_line(study, run, ranks, values) for run, (ranks, values) in curves.items()]
        asked = {cast(int, e.settings["rank"]) for e in shown.values() if "rank" in e.settings}
        at = ""
        if len(asked) == 1:
            rank = asked.pop()
            marks.append(Rule(rank))
            at = f" The dotted line marks rank {rank}, whose value is in the tables."
        panel = Panel(
            f"igs-{column}",
            marks,
            value_axis("rank", (x for ranks, _ in curves.values() for x in ranks)),
            value_axis("IGS", (y for _, values in curves.values() for y in values)),
            f"Information-geometric sharpness when only the largest eigenvalues of the Fisher matrix count; a line for every "
            f"model, {_of(len(shown), len(found))}. Where a curve is level, it depends on the losses alone.{at}",
            title=label(column),
            note=f"n = {len(shown)}",
            height=400,
            size=(3.4, 2.2),
        )
        blocks.append(Figure(_numbered("igs", place), [panel], kind="wide"))
    return Section("igs", "IGS over rank", blocks, _level(study))


def _level(study: Cohorts) -> str:
    """In how many models the rank that was asked for is all that counts."""
    column = next(iter(_columns(study, "mean_log_curve")), None)
    if column is None:
        return ""
    shares = [
        e.value / curve[-1]
        for e in _estimates(study, column, "mean_log_curve").values()
        if (curve := cast("list[float]", e.details["curve"])) and e.status.has_value and curve[-1]
    ]
    if not shares:
        return ""
    middle = sorted(shares)[len(shares) // 2]
    level = (
        "more ranks would add little"
        if middle > SETTLED
        else "its value, and the order of models, may depend on the rank"
    )
    return f"At the rank of the tables the median model's IGS has {middle:.0%} of its value at the last rank: {level}."


def _numbered(name: str, place: int) -> str:
    """The names of several figures of one kind.

    >>> _numbered("spectra", 0), _numbered("spectra", 1)
    ('spectra', 'spectra-2')
    """
    return f"{name}-{place + 1}" if place else name


def _columns(study: Cohorts, detail: str) -> list[str]:
    found: dict[str, None] = {}
    for subject in study.main.members.values():
        for split, report in subject.reports.items():
            found |= {f"{split}.{name}": None for name, e in report.items() if detail in e.details}
    return list(found)


def _estimates(study: Cohorts, column: str, detail: str) -> dict[int, Estimate]:
    found = {run: estimate_of(subject, column) for run, subject in study.main.members.items()}
    return {run: e for run, e in found.items() if e is not None and detail in e.details}


def _matrix(column: str) -> str:
    """The matrix whose spectrum an estimate carries, whatever else the estimate holds.

    >>> _matrix("train.ggn_spectrum"), _matrix("train.published.hessian_top_eigenvalue")
    ('GGN matrix on train rows', 'Hessian matrix on train rows, published')
    """
    parts = Column.of(column)
    shown = MATRIX_NAMES.get(_kind(column))
    if shown is None:
        return f"{label(column)} on {parts.split} rows"
    return ", ".join([f"{shown} matrix on {parts.split} rows", *(text.replace("_", " ") for text in parts.variants)])


def _kind(column: str) -> str:
    found = getattr(Column.of(column).facts, "matrix", "")
    return found if found in MATRIX_NAMES else ""


def _of(shown: int, all_of_them: int) -> str:
    return f"n = {shown}" if shown == all_of_them else f"{shown} of {all_of_them} models"
