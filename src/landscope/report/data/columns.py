"""The columns of a study's table: which are outcomes, which are measures, how people call them, which way is better.

A column is named split.measure (`train.hessian_trace`, `test.error`), or gap.loss for test less train. What is measured of
predictions (error, loss, calibration, robustness, consistency) is an outcome; whatever else is measured on the training rows is
a measure that might go with it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd

from landscope.analysis.coefficients import scaled

__all__ = ["IDENTITY", "better", "default_measures", "default_outcomes", "label", "parts", "repeated", "value_columns"]

SAME, SOME = 1e-5, 3
"""The relative difference up to which numbers count as the same, and how many different ones must be."""
IDENTITY = ("run", "condition", "seed", "checkpoint", "temperature")
"""Columns that say which model a row is; so do those that begin with "axis."."""

PREDICTIONS = ("error", "loss", "accuracy", "nll", "ece", "ace", "mce", "classwise_ece", "brier")
"""Measures of predictions, in the order in which they are shown."""
HELD_OUT = ("test", "gap", "validation", "corrupted", "robustness", "consistency", "shapes", "shapes_shifted")
"""Splits whose columns are outcomes, in the order in which they are shown."""
LOWER_SPLITS = ("gap", "corrupted", "robustness", "consistency")
"""Those of which lower values are better, unless the name says otherwise."""
FIRST = ("test.error", "test.ece", "gap.loss", "gap.error", "test.loss")
"""The outcomes that most studies ask about."""
HIGHER_IS_BETTER = ("accuracy", "agreement", "cosine", "cka", "dsc")
LOWER_IS_BETTER = ("hd", "hd95")
"""Last words of names."""

NAMES = {
    "ece": "ECE",
    "ace": "ACE",
    "mce": "MCE",
    "classwise_ece": "classwise ECE",
    "nll": "NLL",
    "brier": "Brier score",
    "igs": "IGS",
    "l2_norm": "ℓ₂ norm",
    "sam_sharpness": "SAM sharpness",
    "keskar_sharpness": "Keskar sharpness",
    "fisher_rao": "Fisher–Rao norm",
    "fisher_rao_homogeneous": "Fisher–Rao norm (homogeneous)",
    "pac_bayes_sigma": "PAC-Bayes σ",
    "ggn_trace": "GGN trace",
    "ggn_frobenius": "GGN Frobenius norm",
    "ggn_top_eigenvalue": "GGN λ₁",
    "ggn_bottom_eigenvalue": "GGN λ_min",
    "hessian_trace": "Hessian trace",
    "hessian_frobenius": "Hessian Frobenius norm",
    "hessian_top_eigenvalue": "Hessian λ₁",
    "hessian_bottom_eigenvalue": "Hessian λ_min",
    "fisher_trace": "Fisher trace",
    "fisher_frobenius": "Fisher Frobenius norm",
    "fisher_top_eigenvalue": "Fisher λ₁",
    "fisher_bottom_eigenvalue": "Fisher λ_min",
    "relative_flatness_layerwise": "layerwise relative flatness",
    "dsc": "Dice score",
    "hd": "Hausdorff distance",
    "hd95": "Hausdorff distance at 95 %",
    "variety": "variety of shapes",
}
SEPARATOR = re.compile(r"(?<!\d)\.|\.(?!\d)")
"""A point that is not inside a number."""


def parts(column: str) -> list[str]:
    """Split, variants and measure: what the points of a column's name divide, those of its numbers apart.

    >>> parts("train.corrected.igs"), parts("train.random_sharpness_0.05")
    (['train', 'corrected', 'igs'], ['train', 'random_sharpness_0.05'])
    """
    return SEPARATOR.split(column)


def label(column: str) -> str:
    """What a reader of the papers would call it; the split is named where it is not the usual one.

    >>> label("train.hessian_trace"), label("test.ece"), label("gap.error"), label("train.loss")
    ('Hessian trace', 'test ECE', 'gap in error', 'train loss')
    >>> label("validation.fisher_rao"), label("train.corrected.igs")
    ('Fisher–Rao norm (validation)', 'IGS, corrected')
    >>> label("train.random_sharpness_0.05"), label("train.published.hessian_bottom_eigenvalue")
    ('random sharpness 0.05', 'Hessian λ_min, published')
    """
    *whose, name = parts(column)
    split, variants = "".join(whose[:1]), whose[1:]
    shown = ", ".join([NAMES.get(name, name.replace("_", " ")), *(text.replace("_", " ") for text in variants)])
    if not split:
        return shown
    if split == "gap":
        return f"gap in {shown}"
    if split.startswith("shapes"):
        return shown if split == "shapes" else f"{shown} ({split.removeprefix('shapes_').replace('_', ' ')})"
    if name in PREDICTIONS or split not in ("train", "test", "validation"):
        return f"{split.replace('_', ' ')} {shown}"
    return shown if split == "train" else f"{shown} ({split})"


def better(column: str) -> int:
    """−1 where lower values are better, +1 where higher ones are, 0 where that is the question.

    >>> better("test.error"), better("corrupted.accuracy"), better("train.hessian_trace")
    (-1, 1, 0)
    >>> better("consistency.disagreement"), better("consistency.linear_cka"), better("shapes.hd95"), better("shapes.variety")
    (-1, 1, -1, 0)
    """
    split, _, name = column.partition(".")
    last = name.replace(".", "_").rpartition("_")[2]
    if last in HIGHER_IS_BETTER:
        return 1
    return -1 if name in PREDICTIONS or last in LOWER_IS_BETTER or split in LOWER_SPLITS else 0


def value_columns(frame: pd.DataFrame) -> list[str]:
    """The columns that hold measured numbers."""
    return [c for c in frame.columns if c not in IDENTITY and not c.startswith("axis.") and frame[c].notna().any()]


def default_outcomes(frame: pd.DataFrame) -> list[str]:
    """Held-out outcomes, one of each kind: no accuracy beside an error, none that orders the models as another does.

    >>> default_outcomes(pd.DataFrame({"test.loss": [1.0], "test.accuracy": [0.9], "test.error": [0.1], "train.l2_norm": [3.0]}))
    ['test.error', 'test.loss']
    """
    found: list[str] = []
    known = value_columns(frame)
    for column in sorted(known, key=_order):
        split, _, name = column.partition(".")
        if split not in HELD_OUT or (split in HELD_OUT[:3] and name not in PREDICTIONS):
            continue
        if name == "accuracy" and f"{split}.error" in known:
            continue
        if not _repeats(frame, column, found):
            found.append(column)
    return found


def repeated(frame: pd.DataFrame, columns: Sequence[str]) -> dict[str, str]:
    """Columns that are an earlier one times a constant, and which: the same measure in other units, or under another name.

    >>> frame = pd.DataFrame({"kappa": [1.0, 2.0, 4.0], "kappa over inputs": [0.5, 1.0, 2.0], "trace": [1.0, 2.0, 4.1]})
    >>> repeated(frame, list(frame))
    {'kappa over inputs': 'kappa'}
    """
    found: dict[str, str] = {}
    for place, column in enumerate(columns):
        first = (
            other for other in columns[:place] if other not in found and _proportional(frame[other], frame[column])
        )
        if original := next(first, None):
            found[column] = original
    return found


def _proportional(first: pd.Series, second: pd.Series) -> bool:
    """Whether the one is the other times a positive constant, for at least three models that differ."""
    x, y = (column.to_numpy(dtype=float) for column in (first, second))
    both = np.isfinite(x) & np.isfinite(y)
    if (np.isfinite(x) != np.isfinite(y)).any() or both.sum() < SOME or len(np.unique(x[both])) < SOME:
        return False
    (x, _), (y, _) = scaled(x[both]), scaled(y[both])
    factor = float(x @ y / (x @ x))
    return factor > 0 and bool(np.allclose(y, factor * x, rtol=SAME, atol=0))


def default_measures(frame: pd.DataFrame, outcomes: Sequence[str]) -> list[str]:
    """Everything measured on the training rows that is not a prediction's; a spectrum only without its top eigenvalue."""
    known = value_columns(frame)
    found: list[str] = []
    for column in known:
        split, _, name = column.partition(".")
        if column in outcomes or name.startswith(PREDICTIONS) or split not in ("train", "validation", "test"):
            continue
        if split != "train" and f"train.{name}" in known:
            continue
        if not (name.endswith("_spectrum") and f"{split}.{name.removesuffix('_spectrum')}_top_eigenvalue" in known):
            found.append(column)
    return found


def _order(column: str) -> tuple[int, int, int]:
    split, _, name = column.partition(".")
    first = FIRST.index(column) if column in FIRST else len(FIRST)
    return (
        first,
        HELD_OUT.index(split) if split in HELD_OUT else len(HELD_OUT),
        PREDICTIONS.index(name) if name in PREDICTIONS else len(PREDICTIONS),
    )


def _repeats(frame: pd.DataFrame, column: str, others: Iterable[str]) -> bool:
    order = frame[column].rank(method="dense")
    return frame[column].nunique() > 1 and any(order.equals(frame[other].rank(method="dense")) for other in others)
