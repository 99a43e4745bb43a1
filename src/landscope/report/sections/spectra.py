"""Densities of the eigenvalues of curvature matrices, and IGS over its rank: curves that estimates carry in their details."""

from __future__ import annotations

from typing import cast

import numpy as np

from landscope.core.estimate import Estimate
from landscope.core.json import Plain
from landscope.core.text import counted
from landscope.report.data.cohorts import Cohorts, estimate_of
from landscope.report.data.columns import Column, label
from landscope.report.data.extras import spread_over_conditions
from landscope.report.page.blocks import Block, Panels, Plot, Prose, Section
from landscope.report.page.embedding import rounded
from landscope.report.page.plotly import Floats, axis, model_line
from landscope.spectra import Spectrum

__all__ = ["densities", "igs_section", "spectrum_section"]

Curves = dict[int, tuple[Floats, Floats]]

MODELS = 60
"""At most so many curves in a figure."""
MATRICES = 3
MATRIX_NAMES = {"hessian": "Hessian", "ggn": "GGN", "fisher": "Fisher"}
CONDITIONS = 12
DECADES = 7
"""How far below its maximum a density is shown."""


def densities(study: Cohorts) -> dict[str, Curves]:
    """Grid and density of the eigenvalues by matrix and run; not a number where a density is too small to be seen."""
    found: dict[str, Curves] = {}
    for column in _columns(study, "offdiagonal")[:MATRICES]:
        estimates = spread_over_conditions(study, _estimates(study, column, "offdiagonal"), MODELS)
        curves: Curves = {}
        for run, estimate in estimates.items():
            grid, density, _ = Spectrum.from_dict(estimate.details).density()
            curves[run] = grid, np.where(density > density.max() * 10.0**-DECADES, density, np.nan)
        found[_matrix(column)] = curves
    return found


def spectrum_section(study: Cohorts) -> Section:
    """The smoothed density of each matrix whose spectrum was measured, a panel for each condition on the same axes."""
    blocks: list[Block] = []
    for place, (matrix, curves) in enumerate(densities(study).items()):
        highest = np.log10(max(float(np.nanmax(density)) for _, density in curves.values()))
        reach = [
            min(float(grid[0]) for grid, _ in curves.values()),
            max(float(grid[-1]) for grid, _ in curves.values()),
        ]
        layout: dict[str, Plain] = {
            "xaxis": {"title": {"text": "eigenvalue"}, "range": rounded(reach), "zeroline": True},
            "yaxis": {
                "title": {"text": "density"},
                "type": "log",
                "range": rounded([highest - DECADES, highest + 0.4]),
                "exponentformat": "power",
                "dtick": 2,
            },
        }
        plots = []
        for number, condition in enumerate(study.conditions):
            data: list[Plain] = [
                model_line(study, run, *curve) for run, curve in curves.items() if study.condition_of[run] == number
            ]
            if data:
                caption = f"{matrix}; n = {counted(len(data), 'model')}."
                plots.append(
                    Plot(
                        f"spectrum-{place}-{number}",
                        {"data": data, "layout": layout},
                        caption,
                        title=condition,
                        height=280,
                    )
                )
        blocks += [
            Prose(
                f"{matrix}: density of the eigenvalues, smoothed by 1% of their range; a line for every model, "
                f"{_of(len(curves), len(study.main))}. Far to the right are the few sharp directions, around 0 the flat ones."
            ),
            Panels(plots[:CONDITIONS]),
        ]
    return Section("spectra", "Hessian spectra", blocks)


def igs_section(study: Cohorts) -> Section:
    """Information-geometric sharpness at every rank that was measured, with its value at full rank."""
    blocks: list[Block] = []
    for column in _columns(study, "mean_log_curve"):
        found = _estimates(study, column, "mean_log_curve")
        shown = spread_over_conditions(study, found, MODELS)
        data: list[Plain] = []
        for run, estimate in shown.items():
            details = estimate.details
            data.append(
                model_line(study, run, cast("list[float]", details["ranks"]), cast("list[float]", details["curve"]))
            )
        asked = {cast(int, e.settings["rank"]) for e in shown.values() if "rank" in e.settings}
        layout: dict[str, Plain] = {
            "xaxis": axis("rank", (x for e in shown.values() for x in cast("list[float]", e.details["ranks"]))),
            "yaxis": axis("IGS", (y for e in shown.values() for y in cast("list[float]", e.details["curve"]))),
        }
        if len(asked) == 1:
            rank = asked.pop()
            line: dict[str, Plain] = {"color": "@muted", "width": 1, "dash": "dot"}
            layout["shapes"] = [
                {"type": "line", "x0": rank, "x1": rank, "y0": 0, "y1": 1, "yref": "paper", "line": dict(line)}
            ]
            asked = {rank}
        at = f" The dotted line marks rank {asked.pop()}, whose value is in the tables." if len(asked) == 1 else ""
        blocks.append(
            Plot(
                f"igs-{column}",
                {"data": data, "layout": layout},
                f"Information-geometric sharpness when only the largest eigenvalues of the Fisher matrix count; a line for every "
                f"model, {_of(len(shown), len(found))}. Where a curve is level, it tells of the losses alone.{at}",
                title=label(column),
                height=400,
            )
        )
    return Section("igs", "IGS over rank", blocks)


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
    """The matrix whose spectrum an estimate carries, whatever else the estimate tells of it.

    >>> _matrix("train.ggn_spectrum"), _matrix("train.published.hessian_top_eigenvalue")
    ('GGN matrix on train rows', 'Hessian matrix on train rows, published')
    """
    parts = Column.of(column)
    shown = MATRIX_NAMES.get(getattr(parts.facts, "matrix", ""))
    if shown is None:
        return f"{label(column)} on {parts.split} rows"
    return ", ".join([f"{shown} matrix on {parts.split} rows", *(text.replace("_", " ") for text in parts.variants)])


def _of(shown: int, all_of_them: int) -> str:
    return f"n = {shown}" if shown == all_of_them else f"{shown} of {all_of_them} models"
