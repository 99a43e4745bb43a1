"""Which measures go with which outcomes, cohort by cohort: `landscope.analysis.correlate` under the names that readers see.

Up to `FEW` models everything is asked: intervals by BCa, the correlation inside conditions, the partial correlation given the
training loss, one axis at a time. For more, intervals come from percentiles of fewer resamples, as good by then, and the rest
is asked of the strongest pairs only (`landscope.report.sections.within_between`): the report of a thousand models takes seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from landscope.analysis import CorrelationTable, Finding, Simpson, correlate, correlation, simpson
from landscope.analysis.coefficients import Method
from landscope.core.errors import UnknownNameError
from landscope.report.data.cohorts import Cohort, Cohorts
from landscope.report.data.columns import label, value_columns

__all__ = ["Associations", "associate", "models_used"]

FEW = 300
"""Models up to which the full analysis takes seconds."""
LARGE = {"resamples": 200, "permutations": 199}
ENOUGH = 3
"""Models below which there is no correlation at all."""


@dataclass(frozen=True)
class Associations:
    """The findings of one cohort; `titles` maps columns to the names under which they are filed."""

    cohort: Cohort
    titles: dict[str, str]
    measures: tuple[str, ...]
    outcomes: tuple[str, ...]
    table: CorrelationTable

    @property
    def tests(self) -> int:
        """How many correlations were adjusted for together: those that have a p-value."""
        return self.table.findings[0].tests

    @property
    def sizes(self) -> list[int]:
        """The numbers of models that the correlations rest on, without those that have none."""
        return [f.correlation.n for f in self.table if f.correlation.p_value is not None]

    def finding(self, measure: str, outcome: str) -> Finding:
        """Of two columns."""
        return self.table[self.titles[measure], self.titles[outcome]]

    def sure(self, measure: str, outcome: str) -> bool:
        """Whether the two go together after adjusting for all tests."""
        return self.finding(measure, outcome).verdict(self.table.rules) == "goes with"

    def strongest(self, outcome: str) -> list[str]:
        """The measures that have a correlation with an outcome, by its size."""
        sizes = {m: self.finding(m, outcome).correlation.value for m in self.measures}
        return sorted((m for m, value in sizes.items() if value is not None), key=lambda m: -abs(sizes[m] or 0.0))

    def simpson(self, measure: str, outcome: str) -> Simpson:
        """Overall, inside conditions and between them."""
        frame = self.cohort.frame.rename(columns=self.titles).rename(columns={"condition": "conditions"})
        effort = {} if len(frame) <= FEW else LARGE | {"resamples": 0}
        return simpson(frame, self.titles[measure], self.titles[outcome], "conditions", self.table.method, **effort)


def associate(
    study: Cohorts, cohort: Cohort, method: Method = "kendall", given: str | None = "train.loss"
) -> Associations | None:
    """All pairs of a cohort; `None` where it has no measure, no outcome, or too few models to ask.

    What is another measure times a constant is not asked again, and not counted among the tests.
    """
    known = set(value_columns(cohort.frame))
    measures = tuple(c for c in study.measures if c in known and c not in study.repeats)
    outcomes = tuple(c for c in study.outcomes if c in known)
    if not measures or not outcomes or len(cohort) < ENOUGH:
        return None
    covariate = given if given in known and given not in outcomes else None
    if given is not None and given != "train.loss" and given not in known:
        raise UnknownNameError.among("column to account for", given, known)
    titles = _titles([*measures, *outcomes, *([covariate] if covariate else [])])
    frame = cohort.frame.rename(columns=titles)
    levels = [c for c in frame.columns if c.startswith("axis.")]
    frame[levels] = frame[levels].astype(str)  # a level may be a list or a mapping, which nothing can be grouped by
    asked = [titles[c] for c in measures], [titles[c] for c in outcomes]
    if len(cohort) > FEW:
        table = _large(correlate(frame, *asked, method=method, resamples=0, permutations=199), cohort, titles, study)
    else:
        axes = [c for c in levels if frame[c].nunique() > 1]
        table = correlate(
            frame,
            *asked,
            method=method,
            group="condition" if len(study.conditions) > 1 else None,
            given=titles[covariate] if covariate and cohort is study.main else None,
            axes=axes if len(axes) > 1 else (),
        )
    return Associations(cohort, titles, measures, outcomes, table)


def models_used(sizes: Sequence[int], total: int) -> str:
    """On how many of a cohort's models correlations rest.

    >>> models_used([40, 40], 40), models_used([7, 7], 40), models_used([38, 40], 40)
    ('40 models', '7 of 40 models', '38 to 40 models')
    """
    fewest, most = min(sizes, default=total), max(sizes, default=total)
    shown = f"{most}" if fewest == most else f"{fewest} to {most}"
    return f"{shown} models" if most == total else f"{shown} of {total} models"


def _large(table: CorrelationTable, cohort: Cohort, titles: dict[str, str], study: Cohorts) -> CorrelationTable:
    """The same with intervals, in the main cohort only."""
    if cohort is not study.main:
        return table
    columns = {title: column for column, title in titles.items()}
    found = []
    for f in table.findings:
        x, y = (cohort.frame[columns[name]] for name in (f.measure, f.outcome))
        interval = correlation(
            x,
            y,
            table.method,
            strata=cohort.frame["condition"],
            interval="percentile",
            **LARGE,  # type: ignore[arg-type]
        )
        found.append(replace(f, correlation=interval))
    return replace(table, findings=tuple(found))


def _titles(columns: Sequence[str]) -> dict[str, str]:
    """Labels, or the columns' own names where two would be called the same."""
    shown = [label(c) for c in columns]
    return {c: c if shown.count(name) > 1 else name for c, name in zip(columns, shown, strict=True)}
