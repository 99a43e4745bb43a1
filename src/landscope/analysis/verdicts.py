"""One rule for verdicts on a claim, stated once.

An effect (`effects`) is counted so that it is positive where the claim goes. `judge` decides a claim of a direction ("SAM is
better"), `judge_size` a claim of a number ("70 % of the error is left"):

    replicates   the effect is shown in the claimed direction: two-sided p ≤ α, which is the same as an interval of confidence
                 1 − α above 0. Of a size: two one-sided tests show that it lies within the margin around the paper's
    excluded     the opposite is shown; or the effect is shown to be smaller than a margin that was named beforehand (TOST, unless
                 the paper's own number is); or it differs from the paper's number by more than both errors allow
    undecided    none of these, with the n that would find the *planned* effect: the paper's number, or else the margin
    explained    it does not replicate, and another claim that does shows where the paper's number comes from
    not tested   there is nothing to judge by: too few runs, models that have not learnt, a measure that is not there

At each true effect at most one of "replicates" and "excluded" is wrong, so a claim errs in the share α of cases without a
correction of its own. For claims of one family `judge_all` gives each the level that Holm (1979) leaves it, and its interval
is drawn at that level: test and interval never contradict each other. Claims outside the family are exploratory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal

from landscope.analysis.correlation import show_p as _p
from landscope.analysis.effects import Effect, Mean
from landscope.analysis.power import POWER, models_needed, runs_needed
from landscope.core.errors import OperandError
from landscope.core.text import decimal

Verdict = Literal["replicates", "excluded", "undecided", "explained", "not tested"]
VERDICTS: tuple[Verdict, ...] = ("replicates", "excluded", "undecided", "explained", "not tested")

ALPHA = 0.05


@dataclass(frozen=True)
class Judgement:
    """A verdict with all it rests on; `p_value` is that of the test that decides, or of the direction where none does."""

    verdict: Verdict
    why: str
    ours: Effect | None = None
    theirs: Effect | None = None
    p_value: float | None = None
    alpha: float = ALPHA
    needed: int | None = None
    """Units (in each group) that would find the planned effect with a chance of 80 %; of an undecided claim only."""

    @property
    def interval(self) -> tuple[float, float] | None:
        """The values that the deciding test leaves, at the level of this claim."""
        return None if self.ours is None else self.ours.interval(1 - self.alpha)


Judge = Callable[[float], Judgement]
"""A claim that waits for its level."""


def not_tested(why: str) -> Judgement:
    """There is nothing to judge by.

    >>> not_tested("2 of 3 networks have not learnt").verdict
    'not tested'
    """
    return Judgement("not tested", why)


def judge(
    ours: Effect,
    theirs: Effect | None = None,
    *,
    margin: float | None = None,
    explained_by: Judgement | None = None,
    alpha: float = ALPHA,
    written: Callable[[float], str] | None = None,
) -> Judgement:
    """A claim of a direction; the effect is positive where the claim goes.

    Args:
        ours: what was found.
        theirs: the paper's number with its own error, counted the same way.
        margin: the smallest effect that would matter, named before looking.
        explained_by: the judgement of a claim that says what the paper's number comes from.
        alpha: two-sided level.
        written: how a size of the effect is written in the verdict, such as in points of a percentage.

    >>> from landscope.analysis.effects import Mean, Order
    >>> judge(Order(0.62, 24)).verdict, judge(Order(0.0, 200), margin=0.2).verdict
    ('replicates', 'excluded')
    >>> found = judge(Order(0.03, 50), Order(0.185, 50))
    >>> found.verdict, found.needed
    ('undecided', 104)
    """
    p, say = ours.p_value(), written or _number
    shown = p <= alpha
    beside = None if theirs is None else ours.differs_from(theirs)
    if shown and ours.value < 0:
        found = Judgement("excluded", f"the opposite is shown ({_p(p)})", ours, theirs, p, alpha)
    elif margin is not None and _within(ours, theirs, margin) <= alpha:
        p = ours.equivalence_p(_positive(margin))
        why = f"shown to be smaller than {say(margin)} ({_p(p)})"
        found = Judgement("excluded", why, ours, theirs, p, alpha)
    elif shown:
        found = Judgement(
            "replicates", f"shown ({_p(p)}){_beside(ours, theirs, beside, alpha, say)}", ours, theirs, p, alpha
        )
    elif theirs is not None and beside is not None and beside <= alpha and ours.value < theirs.value:
        why = f"short of the paper's {say(theirs.value)} by more than both errors allow ({_p(beside)})"
        found = Judgement("excluded", why, ours, theirs, beside, alpha)
    else:
        found = _undecided(ours, theirs, margin, p, alpha, say)
    return _explained(found, explained_by)


def judge_size(
    ours: Effect, theirs: Effect, *, margin: float, explained_by: Judgement | None = None, alpha: float = ALPHA
) -> Judgement:
    """A claim of a number: it replicates where ours is shown to lie within the margin around the paper's.

    >>> from landscope.analysis.effects import Summary, difference, mean
    >>> paper = Mean(0.69, 5, 0.02, 4, 0.045)
    >>> judge_size(mean([0.12, 0.14, 0.19]), paper, margin=0.1).verdict
    'excluded'
    >>> judge_size(mean([0.68, 0.70, 0.69]), paper, margin=0.1).verdict
    'replicates'
    """
    if not isinstance(ours, Mean) or not isinstance(theirs, Mean):
        raise OperandError("a size is judged of means; a correlation is a claim of a direction")
    apart = ours.less(theirs)
    p, same = apart.p_value(), apart.equivalence_p(_positive(margin))
    if same <= alpha:
        why = f"within {_number(margin)} of the paper's {_number(theirs.value)} ({_p(same)})"
        found = Judgement("replicates", why, ours, theirs, same, alpha)
    elif p <= alpha:
        way = "larger" if apart.value > 0 else "smaller"
        why = f"{way} than the paper's {_number(theirs.value)} by more than both errors allow ({_p(p)})"
        found = Judgement("excluded", why, ours, theirs, p, alpha)
    else:
        needed = runs_needed(margin, apart.spread, alpha=alpha)
        found = Judgement("undecided", _needs(needed, ours, margin, _number), ours, theirs, min(p, same), alpha, needed)
    return _explained(found, explained_by)


def holm(p_values: Sequence[float], alpha: float = ALPHA) -> list[float]:
    """The level that each test of a family has by Holm's procedure: it is decided where its p is at most that.

    Sorted, the first has α/m, the next α/(m − 1) …; from the first that is not decided on, none is.

    >>> [round(level, 4) for level in holm([0.001, 0.2, 0.02])], [round(level, 4) for level in holm([0.001, 0.2, 0.03])]
    ([0.0167, 0.05, 0.025], [0.0167, 0.025, 0.025])
    """
    levels, level, stopped = [0.0] * len(p_values), alpha, False
    for place, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        level = level if stopped else alpha / (len(p_values) - place)
        stopped = stopped or p_values[index] > level
        levels[index] = level
    return levels


def judge_all(claims: Sequence[Judge], alpha: float = ALPHA) -> list[Judgement]:
    """A family of claims, each judged at the level that Holm's procedure leaves it; what is not tested does not count.

    >>> from landscope.analysis.effects import Order
    >>> family = [lambda alpha, tau=tau: judge(Order(tau, 24), alpha=alpha) for tau in (0.62, 0.31)]
    >>> [found.verdict for found in judge_all(family)], judge(Order(0.31, 24)).verdict
    (['replicates', 'replicates'], 'replicates')
    """
    found = [claim(alpha) for claim in claims]
    tested = [place for place, each in enumerate(found) if each.p_value is not None]
    levels = holm([found[place].p_value or 0.0 for place in tested], alpha)
    for place, level in zip(tested, levels, strict=True):
        before, now = found[place], claims[place](level)
        turned = now.verdict not in (before.verdict, "undecided")
        found[place] = replace(before, verdict="undecided", alpha=level) if turned else now
    return found


def _within(ours: Effect, theirs: Effect | None, margin: float) -> float:
    """The p of the equivalence test; 1 where the paper's own number is within the margin, which then says nothing about it."""
    if theirs is not None and abs(theirs.value) < margin:
        return 1.0
    return ours.equivalence_p(_positive(margin))


def _positive(margin: float) -> float:
    if not margin > 0:
        raise OperandError(f"a margin must be positive, got {margin}")
    return margin


def _undecided(
    ours: Effect, theirs: Effect | None, margin: float | None, p: float, alpha: float, say: Callable[[float], str]
) -> Judgement:
    planned = margin if theirs is None or theirs.value <= 0 else theirs.value
    needed = None
    if planned:
        needed = (
            runs_needed(planned, ours.spread, groups=ours.groups, alpha=alpha)
            if isinstance(ours, Mean)
            else models_needed(min(planned, 1.0), alpha)
        )
    return Judgement(
        "undecided",
        f"{_p(p)}{'; ' * bool(planned)}{_needs(needed, ours, planned, say)}",
        ours,
        theirs,
        p,
        alpha,
        needed,
    )


def _needs(needed: int | None, ours: Effect, planned: float | None, say: Callable[[float], str]) -> str:
    if needed is None or planned is None:
        return ""
    each = " on each side" if isinstance(ours, Mean) and ours.groups == 2 else ""
    return f"n = {ours.n}; {needed}{each} would find {say(planned)} with a chance of {POWER:.0%}"


def _beside(ours: Effect, theirs: Effect | None, p: float | None, alpha: float, say: Callable[[float], str]) -> str:
    """A note on the size that the paper reports, where its direction is shown."""
    if theirs is None or p is None or p > alpha:
        return ""
    return f", but {'more' if ours.value > theirs.value else 'less'} than the paper's {say(theirs.value)} ({_p(p)})"


def _explained(found: Judgement, by: Judgement | None) -> Judgement:
    if by is None or by.verdict != "replicates" or found.verdict == "replicates":
        return found
    why = f"{by.why}; by itself {found.verdict}: {found.why}"
    return Judgement("explained", why, found.ours, found.theirs, found.p_value, found.alpha, found.needed)


_number = partial(decimal, form=".4g")
