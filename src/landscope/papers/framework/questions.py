"""One vocabulary for what papers claim: questions to the tables of their parts, each answered by effects with their errors.

    larger(a, b)              the values of one condition are larger than those of another: a difference of means (Welch), or of
                              pairs; with `log` a ratio
    correlates(x, y, sign)    Kendall's τ over models, or over the means of conditions
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
)
from landscope.papers.framework.values import GUESSING, NoAnswerError, Tables, Values, have_learnt, rows_at

if TYPE_CHECKING:
    import pandas as pd

__all__ = [
    "RATIO",
    "TAU",
    "Answer",
    "Question",
    "Unit",
    "above",
    "asked",
    "correlates",
    "effect_of",
    "every",
    "larger",
    "none",
    "share",
]

DECIMALS, LARGE = 5, 1000.0
"""Beyond which numbers have three digits, whatever their errors."""


@dataclass(frozen=True)
class Unit:
    """How an effect is written: times `scale`, with a word behind it; a ratio as what it multiplies by.

    >>> Unit("points", 100).written(mean([0.01, 0.02, 0.03]), 0.05)
    '2.0 points [−0.5, 4.5]'
    """

    word: str = ""
    scale: float = 1.0
    ratio: bool = False
    symbol: str = ""

    def written(self, effect: Effect, alpha: float) -> str:
        """The value and its interval, to two digits of its width."""
        value = self.number(effect.value)
        low, high = sorted(map(self.number, effect.interval(1 - alpha)))
        narrow = min(abs(high - value), abs(value - low)) or abs(value) or 1.0
        decimals = max(0, 1 - math.floor(math.log10(narrow)))
        texts = [
            f"{each:.3g}"
            if decimals > DECIMALS or abs(each) >= LARGE or (self.ratio and each < 0.1)
            else f"{each:.{decimals}f}"
            for each in (value, low, high)
        ]
        shown = [text.replace("-", "−") if float(text) else text.replace("-", "") for text in texts]
        return f"{self.symbol}{shown[0]}{' ' * bool(self.word)}{self.word} [{shown[1]}, {shown[2]}]"

    def number(self, value: float) -> float:
        """A value in this unit."""
        return self.scale * (math.exp(min(value, 100.0)) if self.ratio else value)


RATIO, TAU = Unit(ratio=True, symbol="× "), Unit(symbol="τ = ")


@dataclass(frozen=True)
class Answer:
    """An effect, positive where the claim goes, with the paper's beside it where that is known."""

    label: str
    ours: Effect
    theirs: Effect | None = None
    unit: Unit = Unit()
    margin: float | None = None


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
        return [Answer(f"{label} (n = {n})", ours, theirs, self.unit, self.margin)]

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

    def answers(self, tables: Tables) -> list[Answer]:
        rows = self.rows(tables)[0]
        first, second = self.x.column, self.y.column
        columns = rows[first], rows[second]
        found = between(*columns, rows["condition"]) if self.over == "conditions" else correlation(*columns)
        every = len(self._all(tables))
        left = (
            f"; {every - n} models that have not learnt or do not fit left out"
            if (n := len(self.rows(tables)[0])) < every
            else ""
        )
        label = f"{first} and {second} (n = {found.n} {self.over}{left})"
        ours = effect_of(found, self.sign, self.x.part)
        return [Answer(label, ours, self.theirs, replace(TAU, scale=self.sign), self.margin)]

    def _all(self, tables: Tables) -> pd.DataFrame:
        found = self.x.rows(tables)
        self.y.rows(tables)
        return found[found[self.y.column].notna()]

    def rows(self, tables: Tables) -> list[pd.DataFrame]:
        found = self._all(tables)
        kept = found[have_learnt(found)]
        if kept.empty:
            losses = f"{found['train.loss'].min():.3g} to {found['train.loss'].max():.3g}"
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
) -> Question:
    """Kendall's τ of a column with another one of the same models has this sign; `keep` says which of them count."""
    return _Correlates(x=x, y=replace(x, column=y), sign=sign, over=over, theirs=theirs, margin=margin, keep=keep)


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
        unit = _Counted("%" if self.percent else "", 100.0 if self.percent else 1.0, self.log,
                        "× " if self.log and not self.percent else "", self.bound, self.below)  # fmt: skip
        return [Answer(f"{self.label} (n = {len(found)})", -ours if self.below else ours, None, unit)]

    def rows(self, tables: Tables) -> list[pd.DataFrame]:
        return [rows_at(tables, self.part)]


@dataclass(frozen=True)
class _Counted(Unit):
    """An effect that is counted from a bound is written as the number itself."""

    bound: float = 0.0
    turned: bool = False

    def written(self, effect: Effect, alpha: float) -> str:
        assert isinstance(effect, Mean)
        own = -effect if self.turned else effect
        return super().written(own.shifted(math.log(self.bound) if self.ratio else self.bound), alpha)


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

    def answers(self, tables: Tables) -> list[Answer]:
        return self.function(tables)

    def rows(self, tables: Tables) -> list[pd.DataFrame]:
        return [rows_at(tables, self.part)]


def asked(part: str, function: Callable[[Tables], list[Answer]]) -> Question:
    """What only one paper asks: effects from a function of the tables."""
    return _Asked(part, function)


@dataclass(frozen=True)
class _Family(Question):
    questions: tuple[Question, ...]
    null: bool = False

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
