"""Which measures go with which outcomes, cohort by cohort: `landscope.analysis.correlate` under the names that readers see.

Runs of one condition are not independent of each other, so the units are conditions where a study has several: their means are
correlated, and beside that stands what holds inside conditions. A study of one condition correlates its models. Models that have
not learnt are left out and counted. The partial correlation given the training loss allows for the recorded errors of that loss.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from landscope.analysis import (
    Correlation,
    CorrelationTable,
    Finding,
    Learnt,
    correlate,
    guessing,
    learnt,
)
from landscope.analysis.coefficients import Method
from landscope.core.errors import UnknownNameError
from landscope.report.data.cohorts import Cohort, Cohorts
from landscope.report.data.columns import titles_of, value_columns

FEW = 300
"""Models up to which one axis at a time is asked of every pair: the report of a thousand takes seconds."""
ENOUGH = 3
"""Units below which there is no correlation at all."""
LOSS = "train.loss"
UNITS = 3
"""Below which no correlation is defined."""


@dataclass(frozen=True)
class Associations:
    """The findings of one cohort; `titles` maps columns to the names under which they are filed."""

    cohort: Cohort
    used: Cohort
    """Those of its models that have learnt."""
    titles: dict[str, str]
    measures: tuple[str, ...]
    outcomes: tuple[str, ...]
    table: CorrelationTable
    left_out: str = ""
    """How many models have not learnt, in a sentence; empty where all have."""

    @property
    def tests(self) -> int:
        """How many correlations were adjusted for together: those that have a p-value."""
        return self.table.findings[0].tests

    @property
    def sizes(self) -> list[int]:
        """The numbers of units that the correlations rest on, without those that have none."""
        return [f.correlation.n for f in self.table if f.correlation.p_value is not None]

    @property
    def undrawn(self) -> bool:
        """Whether there are too few units for any coefficient, so that a figure of them would be empty."""
        return max((f.correlation.n for f in self.table), default=0) < UNITS

    @property
    def by_condition(self) -> bool:
        return self.table.findings[0].within is not None

    @property
    def units(self) -> str:
        """On what the correlations rest: "12 conditions (36 models)", "7 of 40 models"."""
        if not self.by_condition:
            return units_used(self.sizes, len(self.used), "models")
        models = len(self.used)
        conditions = int(self.used.frame["condition"].nunique())
        shown = units_used(self.sizes, conditions, "conditions")
        return shown if models == conditions else f"{shown} ({models} models)"

    @property
    def of_means(self) -> str:
        """What is correlated, where it is not the models."""
        return " between conditions (of their means)" if self.by_condition else ""

    def finding(self, measure: str, outcome: str) -> Finding:
        return self.table[self.titles[measure], self.titles[outcome]]

    def sure(self, measure: str, outcome: str) -> bool:
        """Whether the two go together after adjusting for all tests."""
        return self.finding(measure, outcome).verdict(self.table.rules) == "goes with"

    def sure_inside(self, measure: str, outcome: str) -> bool:
        """Whether the two go together inside conditions, after adjusting for all tests."""
        p = self.finding(measure, outcome).within_adjusted_p
        return p is not None and p <= self.table.rules.alpha

    def paradox(self, measure: str, outcome: str) -> bool:
        """Whether they go together both between and inside conditions, with opposite signs."""
        return self.finding(measure, outcome).paradox(self.table.rules)

    def strongest(self, outcome: str) -> list[str]:
        """The measures that have a correlation with an outcome, by its size; inside conditions where there is none between."""
        sizes = {m: self.shown(m, outcome).value for m in self.measures}
        return sorted((m for m, value in sizes.items() if value is not None), key=lambda m: -abs(sizes[m] or 0.0))

    def shown(self, measure: str, outcome: str) -> Correlation:
        """Between conditions, or inside them where these are too few for that."""
        found = self.finding(measure, outcome)
        return found.correlation if found.within is None or found.correlation.value is not None else found.within


def associate(
    study: Cohorts, cohort: Cohort, method: Method = "kendall", given: str | None = LOSS
) -> Associations | None:
    """All pairs of a cohort; `None` where it has no measure, no outcome, or too few models to ask.

    What is another measure times a constant is not asked again, and not counted among the tests.
    """
    known = set(value_columns(cohort.frame))
    measures = tuple(c for c in study.measures if c in known and c not in study.repeats)
    outcomes = tuple(c for c in study.outcomes if c in known)
    guard = learnt_of(study, cohort)
    used = cohort if guard is None else _only(cohort, guard)
    if not measures or not outcomes or len(used) < ENOUGH:
        return None
    covariate = given if given in known and given not in outcomes else None
    if given is not None and given != LOSS and given not in known:
        raise UnknownNameError.among("column to account for", given, known)
    titles = titles_of([*measures, *outcomes, *([covariate] if covariate else [])])
    frame = used.frame.rename(columns=titles)
    levels = [c for c in frame.columns if c.startswith("axis.")]
    frame[levels] = frame[levels].astype(str)  # a level may be a list or a mapping, which nothing can be grouped by
    axes = [c for c in levels if frame[c].nunique() > 1]
    accounted = titles[covariate] if covariate and cohort is study.main else None
    table = correlate(
        frame,
        [titles[c] for c in measures],
        [titles[c] for c in outcomes],
        method=method,
        group="condition",
        given=accounted,
        errors=used.errors.rename(columns=titles) if accounted and covariate in used.errors else None,
        axes=axes if len(axes) > 1 and len(used) <= FEW else (),
    )
    return Associations(cohort, used, titles, measures, outcomes, table, "" if guard is None else guard.sentence)


def learnt_of(study: Cohorts, cohort: Cohort) -> Learnt | None:
    """Which models of a cohort have learnt, or None where the loss of guessing is not known."""
    starts = [
        guessing(float(first["train_loss"]), float(first["train_error"]))  # type: ignore[arg-type]
        for record in study.records
        if len(record.history) > 1 and {"train_loss", "train_error"} <= set(first := record.history[0])
    ]
    chances = [start for start in starts if start is not None]
    if not chances or LOSS not in cohort.frame:
        return None
    return learnt(cohort.frame[LOSS], chance=float(np.median(chances)))


def units_used(sizes: Sequence[int], total: int, thing: str) -> str:
    """On how many of all units correlations rest.

    >>> units_used([40, 40], 40, "models"), units_used([7, 7], 40, "models"), units_used([3, 4], 4, "conditions")
    ('40 models', '7 of 40 models', '3 to 4 conditions')
    """
    fewest, most = min(sizes, default=total), max(sizes, default=total)
    shown = f"{most}" if fewest == most else f"{fewest} to {most}"
    return f"{shown} {thing}" if most == total else f"{shown} of {total} {thing}"


def _only(cohort: Cohort, guard: Learnt) -> Cohort:
    """The models that have learnt."""
    if not guard.left_out:
        return cohort
    frame, errors = cohort.frame[guard.kept], cohort.errors[guard.kept]
    return replace(cohort, members={run: cohort.members[run] for run in frame.index}, frame=frame, errors=errors)
