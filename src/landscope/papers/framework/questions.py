"""One vocabulary for what papers claim: questions to the tables of their parts, each answered by effects with their errors.

    larger(a, b)              the values of one condition are larger than those of another: a difference of means (Welch), or of
                              pairs; with `log` a ratio
    correlates(x, y, sign)    Kendall's τ over models, or over the means of conditions; of what other columns leave, if `given`
    moves(x, y, sign)         the slope inside conditions: over models of one training, such as its checkpoints
    above(numbers, bound)     the mean of one number per run lies above a bound; `share` of one column in another is such a number
    every(...), none(...)     families: all of them; or that no correlation of them is there

Which unit is independent decides what is counted: seeds of one condition share that condition, so where conditions differ a
correlation is over their means.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from landscope.analysis import (
    Correlation,
    Effect,
    Mean,
    between,
    correlation,
    difference,
    log_ratio,
    mean,
    paired,
    partial_between,
    slopes,
)
from landscope.core.text import counted
from landscope.papers.framework.answers import RATIO, TAU, Answer, Counted, Unit
from landscope.papers.framework.values import (
    GUESSING,
    LOSS_ERROR,
    PLACES,
    NoAnswerError,
    Tables,
    Temperature,
    Values,
    have_learnt,
    own_losses,
    rows_at,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Question", "above", "asked", "correlates", "effect_of", "every", "larger", "moves", "none", "share"]

GIVEN_LOSS = "train.loss"
"""The covariate whose standard errors are known."""


class Question(ABC):
    """Something asked of the tables of a paper's parts."""

    @abstractmethod
    def answers(self, tables: Tables) -> list[Answer]:
        """The effects that it is judged by; `NoAnswerError` where the tables do not hold them."""

    @abstractmethod
    def rows(self, tables: Tables) -> list[pd.DataFrame]:
        """The rows of the tables that it rests on, a table for each end of a comparison."""

    null = False
    """Whether what is claimed is that there is nothing."""

    @property
    def spans(self) -> bool:
        """Whether it is asked over the conditions of a design, so that most of them must be there."""
        return False


# The questions.


@dataclass(frozen=True, kw_only=True)
class _Larger(Question):
    first: Values
    second: Values
    pairs: str
    log: bool
    factor: float
    unit: Unit
    theirs: Effect | float | None
    margin: float | None
    label: str

    def answers(self, tables: Tables) -> list[Answer]:
        if self.pairs:
            one, other = (each.by(self.pairs, tables) for each in (self.first, self.second))
            both = [name for name in one if name in other]
            if len(both) < 2:
                raise NoAnswerError(f"{self.first.part} has {len(both)} pairs of runs; two are the fewest")
            a, b = [one[name] for name in both], [other[name] for name in both]
        else:
            a, b = self.first.numbers(tables), self.second.numbers(tables)
        ours = self._effect(a, b).shifted(-math.log(self.factor))
        theirs = _of_single_runs(self.theirs, ours) if isinstance(self.theirs, float) else self.theirs
        n = f"{len(a)} pairs" if self.pairs else f"{len(a)} and {len(b)}"
        label = self.label or _versus(self.first, self.second)
        return [Answer(label, ours, theirs, self.unit, self.margin, n)]

    def _effect(self, a: list[float], b: list[float]) -> Mean:
        if self.log:
            return log_ratio(a, b, pairs=bool(self.pairs))
        return paired(a, b) if self.pairs else difference(a, b)

    def rows(self, tables: Tables) -> list[pd.DataFrame]:
        return [each.rows(tables) for each in (self.first, self.second)]


def _of_single_runs(value: float, ours: Mean) -> Mean:
    """A paper's difference of one run and another, each with the spread that runs have here."""
    return Mean(value, 1, ours.spread, ours.freedom, ours.spread, 2)


def _versus(first: Values, second: Values) -> str:
    ends = [(each.condition or "all", each.column, each.at, each.temperature, each.part) for each in (first, second)]
    shown = [
        " ".join(word for word, other in zip(one, two, strict=True) if word != other)
        for one, two in (ends, reversed(ends))
    ]
    return f"{first.column}: {shown[0]} less {shown[1]}" if first.column == second.column else " less ".join(shown)


def larger(
    first: Values,
    second: Values,
    *,
    pairs: str = "",
    log: bool = False,
    factor: float = 1.0,
    unit: Unit | None = None,
    theirs: Effect | float | None = None,
    margin: float | None = None,
    label: str = "",
) -> Question:
    """The first is larger than the second; with `log`, more than `factor` times as large.

    `theirs` is the paper's effect, or its value where it is of single runs, which then have the spread of ours.

    `pairs` is "run" for two columns of the same runs, the axis of the conditions (`axis.method`) for runs that share all else.
    """
    shown = unit or (RATIO if log else Unit())
    return _Larger(
        first=first, second=second, pairs=pairs, log=log, factor=factor, unit=shown, theirs=theirs, margin=margin, label=label
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Correlates(Question):
    x: Values
    y: Values
    sign: int
    over: Literal["models", "conditions"]
    theirs: Effect | None
    margin: float | None
    keep: Callable[[pd.DataFrame], pd.Series[bool]] | None
    given: tuple[str, ...]
    label: str

    @property
    def spans(self) -> bool:
        return self.over == "conditions" or bool(self.given)

    def answers(self, tables: Tables) -> list[Answer]:
        rows = self.rows(tables)[0]
        first, second = self.x.column, self.y.column
        columns = rows[first], rows[second]
        if self.given:
            errors = {GIVEN_LOSS: rows[LOSS_ERROR]} if GIVEN_LOSS in self.given and LOSS_ERROR in rows else None
            given = {name: rows[name] for name in self.given}
            found = partial_between(*columns, given, rows["condition"], errors=errors)
        else:
            found = between(*columns, rows["condition"]) if self.over == "conditions" else correlation(*columns)
        gone = len(self._all(tables)) - len(rows)
        left = f"; {counted(gone, 'model')} left out: not learnt, or rows not fitted" if gone else ""
        told = f" given {' and '.join(self.given)}" if self.given else ""
        label = self.label or f"{first} and {second}{told}"
        ours = effect_of(found, self.sign, self.x.part)
        unit = replace(TAU, scale=self.sign)
        return [Answer(label, ours, self.theirs, unit, self.margin, f"{found.n} {self.over}{left}")]

    def _all(self, tables: Tables) -> pd.DataFrame:
        found = self.x.rows(tables)
        self.y.rows(tables)
        for name in self.given:
            replace(self.x, column=name).rows(tables)
        return found[found[[self.y.column, *self.given]].notna().all(axis=1)]

    def rows(self, tables: Tables) -> list[pd.DataFrame]:
        found = self._all(tables)
        kept = found[have_learnt(found)]
        if kept.empty:
            losses = f"{own_losses(found).min():.3g} to {own_losses(found).max():.3g}"
            raise NoAnswerError(
                f"none of {len(found)} models has learnt (training loss {losses}; guessing has {found.attrs[GUESSING]:.3g})"
            )
        return [kept if self.keep is None else kept[self.keep(kept)]]


def effect_of(found: Correlation, sign: int, part: str) -> Effect:
    """A correlation, counted positive where it has this sign."""
    if found.effect is None:
        raise NoAnswerError(f"{part}: {found.reason}")
    return -found.effect if sign < 0 else found.effect


def correlates(
    x: Values,
    y: str,
    sign: int,
    *,
    over: Literal["models", "conditions"],
    theirs: Effect | None = None,
    margin: float | None = None,
    keep: Callable[[pd.DataFrame], pd.Series[bool]] | None = None,
    given: Iterable[str] = (),
    label: str = "",
) -> Question:
    """Kendall's τ of a column with another one of the same models has this sign; `keep` says which of them count.

    `given` other columns, it is that of what they leave, over the means of conditions; errors of a training loss are allowed for.
    """
    y_of = replace(x, column=y)
    return _Correlates(
        x=x, y=y_of, sign=sign, over=over, theirs=theirs, margin=margin, keep=keep, given=tuple(given), label=label
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class _Moves(Question):
    part: str
    x: str
    y: str
    sign: int
    log: bool
    between: bool
    temperature: Temperature

    @property
    def spans(self) -> bool:
        return True

    def answers(self, tables: Tables) -> list[Answer]:
        (rows,) = self.rows(tables)
        x, y = rows[self.x], rows[self.y]
        if self.log:
            x = x.map(math.log)
        both = slopes(x, y, rows["run"])
        found = both.between if self.between else both.within
        if found is None:
            raise NoAnswerError(f"{self.part} has too few models of one training to tell")
        unit = Unit(f"per {'factor e of ' if self.log else 'unit of '}{self.x}", self.sign)
        where = "between" if self.between else "inside"
        n = f"{found.n} trainings, {len(rows)} models"
        return [Answer(f"{self.y}, {where} trainings", -found if self.sign < 0 else found, None, unit, n=n)]

    def rows(self, tables: Tables) -> list[pd.DataFrame]:
        if self.part not in tables or tables[self.part].empty:
            raise NoAnswerError(f"{self.part} was not run")
        table = tables[self.part]
        for name in (self.x, self.y):
            if name not in table:
                raise NoAnswerError(f"{self.part} has no {name}")
        number = table.groupby(["run", "checkpoint"]).cumcount()
        kept = table[(number == PLACES[self.temperature]) & table[[self.x, self.y]].notna().all(axis=1)]
        found = kept[have_learnt(kept) & ((kept[self.x] > 0) if self.log else True)]
        if found.empty:
            raise NoAnswerError(f"none of {len(kept)} models of {self.part} has learnt")
        return [found]


def moves(
    part: str,
    x: str,
    y: str,
    sign: int,
    *,
    log: bool = False,
    between: bool = False,
    temperature: Temperature = "none",
) -> Question:
    """Where x moves among the models of one training (its checkpoints), y moves with this sign; trainings are the units.

    `between` asks the same of the means of trainings. Models are taken at one temperature; `log` takes the logarithm of x.
    """
    return _Moves(part=part, x=x, y=y, sign=sign, log=log, between=between, temperature=temperature)


@dataclass(frozen=True, kw_only=True)
class _Above(Question):
    part: str
    numbers: Callable[[Tables], pd.Series[float]]
    bound: float
    log: bool
    below: bool
    percent: bool
    label: str

    def answers(self, tables: Tables) -> list[Answer]:
        try:
            found = [float(value) for value in self.numbers(tables).dropna()]
        except KeyError as error:
            raise NoAnswerError(f"{self.part} has no {error}") from error
        if len(found) < 2:
            raise NoAnswerError(f"{self.part} has {len(found)} such runs; two are the fewest")
        known = mean([math.log(value) for value in found] if self.log else found)
        ours = known.shifted(-(math.log(self.bound) if self.log else self.bound))
        unit = Counted("%" if self.percent else "", 100.0 if self.percent else 1.0, self.log,
                        "× " if self.log and not self.percent else "", self.bound, self.below)  # fmt: skip
        return [Answer(self.label, -ours if self.below else ours, None, unit, n=str(len(found)))]

    def rows(self, tables: Tables) -> list[pd.DataFrame]:
        return [rows_at(tables, self.part)]


def above(
    part: str,
    label: str,
    numbers: Callable[[Tables], pd.Series[float]],
    bound: float,
    *,
    log: bool = False,
    below: bool = False,
    percent: bool = False,
) -> Question:
    """The mean of one number per run lies above a bound, or `below` it; `log` takes geometric means."""
    return _Above(part=part, numbers=numbers, bound=bound, log=log, below=below, percent=percent, label=label)


def share(first: Values, second: Values) -> Callable[[Tables], pd.Series[float]]:
    """The first over the second, run by run."""

    def numbers(tables: Tables) -> pd.Series[float]:
        one, other = (each.rows(tables).set_index("run")[each.column] for each in (first, second))
        return one / other[other != 0]

    return numbers


@dataclass(frozen=True)
class _Asked(Question):
    part: str
    function: Callable[[Tables], list[Answer]]
    over_conditions: bool = False

    @property
    def spans(self) -> bool:
        return self.over_conditions

    def answers(self, tables: Tables) -> list[Answer]:
        return self.function(tables)

    def rows(self, tables: Tables) -> list[pd.DataFrame]:
        return [rows_at(tables, self.part)]


def asked(part: str, function: Callable[[Tables], list[Answer]], *, spans: bool = False) -> Question:
    """What only one paper asks: effects from a function of the tables; `spans` says that it is over conditions."""
    return _Asked(part, function, spans)


@dataclass(frozen=True)
class _Family(Question):
    questions: tuple[Question, ...]
    null: bool = False

    @property
    def spans(self) -> bool:
        return any(question.spans for question in self.questions)

    def answers(self, tables: Tables) -> list[Answer]:
        return [answer for question in self.questions for answer in question.answers(tables)]

    def rows(self, tables: Tables) -> list[pd.DataFrame]:
        return [rows for question in self.questions for rows in question.rows(tables)]


def every(questions: Iterable[Question]) -> Question:
    """All of them."""
    return _Family(tuple(questions))


def none(questions: Iterable[Question]) -> Question:
    """No effect is there: each is shown to be smaller than its margin."""
    return _Family(tuple(questions), null=True)
