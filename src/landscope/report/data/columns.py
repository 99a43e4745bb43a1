"""The columns of a study's table: which are outcomes, which are measures, what people call them, which way is better.

A column is named split.measure (`train.hessian_trace`, `test.error`), or gap.loss for test less train. What is measured of
predictions (error, loss, calibration, robustness, consistency) is an outcome; anything else measured on the training samples is
a measure that might be associated with it. Titles, families and directions are those that the measures state of themselves; a
column of an unknown name is shown as it is written, and has no direction.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
import pandas as pd

from landscope.analysis.coefficients import scaled
from landscope.core.json import Plain
from landscope.measures.base import MEASURES, Measure
from landscope.measures.facts import SCORES, Score
from landscope.specs.names import is_import
from landscope.studies.record import Record

SAME, SOME = 1e-5, 3
"""The relative difference up to which numbers count as the same, and how many distinct ones there must be."""
IDENTITY = ("run", "condition", "seed", "checkpoint", "temperature")
"""Columns that identify the model of a row, together with the axes (`axis.NAME`)."""

SHOWN_FIRST = ("error", "loss", "accuracy", "nll", "ece", "ace", "mce", "classwise_ece", "brier")
"""The order of measures of predictions; others follow."""
DATA_SPLITS = ("train", "test", "validation")
"""Splits of the data, on which every measure can be taken."""
SHAPES = {"shapes": "", "shapes_shifted": "shifted"}
"""Splits of reconstructed shapes, and what their labels add."""
HELD_OUT = ("test", "gap", "validation", "corrupted", "robustness", "consistency", *SHAPES)
"""Splits whose columns are outcomes, in the order in which they are shown."""
FIRST = ("test.error", "test.ece", "gap.loss", "gap.error", "test.loss")
"""The outcomes that most studies ask about."""
BETTER = {"lower": -1, "higher": 1, None: 0}

SEPARATOR = re.compile(r"(?<!\d)\.|\.(?!\d)")
"""A point that is not inside a number."""


@dataclass(frozen=True)
class Column:
    """The parts of a column's name, and what its measure says of itself.

    >>> Column.of("train.corrected.igs")
    Column(split='train', name='igs', variants=('corrected',))
    >>> Column.of("train.random_sharpness_0.05").name, Column.of("test.my_package.sharpness:Mine").name
    ('random_sharpness_0.05', 'my_package.sharpness:Mine')
    """

    split: str
    """Where it was measured: train, test, gap, consistency …; empty where the name does not say."""
    name: str
    """The measure's key, or the name that the study gave it."""
    variants: tuple[str, ...] = ()
    """Whose version it is: published, corrected."""

    @classmethod
    def of(cls, column: str) -> Column:
        """Take a name apart at its points, those inside numbers and inside `package.module:Class` excepted."""
        split, _, rest = column.partition(".")
        if is_import(rest):
            return cls(split, rest)
        *whose, name = SEPARATOR.split(column)
        return cls("".join(whose[:1]), name, tuple(whose[1:]))

    @property
    def facts(self) -> type[Measure] | Score | None:
        """What a registered measure or score of this name says of itself; of a spectrum, what its value is: λ₁."""
        if self.name in MEASURES:
            return MEASURES[MEASURES[self.name].same_value_as or self.name]
        if self.name in SCORES:
            return SCORES[self.name]
        return None

    @property
    def title(self) -> str:
        """What people call the number, without its split; a name that is not registered as it is written."""
        own = self.facts.title if self.facts else self.name.rpartition(":")[2].replace("_", " ")
        source = ["of the spectrum"] if self.name in MEASURES and MEASURES[self.name].same_value_as else []
        return ", ".join([own, *source, *(text.replace("_", " ") for text in self.variants)])


def of_predictions(name: str) -> bool:
    """Whether the measure of this key depends on predictions alone.

    >>> of_predictions("ece"), of_predictions("hessian_trace"), of_predictions("my own")
    (True, False, False)
    """
    return name in MEASURES and MEASURES[name].family.is_of_predictions


def label(column: str) -> str:
    """What a reader of the papers would call it; the split is named where it is not the usual one.

    >>> label("train.hessian_trace"), label("test.ece"), label("gap.error"), label("train.loss")
    ('Hessian trace', 'test ECE', 'gap in error', 'train loss')
    >>> label("validation.fisher_rao"), label("train.corrected.igs"), label("train.my_package.sharpness:Mine")
    ('Fisher–Rao norm (validation)', 'IGS, corrected', 'Mine')
    >>> label("train.random_sharpness_0.05"), label("train.published.hessian_bottom_eigenvalue"), label("train.ggn_spectrum")
    ('random sharpness 0.05', 'Hessian λ_min, published', 'GGN λ₁, of the spectrum')
    """
    parts = Column.of(column)
    split, shown = parts.split, parts.title
    if not split:
        return shown
    if split == "gap":
        return f"gap in {shown}"
    if split in SHAPES:
        return f"{shown} ({SHAPES[split]})" if SHAPES[split] else shown
    if of_predictions(parts.name) or split not in DATA_SPLITS:
        return f"{split.replace('_', ' ')} {shown}"
    return shown if split == "train" else f"{shown} ({split})"


def titles_of(columns: Sequence[str]) -> dict[str, str]:
    """Labels, or the columns' own names where two would be called the same."""
    shown = [label(c) for c in columns]
    return {c: c if shown.count(name) > 1 else name for c, name in zip(columns, shown, strict=True)}


def better(column: str) -> int:
    """−1 where lower values are better, +1 where higher ones are, 0 where neither is, or where it is not known.

    >>> better("test.error"), better("corrupted.accuracy"), better("train.hessian_trace"), better("gap.mine")
    (-1, 1, 0, -1)
    >>> better("consistency.disagreement"), better("consistency.linear_cka"), better("shapes.hd95"), better("shapes.variety")
    (-1, 1, -1, 0)
    """
    parts = Column.of(column)
    if parts.facts is None:
        return BETTER["lower" if parts.split == "gap" else None]
    return BETTER[parts.facts.better]


def measures_behind(records: Iterable[Record]) -> dict[str, str]:
    """The key of the measure behind a column that the study gave a name of its own, as its spec says.

    `test: {ece_10_bins: {measure: ece, n_bins: 10}}` gives {"test.ece_10_bins": "ece"}.
    """
    found: dict[str, str] = {}
    for record in records:
        splits = _inside(_inside(record.spec, "measuring"), "splits")
        for split in splits:
            measures = _inside(_inside(splits, split), "measures")
            found |= {
                f"{split}.{name}": str(key) for name in measures if (key := _inside(measures, name).get("measure"))
            }
    return found


def _inside(plain: Mapping[str, Plain], key: str) -> Mapping[str, Plain]:
    value = plain.get(key)
    return value if isinstance(value, Mapping) else {}


def value_columns(frame: pd.DataFrame) -> list[str]:
    """The columns that hold measured numbers."""
    return [c for c in frame.columns if c not in IDENTITY and not c.startswith("axis.") and frame[c].notna().any()]


def default_outcomes(frame: pd.DataFrame) -> list[str]:
    """Held-out outcomes, one of each kind: no accuracy beside an error, and none that ranks the models as another does.

    >>> default_outcomes(pd.DataFrame({"test.loss": [1.0], "test.accuracy": [0.9], "test.error": [0.1], "train.l2_norm": [3.0]}))
    ['test.error', 'test.loss']
    """
    found: list[str] = []
    known = value_columns(frame)
    for column in sorted(known, key=_order):
        split, _, name = column.partition(".")
        if split not in HELD_OUT or (split in (*DATA_SPLITS, "gap") and not of_predictions(name)):
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
    """Whether one is the other times a positive constant, for at least three models that differ."""
    x, y = (column.to_numpy(dtype=float) for column in (first, second))
    both = np.isfinite(x) & np.isfinite(y)
    if (np.isfinite(x) != np.isfinite(y)).any() or both.sum() < SOME or len(np.unique(x[both])) < SOME:
        return False
    (x, _), (y, _) = scaled(x[both]), scaled(y[both])
    factor = float(x @ y / (x @ x))
    return factor > 0 and bool(np.allclose(y, factor * x, rtol=SAME, atol=0))


def default_measures(
    frame: pd.DataFrame, outcomes: Sequence[str], behind: Mapping[str, str] = MappingProxyType({})
) -> list[str]:
    """Everything measured on the training samples, except measures of predictions.

    `behind` gives the measures of columns that the study named itself (`measures_behind`). One that repeats the value of another
    measure, as a spectrum does the top eigenvalue's, is left out where that one was measured.
    """
    known = value_columns(frame)
    found: list[str] = []
    for column in known:
        split, _, name = column.partition(".")
        key = behind.get(column, Column.of(column).name)
        if column in outcomes or of_predictions(key) or split not in DATA_SPLITS:
            continue
        if split != "train" and f"train.{name}" in known:
            continue
        same = MEASURES[key].same_value_as if key in MEASURES else ""
        if not (same and f"{split}.{same}" in known):
            found.append(column)
    return found


def _order(column: str) -> tuple[int, int, int]:
    split, _, name = column.partition(".")
    first = FIRST.index(column) if column in FIRST else len(FIRST)
    return (
        first,
        HELD_OUT.index(split) if split in HELD_OUT else len(HELD_OUT),
        SHOWN_FIRST.index(name) if name in SHOWN_FIRST else len(SHOWN_FIRST),
    )


def _repeats(frame: pd.DataFrame, column: str, others: Iterable[str]) -> bool:
    order = frame[column].rank(method="dense")
    return frame[column].nunique() > 1 and any(order.equals(frame[other].rank(method="dense")) for other in others)
