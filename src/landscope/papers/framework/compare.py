"""A paper's numbers beside ours: as its code computed them, and corrected, in the paper's units.

A metric of a paper is read as [train_|test_|val_]NAME[_pct|_x100]. NAME is a measure of the paper's preset (then both of our
values are there), a column that the part names, or a measure of ours. A column "train.published.NAME" stands for a measure of the
preset, "SPLIT.gap" for the error on a split less that on the training rows. "max_NAME" is the largest value of a condition,
"kendall_tau a~b" a correlation over the models of a condition of ours that is named, and over all models otherwise.
A condition that ends in "+temp" is the temperature-scaled model of that condition.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from landscope.analysis import Summary, correlation
from landscope.analysis.coefficients import Method
from landscope.core.estimate import Estimate
from landscope.papers.framework.paper import Paper, Part
from landscope.report.sections.conditions import ComparedNumber
from landscope.studies.grid import runs_of
from landscope.studies.record import MeasuredModel, Record

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["compare", "in_unit", "printed", "published_numbers", "published_of"]

SPLITS = {"train": "train", "test": "test", "val": "validation", "validation": "validation"}
SCALES = {"_pct": 100.0, "_x100": 100.0}
CORRELATION = re.compile(r"(spearman|kendall_tau|pearson|p) (\S+)~(\S+)(?: (before|after) temp)?")
TEMPERATURE = "+temp"
LARGEST = "max_"
PLAIN = 5
"""Decimals beyond which numbers are written with their power of ten."""
ROUNDING = 1e-12
"""A relative spread that only the adding up of equal values leaves."""

Read = Callable[[MeasuredModel], float]
Models = list[tuple[Record, MeasuredModel]]


@cache
def _table() -> pd.DataFrame:
    import pandas as pd

    table = pd.read_csv(Path(__file__).with_name("paper_numbers.csv"), dtype=str, encoding="utf-8")
    spread = [f" ± {text}" if isinstance(text, str) else "" for text in table["spread"]]
    numbers = {column: pd.to_numeric(table[column]) for column in ("value", "spread")}
    return table.assign(written=table["value"] + spread, **numbers)


def published_numbers(paper: str | None = None) -> pd.DataFrame:
    """One row per number: paper, table, data, model, condition, metric, value, spread, and both as they are written there.

    >>> numbers = published_numbers("false-friend")
    >>> float(numbers[(numbers.model == "softmax regression") & (numbers.metric == "hessian_top_eigenvalue")].value.max())
    15.84
    """
    table = _table()
    return table if paper is None else table[table["paper"] == paper].reset_index(drop=True)


def printed(paper: str, table: str, condition: str, metric: str, *, data: str, n: int, scale: float = 1.0) -> Summary:
    """A mean as a paper prints it, with its spread over `n` runs, times `scale`.

    >>> printed("explicit-regularisation", "1 early stopping", "baseline", "test_error_pct", data="cifar10", n=3)
    Summary(mean=14.4, spread=0.1, n=3)
    """
    rows = published_numbers(paper)
    chosen = {"table": table, "condition": condition, "metric": metric, "data": data}
    for column, value in chosen.items():
        rows = rows[rows[column] == value]
    (row,) = rows.to_dict("records")
    return Summary(scale * float(row["value"]), scale * float(row["spread"]), n)


def published_of(paper: str, part: Part) -> pd.DataFrame:
    """The numbers that stand beside a part, under our names of its conditions."""
    table = published_numbers(paper)
    if not part.published.rows:
        return table.iloc[:0]
    for column, wanted in part.published.rows.items():
        choices = (wanted,) if isinstance(wanted, str) else wanted
        table = table[table[column].isin(choices)]
    return table.assign(
        condition=[part.published.conditions.get(name, name) for name in table["condition"]]
    ).reset_index(drop=True)


def compare(paper: Paper, part: Part, records: Sequence[Record]) -> list[ComparedNumber]:
    """Every published number of the part that has a counterpart among the records."""
    rows = published_of(paper.name, part).to_dict("records")
    first = part.study.measuring.checkpoints[0]
    found = []
    for row in rows:
        condition, metric, table = str(row["condition"]), str(row["metric"]), str(row["table"])
        checkpoint = part.published.checkpoints.get(metric, part.published.checkpoints.get(table, first))
        of_data = f"{row['data']} {metric}"
        read = of_data if of_data in part.published.columns else metric
        texts = _texts(paper, part, records, condition, read, checkpoint)
        if texts is not None:
            right = part.published.corrected.get(condition, condition)
            named = condition if right == condition else f"{condition}; corrected: {right}"
            found.append(ComparedNumber(table, named, read, str(row["written"]), *texts))
    return found


def _texts(
    paper: Paper, part: Part, records: Sequence[Record], condition: str, metric: str, checkpoint: str
) -> tuple[str, str, int] | None:
    correlated = CORRELATION.fullmatch(metric)
    if correlated is not None:
        return _correlation_texts(paper, part, records, condition, correlated, checkpoint)
    largest, metric = metric.startswith(LARGEST), metric.removeprefix(LARGEST)
    scaled = condition.endswith(TEMPERATURE)
    name = condition.removesuffix(TEMPERATURE)
    own = (name, part.published.corrected.get(name, name))
    as_published, corrected = (
        _values((subject for record, subject in subjects if record.condition == condition), read)
        for subjects, condition, read in zip(
            _subjects(records, checkpoint, scaled, part), own, _readers(paper, part, metric), strict=True
        )
    )
    if not as_published and not corrected:
        return None
    n = max(len(as_published), len(corrected))
    ours = [[max(values)] if values and largest else values for values in (as_published, corrected)]
    first, second = (
        _shown(shown) + _fewer(len(values), n) for shown, values in zip(ours, (as_published, corrected), strict=True)
    )
    return first, second, n


def _fewer(models: int, n: int) -> str:
    return f" (n = {models})" if 0 < models < n else ""


def _correlation_texts(
    paper: Paper, part: Part, records: Sequence[Record], condition: str, found: re.Match[str], checkpoint: str
) -> tuple[str, str, int] | None:
    """Over the models of the condition that is named, as published and corrected, or over all of them."""
    kind, first, second, when = found.groups()
    spearman = any(str(name).startswith("spearman") for name in published_of(paper.name, part)["metric"])
    methods: dict[str, Method] = {"kendall_tau": "kendall", "pearson": "pearson", "spearman": "spearman"}
    method = methods.get(kind, "spearman" if spearman else "kendall")
    known = {run.condition for run in runs_of(part.study)}
    columns = zip(
        (condition, part.published.corrected.get(condition, condition)),
        _subjects(records, checkpoint, when == "after", part),
        _readers(paper, part, first),
        _readers(paper, part, second),
        strict=True,
    )
    texts, n = [], 0
    for own, subjects, x_of, y_of in columns:
        chosen = [subject for record, subject in subjects if record.condition == own or condition not in known]
        x, y = (np.array([read(subject) for subject in chosen]) for read in (x_of, y_of))
        result = correlation(x, y, method)
        value = result.p_value if kind == "p" else result.value
        n = max(n, result.n)
        interval = f" [{result.low:.2f}, {result.high:.2f}]" if result.low is not None else ""
        texts.append("–" if value is None else f"{value:.3g}" if kind == "p" else f"{value:.3f}{interval}")
    return (texts[0], texts[1], n) if n >= 3 else None


def _subjects(records: Sequence[Record], checkpoint: str, scaled: bool, part: Part) -> tuple[Models, Models]:
    """Models of one kind, as published and corrected. In a record they come at T = 1, at our temperature, at the paper's."""
    places = {0: (), 1: (1, 1), 2: (2, 1)}[len(part.study.measuring.temperature_fits) - 1] if scaled else (0, 0)
    found = [
        [
            (record, kind[place])
            for record in records
            if place < len(kind := [subject for subject in record.subjects if subject.checkpoint == checkpoint])
        ]
        for place in places
    ]
    return (found[0], found[1]) if found else ([], [])


def _readers(paper: Paper, part: Part, metric: str) -> tuple[Read, Read]:
    """How the metric is read from a model: as published, and corrected."""
    name, scale = metric, 1.0
    for suffix, factor in SCALES.items():
        if name.endswith(suffix):
            name, scale = name.removesuffix(suffix), factor
    split, _, measure = part.published.columns.get(metric, "").partition(".")
    if measure == "gap":
        return _gap(split, scale), _gap(split, scale)
    if measure.startswith("published."):
        name = measure.removeprefix("published.")
    elif measure:
        one = _reader(split, measure, scale)
        return one, one
    if name in paper.measures:
        unit = paper.measures[name].unit

        def corrected(subject: MeasuredModel) -> float:
            estimate = _estimate(subject, "train", f"corrected.{name}")
            return math.nan if estimate is None else scale * in_unit(estimate, unit)

        return _reader("train", f"published.{name}", scale), corrected
    first, _, rest = name.partition("_")
    held_out = name in ("ece", "error", "accuracy", "loss", "brier")
    split, measure = (SPLITS[first], rest) if first in SPLITS and rest else ("test" if held_out else "train", name)
    one = _reader(split, measure, scale)
    return one, one


def in_unit(estimate: Estimate, unit: str) -> float:
    """An estimate in the unit of a paper's table.

    >>> in_unit(Estimate(3.0, details={"per_parameter": 0.5}), "value * per_parameter")
    1.5
    """
    if not unit:
        return estimate.value
    factors = (estimate.value if name == "value" else estimate.details[name] for name in unit.split(" * "))
    return math.prod(map(float, factors))  # type: ignore[arg-type]


def _estimate(subject: MeasuredModel, split: str, measure: str) -> Estimate | None:
    report = subject.reports.get(split)
    estimate = report.estimates.get(measure) if report is not None else None
    return estimate if estimate is not None and estimate.status.has_value else None


def _reader(split: str, measure: str, scale: float) -> Read:
    def read(subject: MeasuredModel) -> float:
        estimate = _estimate(subject, split, measure)
        return math.nan if estimate is None else scale * estimate.value

    return read


def _gap(split: str, scale: float) -> Read:
    """Error on the held-out rows of a split less error on the training rows."""

    def read(subject: MeasuredModel) -> float:
        train, held_out = (_estimate(subject, name, "error") for name in ("train", split))
        return math.nan if train is None or held_out is None else scale * (held_out.value - train.value)

    return read


def _values(subjects: Iterable[MeasuredModel], read: Read) -> list[float]:
    return [value for subject in subjects if math.isfinite(value := read(subject))]


def _shown(values: Sequence[float]) -> str:
    """Mean ± standard deviation with two digits of the spread.

    >>> _shown([14.2, 14.9, 15.1]), _shown([5.4e-6, 2.5e-6]), _shown([0.5])
    ('14.73 ± 0.47', '4.0e-06 ± 2.1e-06', '0.5')
    """
    if not values:
        return "–"
    mean = float(np.mean(values))
    spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
    if not math.isfinite(spread) or spread <= ROUNDING * abs(mean):
        return f"{mean:.4g}"
    decimals = max(0, 1 - math.floor(math.log10(spread)))
    if decimals <= PLAIN:
        return f"{mean:.{decimals}f} ± {spread:.{decimals}f}"
    before = math.floor(math.log10(abs(mean) or spread))
    return f"{mean:.{max(1, decimals + before)}e} ± {spread:.1e}"
