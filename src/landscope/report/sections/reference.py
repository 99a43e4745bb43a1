"""A paper's numbers beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from landscope.report.data.cohorts import Cohorts
from landscope.report.page.blocks import Cell, Heading, Section, Table, words


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
    """Published numbers and ours side by side, in the paper's order and units."""
    heads = [*words("table", "condition", "metric"), *map(Heading, ("paper", "as published", "corrected", "n"))]
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
    """The number of a condition; "+temp" marks its temperature-scaled models."""
    base = condition.removesuffix("+temp").strip()
    return study.conditions.index(base) if base in study.conditions else None


def _shown(metric: str) -> str:
    """A metric's name with its unit.

    >>> _shown("test_error_pct"), _shown("train_loss_x100"), _shown("weight_norm")
    ('test error (%)', 'train loss (×100)', 'weight norm')
    """
    for suffix, unit in (("_pct", " (%)"), ("_x100", " (×100)")):
        if metric.endswith(suffix):
            return metric.removesuffix(suffix).replace("_", " ") + unit
    return metric.replace("_", " ")
