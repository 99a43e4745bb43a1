"""Models that may be set against each other: one for each run, at the same checkpoint and kind of temperature.

A run measured as "final" and as "best", before and after temperature scaling, gives four rows that are not four independent
models. Each kind is a cohort of its own, and a correlation never leaves its cohort. A model whose temperature could not be fitted
was measured unscaled: it is left out of the scaled ones, with a note.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TypeAlias, TypeVar

import pandas as pd

from landscope.core.errors import OperandError, UnknownNameError
from landscope.core.estimate import Estimate
from landscope.core.text import counted
from landscope.report.data.columns import (
    Column,
    default_measures,
    default_outcomes,
    measures_behind,
    repeated,
    value_columns,
)
from landscope.studies.record import MeasuredModel, Record, wide_table

SCALED, PUBLISHED, UNFITTED = "temperature-scaled", "at the paper's temperature", "without its temperature"
PREFERRED = ("hessian", "ggn", "fisher")
T = TypeVar("T")
Groups: TypeAlias = dict[tuple[str, str, int], dict[int, MeasuredModel]]
"""By checkpoint, kind of temperature and how many of the same kind a run has before."""


@dataclass(frozen=True, eq=False)
class Cohort:
    """`frame` has a row for each member, indexed by the number of its run in the study; `errors` the same shape of error bars."""

    name: str
    members: Mapping[int, MeasuredModel]
    frame: pd.DataFrame
    errors: pd.DataFrame

    def __len__(self) -> int:
        return len(self.members)


@dataclass(frozen=True, eq=False)
class Cohorts:
    """All that a report is made of: the runs, their conditions in order of appearance, the cohorts, the columns in question."""

    records: Sequence[Record]
    conditions: tuple[str, ...]
    cohorts: tuple[Cohort, ...]
    measures: tuple[str, ...]
    outcomes: tuple[str, ...]
    repeats: Mapping[str, str]
    """Measures not asked for by name that equal another up to a constant factor, and which that is."""
    notes: tuple[str, ...] = ()
    """What a reader must know about the cohorts."""

    @property
    def main(self) -> Cohort:
        """The cohort that the question is asked of: of the checkpoint in question the largest, and of equal ones the first."""
        return self.cohorts[0]

    @cached_property
    def condition_of(self) -> tuple[int, ...]:
        """The number of its condition, for every run."""
        place = {name: index for index, name in enumerate(self.conditions)}
        return tuple(place[record.condition] for record in self.records)

    def by_condition(self, found: Mapping[int, T]) -> dict[str, list[T]]:
        """What is known of runs, sorted by the names of their conditions."""
        sorted_: dict[str, list[T]] = {}
        for run, value in found.items():
            sorted_.setdefault(self.conditions[self.condition_of[run]], []).append(value)
        return sorted_

    def run_name(self, run: int) -> str:
        """What a run is called: its condition and seed."""
        record = self.records[run]
        return f"{record.condition} · seed {record.seed}"

    @classmethod
    def of(
        cls,
        records: Sequence[Record],
        measures: Sequence[str] | None = None,
        outcomes: Sequence[str] | None = None,
        checkpoint: str | None = None,
    ) -> Cohorts:
        """Sort the records' models into cohorts; columns that are not given are chosen by what they are, as is a checkpoint."""
        if not records:
            raise OperandError("a report needs at least one record, got none. Run the study first")
        groups: Groups = {}
        for run, record in enumerate(records):
            seen: Counter[tuple[str, str]] = Counter()
            for subject in record.subjects:
                kind = (subject.checkpoint, _temperature(subject))
                groups.setdefault((*kind, seen[kind]), {})[run] = subject
                seen[kind] += 1
        groups, notes = _without_unfitted(groups)
        if not groups:
            raise OperandError("none of the records holds a measured model; measure the study's models first")
        kinds = dict.fromkeys(kind for kind, *_ in groups)
        if checkpoint is not None and checkpoint not in kinds:
            raise UnknownNameError.among("checkpoint of the records", checkpoint, kinds)
        ordered = sorted(groups.items(), key=lambda item: (checkpoint not in (None, item[0][0]), -len(item[1])))
        cohorts = tuple(_cohort(records, key, members) for key, members in ordered)
        named = {column for cohort in cohorts for column in cohort.frame.columns}
        for column in (*(measures or ()), *(outcomes or ())):
            if column not in named:
                raise UnknownNameError.among("column of the study's table", column, named)
        frame = cohorts[0].frame
        known = set(value_columns(frame))
        chosen = [c for c in (default_outcomes(frame) if outcomes is None else outcomes) if c in known]
        if measures is None:
            asked = default_measures(frame, chosen, measures_behind(records))
        else:
            asked = [c for c in measures if c in known]
        conditions = tuple(dict.fromkeys(record.condition for record in records))
        repeats = repeated(frame, sorted(asked, key=_preference)) if measures is None else {}
        return cls(tuple(records), conditions, cohorts, tuple(asked), tuple(chosen), repeats, notes)


def _preference(column: str) -> int:
    """Where matrices have the same numbers, which is shown: the Hessian, then the Gauss–Newton matrix, then the Fisher matrix."""
    matrix = getattr(Column.of(column).facts, "matrix", "")
    return PREFERRED.index(matrix) if matrix in PREFERRED else len(PREFERRED)


def estimate_of(subject: MeasuredModel, column: str) -> Estimate | None:
    """The estimate behind a column `split.measure`, where the model has one."""
    split, _, name = column.partition(".")
    report = subject.reports.get(split)
    return None if report is None else report.estimates.get(name)


def error_bar(estimate: Estimate) -> float:
    """One standard error: the estimator's or the data's, whichever is larger; NaN without a value, or where neither is known.

    >>> error_bar(Estimate(1.0, stderr=0.1, data_stderr=0.3)), error_bar(Estimate(1.0, stderr=None))
    (0.3, nan)
    """
    known = [error for error in (estimate.stderr, estimate.data_stderr) if error is not None]
    return max(known, default=math.nan) if estimate.status.has_value else math.nan


def _temperature(subject: MeasuredModel) -> str:
    """Which kind of temperature a model was measured at; empty for 1."""
    fit = estimate_of(subject, "calibration.temperature")
    if fit is None:
        return SCALED if subject.temperature != 1.0 else ""
    if not fit.status.has_value:
        return UNFITTED
    return PUBLISHED if fit.details.get("as_published") else SCALED


def _without_unfitted(groups: Groups) -> tuple[Groups, tuple[str, ...]]:
    """Models to which no temperature could be fitted are left out, or count as unscaled where there are no others."""
    kept = {key: members for key, members in groups.items() if key[1] != UNFITTED}
    notes = []
    for (checkpoint, kind, again), members in groups.items():
        if kind != UNFITTED or again:
            continue
        fits = [estimate_of(subject, "calibration.temperature") for subject in members.values()]
        reason = Counter(fit.reason for fit in fits if fit is not None).most_common(1)[0][0]
        others = [own for (other, *_), own in kept.items() if other == checkpoint]
        if others:
            total = len(set(members).union(*others))
            what = (
                f"{len(members)} of {counted(total, 'model')} ({checkpoint}), left out of the temperature-scaled ones"
            )
        else:
            kept[checkpoint, "", 0] = members
            what = f"any model ({checkpoint}), shown as they were trained"
        notes.append(f"No temperature could be fitted to {what}: {reason}.")
    return kept, tuple(notes)


def _cohort(records: Sequence[Record], key: tuple[str, str, int], members: Mapping[int, MeasuredModel]) -> Cohort:
    checkpoint, temperature, again = key
    name = ", ".join(filter(None, (checkpoint, temperature))) + (f" ({again + 1})" if again else "")
    frame = wide_table(replace(records[run], subjects=(subject,)) for run, subject in members.items())
    frame.index = pd.Index(list(members))
    rows = []
    for subject in members.values():
        row = {
            f"{split}.{measure}": error_bar(estimate)
            for split, report in subject.reports.items()
            for measure, estimate in report.items()
        }
        for measure in ("loss", "error"):
            parts = [row.get(f"{split}.{measure}") for split in ("train", "test")]
            if None not in parts:
                row[f"gap.{measure}"] = math.hypot(*(part for part in parts if part is not None))
        rows.append(row)
    errors = pd.DataFrame(rows, index=frame.index)
    return Cohort(name, members, frame, errors.reindex(columns=value_columns(frame)))
