"""The answer, in words and figures: which condition is flatter, which is better, and how measures and outcomes correlate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pandas as pd

from landscope.analysis import Correlation, between, correlation, fits, smallest_significant
from landscope.core.text import capital, counted, decimal, some
from landscope.report.data.associations import Associations, learnt_of
from landscope.report.data.cohorts import Cohorts
from landscope.report.data.columns import label
from landscope.report.data.contrasts import Contrasts
from landscope.report.page.blocks import Block, Cell, Claim, Prose, Section, Table, words
from landscope.report.page.figure import Axis, Errors, Figure, Marker, Panel, Points
from landscope.report.sections.against_baseline import baseline_figure, baseline_words, too_few_words
from landscope.report.sections.through_training import through_sentence

OUTCOMES = 4
"""Columns of the figure."""
MEASURES = 16
"""Rows of the figure."""
SENTENCES = 5
MOST = 100
"""Beyond this many units the report does not say how many it would take."""
ERROR = "train.error"
NAMED = 3
"""Runs that are named beside a claim."""


def answer_section(
    study: Cohorts,
    found: Associations | None,
    against: Contrasts | None = None,
    claims: Sequence[Claim] = (),
    notes: Sequence[str] = (),
    baseline: str | None = None,
) -> Section:
    """The conditions against the baseline, the claims where there are any, then the correlations with a forest plot."""
    leads = [_verdicts(claims)] if claims else []
    items: list[str] = []
    if against is not None:
        sentences, items = baseline_words(against)
        leads += sentences
    else:
        leads += filter(None, [too_few_words(study, baseline)])
    correlated, more = _correlated(study, found)
    blocks: list[Block] = [Prose(text, tone="" if place else "lead") for place, text in enumerate(filter(None, leads))]
    if items:
        blocks.append(Prose(items=items))
    if against is not None:
        blocks += baseline_figure(study, against)
    if blocks:
        blocks.append(Prose("Measures and outcomes", tone="heading"))
    blocks.append(Prose(correlated, tone="" if blocks else "lead"))
    blocks.append(Prose(items=[*more, *filter(None, [through_sentence(study)])]))
    guard = learnt_of(study, study.main)
    left_out = [guard.sentence] if guard is not None and guard.left_out else []
    blocks += [Prose(note, tone="note") for note in (*notes, *study.notes, *left_out)]
    return Section("answer", "The answer", [*blocks, *([] if found is None or found.undrawn else [_forest(found)])])


def _correlated(study: Cohorts, found: Associations | None) -> tuple[str, list[str]]:
    """What the correlations say, or why they cannot say anything."""
    if found is None:
        return _why_no_answer(study), []
    if _too_few(found):
        return _chance(found), [*_inside(found), *_fitting(found, []), *_repeats(study)]
    lead, items = _words(found)
    return lead, [*items, *_repeats(study)]


def claim_section(study: Cohorts, claims: Sequence[Claim]) -> Section:
    """What is claimed and what was found."""
    place = {record.run: run for run, record in enumerate(study.records)}
    rows = []
    for claim in claims:
        named = [study.run_name(place[run]) if run in place else run for run in claim.runs]
        shown = some(named, NAMED)
        if len(named) > NAMED and set(claim.runs) >= set(place):
            shown = f"all {len(place):,} runs"
        rows.append([Cell(claim.text), Cell(claim.verdict), Cell(claim.why), Cell(shown, title=", ".join(claim.runs))])
    table = Table(
        words("claim", "verdict", "why", "shown by"), rows, "The claims, and what this study found.", key="claims-table"
    )
    return Section("claims", "Claims", [table] if rows else [])


def _verdicts(claims: Sequence[Claim]) -> str:
    """One claim in its own words, more of them counted.

    >>> _verdicts([Claim("Flat is good", "holds")])
    'Flat is good: holds.'
    >>> _verdicts([Claim("a", "holds"), Claim("b", "undecided"), Claim("c", "holds")])
    'Of 3 claims: 2 “holds”, 1 “undecided”.'
    """
    if len(claims) == 1:
        return f"{claims[0].text}: {claims[0].verdict}."
    counts = Counter(claim.verdict for claim in claims)
    return f"Of {len(claims)} claims: {', '.join(f'{count} “{verdict}”' for verdict, count in counts.items())}."


def _why_no_answer(study: Cohorts) -> str:
    guard = learnt_of(study, study.main)
    n = len(study.main) if guard is None else len(study.main) - guard.left_out
    if not study.measures or not study.outcomes:
        missing = "measure of sharpness" if not study.measures else "outcome"
        return f"This study has no correlations to show: no {missing} was measured on these models."
    if not n:
        return "No model has learnt, so nothing can be shown about minima."
    learnt = guard is not None and guard.left_out > 0
    models = f"One model{' that has learnt' * learnt}" if n == 1 else f"{n} models{' that have learnt' * learnt}"
    return (
        f"{models} cannot show whether a measure goes with an outcome: a correlation needs at least three models, and at "
        f"least five before it can count as more than chance."
    )


def _too_few(found: Associations) -> bool:
    """Whether no τ could be significant with this few models after adjusting for all tests, or no correlation is defined."""
    return not found.tests or (found.table.method == "kendall" and _bar(found) is None)


def _bar(found: Associations) -> float | None:
    """The smallest τ that could be significant, in the correlation with the most models."""
    return smallest_significant(max(found.sizes), found.table.rules.level(found.tests))


def _chance(found: Associations) -> str:
    first = found.table.findings[0].correlation
    cannot = "Correlations cannot show whether a measure goes with an outcome"
    if not found.tests:
        return f"{cannot}: none is defined ({first.reason})."
    return (
        f"{cannot}: no {first.symbol} of {_at_most(found)} could count as more than chance after adjusting for "
        f"{counted(found.tests, 'test')}.{_fewest(found)}"
    )


def _fewest(found: Associations) -> str:
    """How many units could show anything at all."""
    level = found.table.rules.level(found.tests)
    n = next((n for n in range(3, MOST) if smallest_significant(n, level) is not None), None)
    if n is None:
        return ""
    return (
        f" It takes at least {n} conditions; more seeds of these do not help."
        if found.by_condition
        else f" It takes {n}."
    )


def _at_most(found: Associations) -> str:
    sizes, thing = found.sizes, "condition" if found.by_condition else "model"
    return f"{'up to ' * (min(sizes) < max(sizes))}{counted(max(sizes), thing)}"


def _words(found: Associations) -> tuple[str, list[str]]:
    pairs = [(m, o) for o in found.outcomes for m in found.measures]
    sure = [pair for pair in pairs if found.sure(*pair)]
    symbol = found.finding(*pairs[0]).correlation.symbol
    if sure:
        best = max(sure, key=lambda pair: abs(found.finding(*pair).correlation.value or 0.0))
        others = len({m for m, _ in sure} - {best[0]})
        more = (
            f" {others} other measure{' goes' if others == 1 else 's go'} with at least one outcome." if others else ""
        )
        lead = f"{_clause(found, *best)}, over {found.finding(*best).correlation.units}.{more}"
    else:
        least = _bar(found) if found.table.method == "kendall" else None
        bar = f" To be significant, {symbol} would have to reach ±{least:.2f}." if least is not None else ""
        adjusted = f"after adjusting for {counted(found.tests, 'test')}"
        lead = f"No measure can be shown to go with any outcome over {_at_most(found)}, {adjusted}.{bar}"
    items = [_outcome(found, outcome) for outcome in found.outcomes]
    return lead, [*items, *_inside(found), *_asides(found, sure), *_fitting(found, sure)]


def _clause(found: Associations, measure: str, outcome: str) -> str:
    c = found.finding(measure, outcome).correlation
    direction = "higher" if (c.value or 0.0) > 0 else "lower"
    known = c.low is not None and c.high is not None
    bounds = f", {c.confidence:.0%} interval {decimal(c.low)} to {decimal(c.high)}" * known
    goes = f"Higher {found.titles[measure]} goes with {direction} {found.titles[outcome]}"
    return f"{goes} ({c.symbol} = {decimal(c.value)}{bounds})"


def _outcome(found: Associations, outcome: str) -> str:
    name = found.titles[outcome]
    order = found.strongest(outcome)
    sure = [m for m in order if found.sure(m, outcome)]
    total = len(found.measures)
    if not order:
        return f"{capital(name)}: {found.finding(found.measures[0], outcome).correlation.reason}."
    if not sure:
        verdicts = [found.finding(m, outcome).verdict(found.table.rules) for m in order]
        undecided, weak = verdicts.count("undecided"), verdicts.count("weak at most")
        parts = [f"undecided for {_share(undecided, total)}"] * (undecided > 0)
        parts += [f"weaker than ±{found.table.rules.relevant:g} for {_share(weak, total)}"] * (weak > 0)
        strongest = found.finding(order[0], outcome).correlation
        shown = f"the strongest is {found.titles[order[0]]}, {strongest.symbol} = {decimal(strongest.value)}"
        return f"{capital(name)}: none of {counted(total, 'measure')} can be shown to go with it ({', '.join(parts)}); {shown}."
    named = [f"{found.titles[m]} ({_signed(found.finding(m, outcome).correlation.value)})" for m in sure]
    go = "goes" if len(sure) == 1 else "go"
    return f"{capital(name)}: {len(sure)} of {counted(total, 'measure')} {go} with it: {some(named, SENTENCES)}."


def _inside(found: Associations) -> list[str]:
    """What holds for models that were trained alike."""
    if not found.by_condition:
        return []
    pairs = [(m, o) for o in found.outcomes for m in found.measures]
    known = [pair for pair in pairs if found.finding(*pair).within_adjusted_p is not None]
    if not known:
        return []
    shown = [pair for pair in known if found.sure_inside(*pair)]
    if not shown:
        return [f"Inside conditions none of {counted(len(known), 'pair')} can be shown to go together."]
    shown.sort(key=lambda pair: -abs(_within(found, pair) or 0.0))
    names = [f"{found.titles[m]} and {found.titles[o]} ({_signed(_within(found, (m, o)))})" for m, o in shown]
    go = "goes" if len(shown) == 1 else "go"
    return [f"Inside conditions {len(shown)} of {counted(len(known), 'pair')} {go} together: {some(names, 3, '; ')}."]


def _within(found: Associations, pair: tuple[str, str]) -> float | None:
    within = found.finding(*pair).within
    return None if within is None else within.value


def _asides(found: Associations, sure: list[tuple[str, str]]) -> list[str]:
    """What makes the sure ones less sure: the opposite sign inside conditions, nothing left once the training loss is known."""
    items = []
    turned = [pair for pair in sure if found.paradox(*pair)]
    if turned:
        names = some((f"{found.titles[m]} and {found.titles[o]}" for m, o in turned), 3, "; ")
        items.append(f"Inside conditions the sign is reversed (Simpson's paradox): {names}.")
    given = " and ".join(found.table.given)
    partial = [found.finding(*pair) for pair in sure]
    asked = [f for f in partial if f.partial is not None]
    if asked and given:
        alpha = found.table.rules.alpha
        kept = sum(f.partial_adjusted_p is not None and f.partial_adjusted_p <= alpha for f in asked)
        items.append(f"{kept} of {counted(len(asked), 'pair')} still go together once {given} is accounted for.")
    return items


def _fitting(found: Associations, sure: list[tuple[str, str]]) -> list[str]:
    """How many models are at minima, as far as their training rows tell, and what is left among those."""
    frame = found.used.frame
    if ERROR not in frame:
        return []
    rows = frame[fits(frame[ERROR]).kept]
    if len(rows) == len(frame):
        return []
    if rows.empty:
        return ["No model fits 99 % of its training rows: these may not be minima."]
    text = f"{len(rows)} of {len(frame)} models fit 99 % of their training rows; the others may not be at minima."
    again = {(m, o): _among(found, rows, m, o) for m, o in sure}
    if not again:
        return [text]
    held = [pair for pair, c in again.items() if c.p_value is not None and c.p_value <= found.table.rules.alpha]
    held = [pair for pair in held if (again[pair].value or 0.0) * (found.finding(*pair).correlation.value or 0.0) > 0]
    units = max(again.values(), key=lambda c: c.n).units
    return [
        f"{text} Among those that fit, {units}, {len(held)} of {counted(len(again), 'pair')} go together (p not adjusted)."
    ]


def _among(found: Associations, rows: pd.DataFrame, measure: str, outcome: str) -> Correlation:
    x, y, method = rows[measure], rows[outcome], found.table.method
    return between(x, y, rows["condition"], method) if found.by_condition else correlation(x, y, method)


def _repeats(study: Cohorts) -> list[str]:
    """Which measures are the same up to a constant factor."""
    groups: dict[str, list[str]] = {}
    for column, first in study.repeats.items():
        groups.setdefault(first, [label(first)]).append(label(column))
    same = "; ".join(" and ".join(names) for names in groups.values())
    return [f"The same up to a constant factor, and tested once: {same}."] if same else []


def _forest(found: Associations) -> Figure:
    outcomes = found.outcomes[:OUTCOMES]
    order = sorted(found.measures, key=lambda m: -sum(_size(found, m, o) for o in outcomes))[:MEASURES]
    symbol = found.finding(order[0], outcomes[0]).correlation.symbol
    name = {"τ": "Kendall's τ", "ρ": "Spearman's ρ", "r": "Pearson's r"}[symbol]
    left = [f"{len(found.measures) - MEASURES} weaker measures"] * (len(found.measures) > MEASURES)
    left += [f"{len(found.outcomes) - OUTCOMES} outcomes"] * (len(found.outcomes) > OUTCOMES)
    more = f" {' and '.join(left)} are in the tables below.".capitalize() if left else ""
    used = found.units
    significant = f"significant after adjusting for {counted(found.tests, 'test')}"
    names = [found.titles[measure] for measure in order]
    along = Axis(
        f"{symbol} with 95% interval, n = {used}; filled: {significant}",
        ticks=(np.array([-1.0, 0.0, 1.0]), ("−1", "0", "1")),
        range=(-1.05, 1.05),
        zero=True,
    )
    down = Axis(ticks=(np.arange(float(len(order))), names), range=(len(order) - 0.5, -0.5))
    panels = [
        Panel(
            f"forest-{outcome}",
            [_rows(found, order, outcome, sure=sure) for sure in (False, True)],
            along,
            down,
            title=found.titles[outcome],
            height=90 + 26 * len(order),
            size=(1.25, 0.2 * len(order)),
        )
        for outcome in outcomes
    ]
    return Figure(
        "forest",
        panels,
        f"{name} of every measure with every outcome{found.of_means}, with its 95% interval, n = {used}. Right of "
        f"zero: the larger the measure, the larger the outcome. Filled: {significant}.{more}",
        kind="forest",
    )


def _rows(found: Associations, order: Sequence[str], outcome: str, *, sure: bool) -> Points:
    """The coefficients of those measures that are, or are not, sure to go with an outcome."""
    every = [(place, m, found.finding(m, outcome).correlation) for place, m in enumerate(order)]
    kept = [each for each in every if each[2].value is not None and found.sure(each[1], outcome) == sure]
    value, low, high = (
        np.array([getattr(c, side) for _, _, c in kept], dtype=np.float64) for side in ("value", "low", "high")
    )
    return Points(
        value,
        np.array([place for place, _, _ in kept], dtype=np.float64),
        "@accent" if sure else "@faint",
        Marker(8, "circle", hollow=not sure),
        x_error=Errors(high - value, value - low, thickness=1.6),
        hover=[f"{found.titles[m]}, {found.titles[outcome]}: {c}" for _, m, c in kept],
    )


def _size(found: Associations, measure: str, outcome: str) -> float:
    return abs(found.finding(measure, outcome).correlation.value or 0.0)


def _share(count: int, total: int) -> str:
    """How many of how many.

    >>> _share(5, 5), _share(2, 5)
    ('all 5', '2')
    """
    return f"all {count}" if count == total else str(count)


def _signed(value: float | None) -> str:
    return decimal(value, "+.2f")
