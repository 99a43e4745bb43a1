"""Each condition against the baseline: which is flatter, by which measures, by how much; which is better on which outcome.

Columns whose values are positive in all runs are compared by the ratio of geometric means, others by the difference of means,
both by Welch's t-test (`landscope.analysis.effects`): it needs no permutations, so that a handful of seeds can show something
after adjusting. What is asked of sharpness is one family of tests, what is asked of outcomes another; each test has the level
that Holm's procedure leaves it. Conditions with models that have not learnt are not compared in sharpness, those whose networks
have other sizes than the baseline's only by what rescaled weights do not change.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from landscope.analysis import Mean, difference, holm, log_ratio
from landscope.analysis.coefficients import mean_and_deviation
from landscope.core.errors import OperandError, UnknownNameError
from landscope.core.text import counted, decimal, listed, significant
from landscope.measures.base import Measure, invariances
from landscope.measures.resolve import CORE
from landscope.report.data.associations import learnt_of
from landscope.report.data.cohorts import Cohorts, estimate_of
from landscope.report.data.columns import Column, better, label

MOST = 8
"""Conditions up to which the first is taken for the baseline where none is named."""
RUNS = 2
"""Of each condition, below which nothing can be compared."""
FARTHEST = 700.0
"""The logarithm of a ratio beyond which it is written as that."""
EXPLAINING = ("train.l2_norm", "train.loss")
"""What may explain a difference in sharpness by itself: the size of the weights, and how far training went."""


@dataclass(frozen=True)
class Contrast:
    """One column of one condition against that of the baseline."""

    condition: str
    column: str
    effect: Mean | None
    """The logarithm of the ratio, or the difference; `None` where it is not defined."""
    ratio: bool
    direction: int
    """−1 where lower is flatter or better, +1 where higher is, 0 where neither is."""
    means: tuple[float, float]
    """Means of the condition and of the baseline."""
    level: float = 0.0
    reason: str = ""

    @property
    def sure(self) -> bool:
        """Whether they differ after adjusting for all tests of the family."""
        return self.effect is not None and self.effect.p_value() <= self.level

    @property
    def towards(self) -> int:
        """+1 where the condition is flatter or better as far as can be shown, −1 where the opposite is, 0 otherwise."""
        return int(np.sign(self.effect.value)) * self.direction if self.sure and self.effect is not None else 0

    @property
    def ends(self) -> tuple[float, float, float]:
        """The ratio or difference with its 95 % interval."""
        assert self.effect is not None
        found = (self.effect.value, *self.effect.interval())
        return (_exp(found[0]), _exp(found[1]), _exp(found[2])) if self.ratio else found

    @property
    def change(self) -> str:
        """In words.

        >>> found = Contrast("SAM", "train.loss", log_ratio([1.0, 1.1, 0.9], [2.0, 2.2, 1.9]), True, -1, (1.0, 2.0))
        >>> found.change
        '−51 % (−60 to −40 %)'
        """
        if self.effect is None:
            return "–"
        value, low, high = self.ends
        if not self.ratio:
            return f"{_signed(value)} ({_signed(low)} to {_signed(high)})"
        if high <= 3:
            return f"{_percent(value)} % ({_percent(low)} to {_percent(high)} %)"
        return f"× {significant(value, 2)} ({significant(low, 2)} to {significant(high, 2)})"


@dataclass(frozen=True)
class Contrasts:
    """All conditions but the baseline, in sharpness and in outcomes."""

    baseline: str
    named: bool
    """Whether the study names it."""
    sharpness: Sequence[Contrast]
    outcomes: Sequence[Contrast]
    explaining: Sequence[Contrast]
    """How the size of the weights and the training loss differ."""
    stuck: Mapping[str, str] = field(default_factory=dict)
    """Conditions with models that have not learnt, and how many these are: their sharpness says nothing about minima."""
    resized: Mapping[str, str] = field(default_factory=dict)
    """Conditions whose networks have another size than the baseline's, and both sizes."""

    @property
    def conditions(self) -> list[str]:
        """Those that are compared with the baseline."""
        return list(dict.fromkeys(each.condition for each in (*self.sharpness, *self.outcomes)))

    def of(self, condition: str) -> tuple[list[Contrast], list[Contrast]]:
        """Its sharpness and its outcomes, where they are defined."""
        held = ([c for c in kind if c.condition == condition and c.effect] for kind in (self.sharpness, self.outcomes))
        sharpness, outcomes = held
        return sharpness, outcomes


def compared(study: Cohorts, baseline: str | None) -> tuple[str, list[str]] | None:
    """The baseline and the others; `None` where there are no others, or too many to take the first for the baseline."""
    if baseline is not None and baseline not in study.conditions:
        raise UnknownNameError.among("condition to be the baseline", baseline, study.conditions)
    if len(study.conditions) < 2 or (baseline is None and len(study.conditions) > MOST):
        return None
    first = study.conditions[0] if baseline is None else baseline
    return first, [name for name in study.conditions if name != first]


def contrasts(study: Cohorts, baseline: str | None) -> Contrasts | None:
    """Every other condition against the baseline; `None` where there is none, or too few runs of each."""
    pair = compared(study, baseline)
    sizes = study.main.frame["condition"].value_counts()
    if pair is None or min(int(sizes.get(name, 0)) for name in study.conditions) < RUNS:
        return None
    first, others = pair
    of_sharpness = [column for column in study.measures if flatter(column)]
    core = [column for column in of_sharpness if Column.of(column).name in CORE]
    besides = [column for column in EXPLAINING if column in study.main.frame and column not in study.outcomes]
    families = [core or of_sharpness, list(study.outcomes), besides]
    stuck, resized = _not_learnt(study), _resized(study, first)
    sharpness = _adjusted(study, others, first, families[0], stuck, resized)
    outcomes, explaining = (_adjusted(study, others, first, columns) for columns in families[1:])
    return Contrasts(first, baseline is not None, sharpness, outcomes, explaining, stuck, resized)


def _resized(study: Cohorts, baseline: str) -> dict[str, str]:
    """Conditions whose networks have another number of parameters than those of the baseline."""
    sizes: dict[str, set[str]] = {}
    for run, subject in study.main.members.items():
        own = {str(report.about["parameters"]) for report in subject.reports.values() if "parameters" in report.about}
        sizes.setdefault(study.records[run].condition, set()).update(own)
    first = sizes.get(baseline, set())
    return {
        name: f"{listed(sorted(own), 'or')} against {listed(sorted(first), 'or')}"
        for name, own in sizes.items()
        if own and first and own != first
    }


def unscaled(study: Cohorts, column: str) -> bool:
    """Whether rescaled weights leave a measure as it is, at the settings that it was measured with."""
    found = (estimate_of(subject, column) for subject in study.main.members.values())
    settings = next((estimate.settings for estimate in found if estimate is not None), {})
    return "layer_rescaling" in invariances(Column.of(column).name, settings)


def _not_learnt(study: Cohorts) -> dict[str, str]:
    guard = learnt_of(study, study.main)
    if guard is None or not guard.left_out:
        return {}
    kept = pd.Series(guard.kept).groupby(study.main.frame["condition"].to_numpy(), sort=False)
    return {
        str(name): f"{int((~own).sum())} of {counted(len(own), 'model')} have not learnt"
        for name, own in kept
        if not own.all()
    }


def flatter(column: str) -> int:
    """−1 where lower values of a measure of training rows mean a flatter minimum, +1 where higher ones do, 0 otherwise.

    >>> flatter("train.hessian_trace"), flatter("train.pac_bayes_sigma"), flatter("train.l2_norm"), flatter("test.error")
    (-1, 1, 0, 0)
    """
    parts = Column.of(column)
    facts = parts.facts
    if parts.split != "train" or parts.variants or not (isinstance(facts, type) and issubclass(facts, Measure)):
        return 0
    return {"lower": -1, "higher": 1, None: 0}[facts.flatter] if facts.family.is_of_sharpness else 0


def _adjusted(
    study: Cohorts,
    others: Sequence[str],
    baseline: str,
    columns: Sequence[str],
    stuck: Mapping[str, str] | None = None,
    resized: Mapping[str, str] | None = None,
) -> list[Contrast]:
    found = [_contrast(study, name, baseline, column) for name in others for column in columns]
    for place, each in enumerate(found):
        for name in (baseline, each.condition):
            if stuck and name in stuck:
                found[place] = replace(each, effect=None, reason=f"{name}: {stuck[name]}")
        if resized and each.condition in resized and not unscaled(study, each.column):
            why = f"it depends on the scale of weights, and the networks differ ({resized[each.condition]})"
            found[place] = replace(each, effect=None, reason=why)
    tested = [place for place, each in enumerate(found) if each.effect is not None]
    levels = holm([each.effect.p_value() for each in found if each.effect is not None])
    for place, level in zip(tested, levels, strict=True):
        found[place] = replace(found[place], level=level)
    return found


def _contrast(study: Cohorts, name: str, baseline: str, column: str) -> Contrast:
    frame = study.main.frame
    held = [frame.loc[frame["condition"] == each, column].to_numpy(dtype=np.float64) for each in (name, baseline)]
    own, others = ([float(value) for value in values if np.isfinite(value)] for values in held)
    direction = 0 if column in EXPLAINING else flatter(column) or better(column)
    means = _mean(own), _mean(others)
    ratio = min(*own, *others, math.inf, math.inf) > 0
    try:
        with np.errstate(over="ignore", invalid="ignore"):  # what overflows is refused below
            effect = (log_ratio if ratio else difference)(own, others)
    except OperandError as error:
        return Contrast(name, column, None, ratio, direction, means, reason=f"{label(column)}: {error}")
    return Contrast(name, column, effect, ratio, direction, means)


def _mean(values: Sequence[float]) -> float:
    return mean_and_deviation(np.array(values))[0] if values else math.nan


def _exp(value: float) -> float:
    return math.exp(min(max(value, -FARTHEST), FARTHEST))


def _percent(ratio: float) -> str:
    change = round(100 * (ratio - 1))
    return decimal(change, "+d") if change else "0"


def _signed(value: float) -> str:
    return ("+" if value > 0 else "") + significant(value, 2)
