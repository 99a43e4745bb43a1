"""A paper's numbers beside ours.

Papers name and scale their columns in their own way. A metric is read as [train_|test_|val_]NAME[_pct|_x100], NAME being ours or
one of `NAMES`; "spearman ece~igs before temp" is a correlation of two of them. What is left is not compared, and said so.
A condition that ends in "+temp" is the temperature-scaled model of that condition.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np
import pandas as pd

from landscope.analysis import correlation
from landscope.analysis.coefficients import Method, mean_and_deviation
from landscope.core.text import significant
from landscope.report.data.cohorts import Cohort, Cohorts, estimate_of
from landscope.report.data.columns import value_columns
from landscope.report.page.blocks import Block, Cell, Head, Prose, Section, Table

__all__ = [
    "COLUMNS",
    "CORRELATION",
    "SCALES",
    "SPLITS",
    "ComparedNumber",
    "Comparison",
    "compared_section",
    "comparisons",
    "published_section",
]

COLUMNS = ("paper", "table", "data", "model", "condition", "metric", "value", "spread")
"""Of the table of published numbers."""
NAMES = {"weight_norm": "l2_norm", "log_igs": "igs:mean_log", "generalisation_gap": "gap"}
"""Papers' names of our measures; after a colon: an entry of the estimate's details."""
SPLITS = {"train": "train", "test": "test", "val": "validation", "validation": "validation"}
SCALES = {"_pct": 100.0, "_x100": 100.0}
CORRELATION = re.compile(r"(spearman|kendall_tau|pearson|p) (\S+)~(\S+)(?: (before|after) temp)?")
ROWS = 400


@dataclass(frozen=True)
class ComparedNumber:
    """A published number and ours, as its code computed it and corrected: texts ("14.9 ± 0.2"), a dash where there is none."""

    table: str
    condition: str
    metric: str
    paper: str
    published: str
    corrected: str
    n: int


def compared_section(study: Cohorts, compared: Sequence[ComparedNumber]) -> Section:
    """Numbers that were set side by side before, in the paper's order and units."""
    heads = [
        *(Head(text, numeric=False) for text in ("table", "condition", "metric")),
        *(Head(text) for text in ("paper", "as published", "corrected", "n")),
    ]
    rows = [
        [
            Cell(number.table),
            Cell(number.condition, condition=_place(study, number.condition)),
            Cell(_shown(number.metric), title=number.metric),
            *(_value(text) for text in (number.paper, number.published, number.corrected)),
            Cell(str(number.n)),
        ]
        for number in compared
    ]
    caption = "The paper's numbers, ours as its code computed them, and ours corrected; mean ± standard deviation over n models."
    table = Table(heads, rows, caption, key="published-table")
    return Section("published", "Beside the published numbers", [table] if rows else [])


def _value(text: str) -> Cell:
    value, _, spread = text.replace("-", "−").partition(" ± ")
    return Cell(value, spread)


def _place(study: Cohorts, condition: str) -> int | None:
    base = condition.removesuffix("+temp").strip()
    return study.conditions.index(base) if base in study.conditions else None


@dataclass(frozen=True)
class Comparison:
    """A published number and ours; `ours` is NaN where we have none."""

    paper: str
    table: str
    condition: str
    metric: str
    value: float
    spread: float
    ours: float
    ours_spread: float
    n: int

    @property
    def deviations(self) -> float:
        """How many standard deviations of both together we are apart; NaN where no spread is known."""
        both = math.hypot(*(s for s in (self.spread, self.ours_spread) if math.isfinite(s)))
        return (self.ours - self.value) / both if both > 0 else math.nan


def comparisons(study: Cohorts, published: pd.DataFrame, columns: Mapping[str, str] | None = None) -> list[Comparison]:
    """Every published number with ours; `columns` names the column for metrics that are not found by their names."""
    missing = [name for name in ("condition", "metric", "value") if name not in published]
    if missing:
        raise ValueError(
            f"the table of published numbers needs the columns {', '.join(COLUMNS)}; {missing[0]} is missing"
        )
    found = []
    for row in published.to_dict("records"):
        condition, metric = str(row["condition"]), str(row["metric"])
        ours, spread, n = _ours(study, condition, metric, columns or {})
        found.append(
            Comparison(
                str(row.get("paper", "")),
                str(row.get("table", "")),
                condition,
                metric,
                _number(row["value"]),
                _number(row.get("spread")),
                ours,
                spread,
                n,
            )
        )
    return found


def published_section(
    study: Cohorts, published: pd.DataFrame | None, columns: Mapping[str, str] | None = None
) -> Section:
    """One table, in the paper's order."""
    every = [] if published is None or published.empty else comparisons(study, published, columns)
    matched = [c for c in every if math.isfinite(c.ours)]
    blocks: list[Block] = []
    if matched:
        close = sum(abs(c.deviations) <= 2 for c in matched if math.isfinite(c.deviations))
        known = sum(math.isfinite(c.deviations) for c in matched)
        blocks = [
            Table(
                [
                    Head("condition", numeric=False),
                    Head("metric", numeric=False),
                    Head("table", numeric=False),
                    Head("paper"),
                    Head("ours"),
                    Head("n"),
                    Head("apart", unit="in std"),
                ],
                [_row(study, c) for c in matched[:ROWS]],
                f"Published numbers beside those of this study, in the paper's units, ± standard deviation over models. "
                f"{close} of {known} with a known spread lie within two standard deviations of both together.",
                key="published-table",
            )
        ]
    if every and len(matched) < len(every):
        blocks.append(
            Prose(
                f"{len(every) - len(matched)} of {len(every)} published numbers have no counterpart here.", tone="note"
            )
        )
    return Section("published", "Beside the published numbers", blocks)


def _row(study: Cohorts, c: Comparison) -> list[Cell]:
    apart = c.deviations
    return [
        Cell(c.condition, condition=_place(study, c.condition)),
        Cell(_shown(c.metric), title=c.metric),
        Cell(" ".join(part for part in (c.paper, c.table) if part and part != "nan")),
        Cell(significant(c.value), significant(c.spread, 2) if math.isfinite(c.spread) else ""),
        Cell(significant(c.ours), significant(c.ours_spread, 2) if math.isfinite(c.ours_spread) else ""),
        Cell(str(c.n)),
        Cell(f"{apart:+.1f}".replace("-", "−") if math.isfinite(apart) else "–", mark="bad" if abs(apart) > 2 else ""),
    ]


def _shown(metric: str) -> str:
    """A metric's name with its unit.

    >>> _shown("test_error_pct"), _shown("train_loss_x100"), _shown("weight_norm")
    ('test error (%)', 'train loss (×100)', 'weight norm')
    """
    for suffix, unit in (("_pct", " (%)"), ("_x100", " (×100)")):
        if metric.endswith(suffix):
            return metric.removesuffix(suffix).replace("_", " ") + unit
    return metric.replace("_", " ")


def _ours(study: Cohorts, condition: str, metric: str, columns: Mapping[str, str]) -> tuple[float, float, int]:
    scaled = condition.endswith("+temp")
    correlated = CORRELATION.fullmatch(metric)
    if correlated is not None:
        return _correlated(study, correlated, columns)
    cohort = _cohort(study, scaled)
    if cohort is None:
        return math.nan, math.nan, 0
    column, scale = _column(cohort, metric, columns)
    members = cohort.frame["condition"] == condition.removesuffix("+temp").strip()
    values = _values(cohort, column)[members.to_numpy()] * scale
    values = values[np.isfinite(values)]
    if not len(values):
        return math.nan, math.nan, 0
    return *mean_and_deviation(values), len(values)


def _correlated(study: Cohorts, found: re.Match[str], columns: Mapping[str, str]) -> tuple[float, float, int]:
    kind, first, second, when = found.groups()
    cohort = _cohort(study, when == "after")
    if cohort is None:
        return math.nan, math.nan, 0
    methods = {"kendall_tau": "kendall", "spearman": "spearman", "pearson": "pearson"}
    method = cast(Method, methods.get(kind, "spearman"))
    x, y = (_values(cohort, _column(cohort, name, columns)[0]) for name in (first, second))
    result = correlation(x, y, method, resamples=0)
    value = result.p_value if kind == "p" else result.value
    return (math.nan if value is None else value), math.nan, result.n


def _cohort(study: Cohorts, scaled: bool) -> Cohort | None:
    kind = next(iter(study.main.members.values())).checkpoint
    for cohort in study.cohorts:
        first = next(iter(cohort.members.values()))
        if first.checkpoint == kind and (first.temperature != 1.0) == scaled:
            return cohort
    return None


def _column(cohort: Cohort, metric: str, columns: Mapping[str, str]) -> tuple[str, float]:
    """Our column for a metric, and the paper's scale; an empty name where there is none."""
    name, scale = metric, 1.0
    for suffix, factor in SCALES.items():
        if name.endswith(suffix):
            name, scale = name.removesuffix(suffix), factor
    if metric in columns:
        return columns[metric], scale
    first, _, rest = name.partition("_")
    splits = [SPLITS[first]] if first in SPLITS and rest else []
    name = rest if splits else name
    ours = NAMES.get(name, name)
    known = set(value_columns(cohort.frame))
    if ours == "gap":
        return ("gap.error" if "gap.error" in known else ""), scale
    base = ours.partition(":")[0]
    wanted = splits or (
        ["test", "train"] if base in ("ece", "error", "accuracy", "loss", "brier") else ["train", "test"]
    )
    return next((f"{split}.{ours}" for split in wanted if f"{split}.{base}" in known), ""), scale


def _values(cohort: Cohort, column: str) -> np.ndarray:
    name, _, detail = column.partition(":")
    if name not in cohort.frame:
        return np.full(len(cohort), np.nan)
    if not detail:
        return cohort.frame[name].to_numpy(dtype=np.float64)
    estimates = (estimate_of(subject, name) for subject in cohort.members.values())
    return np.array([math.nan if e is None else _number(e.details.get(detail)) for e in estimates])


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float, np.number)) else math.nan
