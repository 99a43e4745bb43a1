"""Our own study: which measures of sharpness predict?

Every measure is asked three times, and predicts where all three are shown:

    overall      τ with the test error over the means of conditions
    granulated   Ψ: one axis changed at a time, averaging among them; axes are the units
    partial      τ over the means of conditions given their training loss, whose errors are allowed for

And once more overall, of minima: among the models that fit 99 % of their training rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from landscope.analysis import between, granulated_kendall, mean, partial_between
from landscope.measures import MEASURES as KNOWN
from landscope.papers.framework.answers import TAU, Answer, Unit
from landscope.papers.framework.claims import Claim
from landscope.papers.framework.questions import Question, asked, correlates, effect_of, every
from landscope.papers.framework.values import LOSS_ERROR, NoAnswerError, Tables, Values, rows_at

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["claims"]

PARTS = ("digits", "fashion-mnist", "cifar10")
GIVEN, MISSED, ERROR, ECE = "train.loss", "train.error", "test.error", "test.ece"
MEASURES = (
    "l2_norm", "gradient_norm", "gradient_noise", "fisher_rao", "fisher_rao_homogeneous", "relative_flatness",
    "relative_flatness_layerwise", "random_sharpness", "average_sharpness", "sam_sharpness", "adaptive_sharpness",
    "keskar_sharpness", "pac_bayes_sigma", "igs", "hessian_top_eigenvalue", "hessian_trace", "hessian_frobenius",
    "ggn_top_eigenvalue", "ggn_trace", "ggn_frobenius", "log_volume",
)  # fmt: skip
IN_CIFAR10 = (
    "l2_norm", "gradient_norm", "fisher_rao", "relative_flatness", "random_sharpness", "sam_sharpness", "igs",
    "hessian_top_eigenvalue", "hessian_trace", "ggn_trace",
)  # fmt: skip
"""What that part has the time to measure."""
FLATTER_WHEN_LARGER = ("pac_bayes_sigma",)
FOLLOWING = ("igs", "sam_sharpness", "relative_flatness")
"""What the first paper plots against the training loss (figure 2)."""
CALIBRATED = ("relative_flatness", "igs")
"""What the first paper finds to fall with the calibration error."""
FITS = 0.01


def claims() -> Iterator[Claim]:
    """For each part: what the first paper suspects, and every measure by itself."""
    for part in PARTS:
        for name in FOLLOWING:
            yield Claim(
                part=part,
                text=f"{part}: {KNOWN[name].title} rises with the training loss, as the first paper suspects",
                question=correlates(Values(part=part, column=f"train.{name}"), GIVEN, 1, over="conditions"),
            )
        for name in CALIBRATED:
            yield Claim(
                part=part,
                text=f"{part}: sharper minima are better calibrated: {KNOWN[name].title} falls with the ECE, in all three ways",
                question=_three_ways(part, f"train.{name}", ECE, -1),
            )
        measures = IN_CIFAR10 if part == "cifar10" else MEASURES
        for name in measures:
            sign = _sign(name)
            yield Claim(
                part=part,
                text=f"{part}: {'lower' if sign < 0 else 'higher'} {KNOWN[name].title} goes with a higher test error, "
                "in all three ways",
                question=_three_ways(part, f"train.{name}", ERROR, sign),
            )
        for name in measures:
            yield Claim(
                part=part,
                text=f"{part}: among models that fit 99 % of their training rows, {KNOWN[name].title} orders the test error",
                question=_orders(part, f"train.{name}", _sign(name), fitted=True),
            )
    yield Claim(
        part="digits",
        text="the trace of the Hessian orders the test error: digits, and FashionMNIST among the models that fit",
        question=every(
            _orders(part, "train.hessian_trace", 1, fitted=fitted, label=label)
            for part, fitted, label in (
                ("digits", False, "digits"),
                ("fashion-mnist", True, "FashionMNIST, those that fit"),
            )
        ),
        headline=20,
        ours=True,
    )


def _sign(measure: str) -> int:
    """Which way a measure goes where sharper minima have a higher test error."""
    return -1 if measure in FLATTER_WHEN_LARGER else 1


def _orders(part: str, measure: str, sign: int, *, fitted: bool, label: str = "") -> Question:
    def fits(rows: pd.DataFrame) -> pd.Series[bool]:
        if MISSED not in rows:
            raise NoAnswerError(f"{part} has no {MISSED}")
        return rows[MISSED] <= FITS

    x = Values(part=part, column=measure)
    return correlates(x, ERROR, sign, over="conditions", keep=fits if fitted else None, label=label)


def _three_ways(part: str, measure: str, outcome: str, sign: int) -> Question:
    def answers(tables: Tables) -> list[Answer]:
        rows = rows_at(tables, part)
        if measure not in rows or rows[measure].dropna().empty:
            raise NoAnswerError(f"{part} has no {measure}")
        rows = rows[rows[[measure, outcome, GIVEN]].notna().all(axis=1)]
        x, y, conditions = rows[measure], rows[outcome], rows["condition"]
        overall = between(x, y, conditions)
        errors = {GIVEN: rows[LOSS_ERROR]} if LOSS_ERROR in rows else None
        given = partial_between(x, y, {GIVEN: rows[GIVEN]}, conditions, errors=errors)
        unit = replace(TAU, scale=sign)
        return [
            Answer("overall", effect_of(overall, sign, part), None, unit, n=f"{overall.n} conditions"),
            _one_axis_at_a_time(tables[part], measure, outcome, sign),
            Answer("given the training loss", effect_of(given, sign, part), None, unit, n=f"{given.n} conditions"),
        ]

    return asked(part, answers, spans=True)


def _one_axis_at_a_time(table: pd.DataFrame, measure: str, outcome: str, sign: int) -> Answer:
    """Averaging is an axis as well: the two models of a run differ in nothing else."""
    axes = [name for name in map(str, table) if name.startswith("axis.") or name == "checkpoint"]
    found = granulated_kendall(table, measure, outcome, axes)
    values = [sign * axis.value for axis in found.axes if axis.value is not None]
    unit = Unit(symbol="Ψ = ", scale=sign)
    return Answer("one axis at a time", mean(values), None, unit, n=f"{len(values)} axes")
