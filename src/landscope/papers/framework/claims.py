"""What a paper claims, and what our records say of it: one rule for all (`landscope.analysis.verdicts`).

A claim is a text and a question. Before it is judged, guards look at the models that it rests on; where one speaks, the claim is
not tested:

    reduced    the part was run at a reduced size, or on data that stands for the paper's
    few        a claim over the conditions of a design of which fewer than three quarters were run: the order of runs is fixed
               beforehand, so that those that are there are no choice, but tables are looked at before they are full
    failed     runs of a condition failed, so that those that are left are no fair sample
    learnt     a condition has networks that have not learnt: training loss above half of that of guessing among its classes
               (out of correlations they are left)
    minima     of claims about minima: fewer than 95 % of a condition's networks fit 99 % of their training rows

Twenty headline claims form one family, with the levels that Holm's procedure leaves them; all others are exploratory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from landscope.analysis import Judgement, Verdict, fits, judge, judge_all, not_tested
from landscope.analysis.verdicts import ALPHA, Judge
from landscope.core.errors import OperandError
from landscope.core.text import counted
from landscope.papers.framework.answers import Answer
from landscope.papers.framework.questions import Question
from landscope.papers.framework.values import (
    FAILED,
    FEW,
    GUESSING,
    INSTEAD,
    REDUCED,
    NoAnswerError,
    Tables,
    have_learnt,
    own_losses,
)

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Claim", "Told", "at_holms_levels", "not_run", "tell"]

FITTED, AT_MOST = 0.95, 0.01
"""The share of networks that must fit their training rows for a condition to stand for minima, and the error that still fits."""


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Something that a paper says, and the question that it comes to."""

    text: str
    question: Question
    part: str
    """Where it is listed."""
    paper: str = ""
    """What the paper has, in its own words."""
    headline: int = 0
    """Its number among the twenty."""
    minima: bool = False
    """Whether it is about minima, so that networks must fit their training rows."""
    explained_by: str = ""
    """The text of a claim that says what the paper's number comes from."""
    ours: bool = False
    """Whether it is not the paper's."""
    trains: bool = False
    """Whether whether networks learn is the question itself."""


@dataclass(frozen=True)
class Told:
    """A claim with what was found."""

    claim: Claim
    judgement: Judgement
    answers: tuple[Answer, ...] = ()
    runs: tuple[str, ...] = ()
    instead: str = ""
    """What stands for the paper's data or network."""

    @property
    def verdict(self) -> str:
        """The verdict, and of what where that is not the paper's."""
        verdict = self.judgement.verdict
        return f"**{verdict}** ({self.instead})" if self.instead and verdict != "not tested" else f"**{verdict}**"

    @property
    def found(self) -> str:
        """The effects with their intervals."""
        return "; ".join(
            f"{answer.name}: {answer.unit.written(answer.ours, self.judgement.alpha)}" for answer in self.answers
        )

    @property
    def why(self) -> str:
        """Everything that stands behind the verdict."""
        return ". ".join(filter(None, (self.found, self.judgement.why)))


@dataclass(frozen=True)
class _Asked:
    claim: Claim
    answers: tuple[Answer, ...] = ()
    runs: tuple[str, ...] = ()
    silent: str = ""
    """Why it is not tested."""
    instead: str = ""

    def judged(self, alpha: float, by: Judgement | None = None) -> Judgement:
        if self.silent:
            return not_tested(self.silent)
        if self.claim.question.null:
            return _nothing(self.answers, alpha)
        found = _all(self.answers, alpha, by)
        if found.verdict == "explained":
            return replace(found, why=f"explained by: {self.claim.explained_by}, {found.why}")
        return found


def tell(claims: Sequence[Claim], tables: Tables) -> list[Told]:
    """Every claim whose part was run, judged; headline claims at Holm's levels."""
    asked = [_ask(claim, tables) for claim in claims if claim.part in tables]
    plain = {each.claim.text: each.judged(ALPHA) for each in asked}
    return [
        Told(each.claim, each.judged(ALPHA, plain.get(each.claim.explained_by)), each.answers, each.runs, each.instead)
        for each in asked
    ]


def not_run(claim: Claim) -> Told:
    """What is to be said of a claim whose part was not run."""
    return Told(claim, not_tested(f"{claim.part} was not run"))


def at_holms_levels(told: Sequence[Told], explained: Mapping[str, Judgement]) -> list[Told]:
    """Headline claims, of all papers together."""
    asked = [_Asked(each.claim, each.answers, each.runs, _silence(each)) for each in told]
    judges: list[Judge] = [
        lambda alpha, each=each: each.judged(alpha, explained.get(each.claim.explained_by))  # type: ignore[misc]
        for each in asked
    ]
    return [replace(each, judgement=found) for each, found in zip(told, judge_all(judges), strict=True)]


def _silence(told: Told) -> str:
    return told.judgement.why if told.judgement.verdict == "not tested" else ""


def _ask(claim: Claim, tables: Tables) -> _Asked:
    try:
        rows = claim.question.rows(tables)
        runs = tuple(dict.fromkeys(str(run) for each in rows for run in each["run"]))
        answers = tuple(claim.question.answers(tables))
    except NoAnswerError as error:
        return _Asked(claim, silent=str(error))
    except OperandError as error:
        return _Asked(claim, silent=str(error))
    instead = "; ".join(sorted({str(words) for each in rows if (words := each.attrs.get(INSTEAD))}))
    return _Asked(claim, answers, runs, "; ".join(_guards(claim, rows)), instead)


def _guards(claim: Claim, rows: Sequence[pd.DataFrame]) -> Iterable[str]:
    if short := sorted({short for each in rows if (short := each.attrs.get(REDUCED))}):
        yield from short
        return  # whatever else such networks are
    if claim.question.spans:
        yield from sorted({few for each in rows if (few := each.attrs.get(FEW))})
    yield from dict.fromkeys(_failures(rows))
    if not claim.trains:
        yield from dict.fromkeys(text for each in rows for text in _not_learnt(each))
    if claim.minima:
        yield from dict.fromkeys(text for each in rows for text in _no_minima(each))


def _failures(rows: Sequence[pd.DataFrame]) -> Iterable[str]:
    for each in rows:
        failed = each.attrs.get(FAILED, {})
        for condition in each["condition"].unique():
            if count := failed.get(condition, 0):
                done = each.loc[each["condition"] == condition, "run"].nunique()
                yield f"{count} of {counted(count + done, 'run')} of {condition} failed"


def _not_learnt(rows: pd.DataFrame) -> Iterable[str]:
    for condition, own in rows.groupby("condition", sort=False):
        if stuck := int((~have_learnt(own)).sum()):
            yield (
                f"{stuck} of {counted(len(own), 'network')} of {condition} have not learnt (training loss "
                f"{own_losses(own).mean():.3g}; guessing has {rows.attrs[GUESSING]:.3g})"
            )


def _no_minima(rows: pd.DataFrame) -> Iterable[str]:
    if "train.error" not in rows:
        return
    for condition, own in rows.groupby("condition", sort=False):
        fitted = float(fits(own["train.error"], AT_MOST).kept.mean())
        if fitted < FITTED:
            yield f"no minima: {fitted:.0%} of {condition} fit {1 - AT_MOST:.0%} of their training rows"


def _all(answers: Sequence[Answer], alpha: float, by: Judgement | None) -> Judgement:
    """All must be shown, each at the full level; one that is excluded at its share of the level excludes them all."""
    each = [_judged(one, alpha, by) for one in answers]
    if len(each) == 1:
        return each[0]
    shown = [found.p_value or 0.0 for found in each]
    worst = each[max(range(len(each)), key=lambda place: shown[place])]
    if all(found.verdict == "replicates" for found in each):
        return replace(worst, why=f"all {len(each)} {worst.why}")
    strict = [_judged(one, alpha / len(each)) for one in answers]
    against = [(one, found) for one, found in zip(answers, strict, strict=True) if found.verdict == "excluded"]
    if against:
        one, found = min(against, key=lambda pair: pair[1].p_value or 0.0)
        return replace(found, why=f"{one.label}: {found.why}", alpha=alpha)
    explained = [found for found in each if found.verdict == "explained"]
    if explained:
        return explained[0]
    number = sum(found.verdict == "replicates" for found in each)
    return replace(worst, verdict="undecided", why=f"{number} of {len(each)} shown")


def _judged(one: Answer, alpha: float, by: Judgement | None = None) -> Judgement:
    return judge(one.ours, one.theirs, margin=one.margin, explained_by=by, alpha=alpha, written=one.unit.size)


def _nothing(answers: Sequence[Answer], alpha: float) -> Judgement:
    """No effect: each shown to be smaller than its margin; excluded where one is shown after Bonferroni."""
    shown = [one for one in answers if one.ours.p_value() <= alpha / len(answers)]
    if shown:
        one = min(shown, key=lambda answer: answer.ours.p_value())
        return Judgement("excluded", f"{one.label} is shown", one.ours, None, one.ours.p_value(), alpha)
    within = [one.ours.equivalence_p(one.margin or 0.0) if one.margin else 1.0 for one in answers]
    place = max(range(len(within)), key=lambda index: within[index])
    verdict: Verdict = "replicates" if within[place] <= alpha else "undecided"
    why = (
        f"all smaller than {answers[place].margin:g}" if verdict == "replicates" else "too few units to show so little"
    )
    return Judgement(verdict, why, answers[place].ours, None, within[place], alpha)
