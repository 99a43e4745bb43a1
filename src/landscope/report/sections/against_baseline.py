"""Conditions against the baseline: the sentences that answer a study's question, a figure, and a table."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from landscope.analysis.verdicts import ALPHA
from landscope.core.text import capital, counted, listed, p_value, significant
from landscope.report.data.cohorts import Cohorts
from landscope.report.data.columns import label
from landscope.report.data.contrasts import RUNS, Contrast, Contrasts, compared
from landscope.report.page.blocks import Cell, Heading, Mark, Table, words
from landscope.report.page.figure import Axis, Errors, Figure, Marker, Panel, Points, Rule

USUAL = "train.hessian_top_eigenvalue"
"""The measure that most readers look for first."""
CONDITIONS = 8
"""The most conditions in the figure."""
FEW = 4
"""Conditions whose values a sentence names."""


def baseline_words(found: Contrasts) -> tuple[list[str], list[str]]:
    """The answer in two sentences, then a sentence on each outcome; then what may explain it.

    The two: which condition is flatter, and whether the flatter ones are better.
    """
    lead = " ".join(filter(None, [_flatness(found), _flatter_and_better(found)]))
    sentences = [lead, _better(found)]
    if not found.named:
        sentences.append("The baseline is the first condition; the key baseline under analysis names another.")
    return [each for each in sentences if each], _explanations(found)


def too_few_words(study: Cohorts, baseline: str | None) -> str:
    """Why no condition can be set against the baseline, and what the single runs have; empty where that is not the reason."""
    pair = compared(study, baseline)
    sizes = study.main.frame["condition"].value_counts()
    few = [name for name in study.conditions if int(sizes.get(name, 0)) < RUNS]
    if pair is None or not few or not study.measures:
        return ""
    have = (
        "every condition has"
        if len(few) == len(study.conditions)
        else f"{listed(few)} {'has' if len(few) == 1 else 'have'}"
    )
    why = f"{have} one run only, and it takes at least {RUNS} seeds of each to tell a difference from chance"
    first, others = pair
    rows = study.main.frame.drop_duplicates("condition").set_index("condition")
    usual = USUAL if USUAL in study.measures else study.measures[0]
    names = [name for name in (*others, first) if name in rows.index]
    shown = [
        f"{label(column)} {listed([f'{significant(float(rows[column][name]))} ({name})' for name in names])}"
        for column in (usual, *study.outcomes[:1])
        if column in rows and len(names) <= FEW
    ]
    seen = f" The single runs have {'; '.join(shown)}." if shown and len(few) == len(study.conditions) else ""
    return f"Which condition is flatter, and which is better, is undecided: {why}.{seen}"


def _flatness(found: Contrasts) -> str:
    """Every condition, the flattest first, with the measure that shows it best."""
    if not found.sharpness:
        return ""
    if found.baseline in found.stuck:
        return f"Sharpness cannot be compared with {found.baseline}: {found.stuck[found.baseline]}."
    counts = {name: _counts(found.of(name)[0]) for name in found.conditions if name not in found.stuck}
    order = sorted(counts, key=lambda name: len(counts[name][1]) - len(counts[name][0]))
    shown = [name for name in order if any(counts[name])]
    totals = {name: len(found.of(name)[0]) for name in order}
    said, before = [], 0
    for place, name in enumerate(shown):
        than = f" than {found.baseline}" if place == 0 else ""
        of = f" of {counted(totals[name], 'measure')}" if totals[name] != before else ""
        said.append(_flat(name, *counts[name], than, of))
        before = totals[name]
    sentence = f"{'; '.join(said)}." if said else ""
    alone = [name for name in order if name in found.resized and not totals[name]]
    rest = [name for name in order if name not in (*shown, *alone)]
    if rest:
        sentence += f" Neither flatter nor sharper than {found.baseline} as far as can be shown: {listed(rest)}."
    if alone:
        sentence += f" No measure here can be compared between {found.baseline} and {listed(alone)}."
    stuck = [f"{name} ({found.stuck[name]})" for name in found.conditions if name in found.stuck]
    if stuck:
        sentence += f" Not compared in sharpness: {listed(stuck)}."
    return capital(sentence.strip())


def _flat(name: str, up: Sequence[Contrast], down: Sequence[Contrast], than: str, of: str) -> str:
    """One condition: by how many measures it is flatter and by how many sharper, the larger number first."""
    kinds = sorted([("flatter", up), ("sharper", down)], key=lambda kind: -len(kind[1]))
    (word, each), (other, fewer) = kinds
    more = f" and {other} by {len(fewer)}" if fewer else ""
    return f"{name} is {word}{than} by {len(each)}{of}{more} ({_strongest(each)})"


def _counts(own: Sequence[Contrast]) -> tuple[list[Contrast], list[Contrast]]:
    return [each for each in own if each.towards > 0], [each for each in own if each.towards < 0]


def _strongest(each: Sequence[Contrast]) -> str:
    """The usual measure where it is among them, otherwise the surest."""
    usual = [c for c in each if c.column == USUAL]
    one = usual[0] if usual else min(each, key=lambda c: c.effect.p_value() if c.effect else 1.0)
    return f"{label(one.column)} {one.change.replace(' (', ' [').replace(')', ']')}"


# Whether the flatter conditions are the better ones.


def _flatter_and_better(found: Contrasts) -> str:
    """What being flatter goes with, outcome by outcome, over the conditions that are shown to differ in both."""
    ways = {name: way(found, name) for name in found.conditions if name not in found.stuck}
    if not found.sharpness or not found.outcomes or found.baseline in found.stuck:
        return ""
    if not any(ways.values()):
        return "Whether flatter is better cannot be decided from that."
    signs: dict[str, list[int]] = {}
    for each in found.outcomes:
        signs.setdefault(label(each.column), []).append(each.towards * ways.get(each.condition, 0))
    shown = {name: {sign for sign in held if sign} for name, held in signs.items()}
    verdicts = [
        f"{said.format(listed(names, 'or' if len(pattern) > 1 else 'and'))}{_alone([signs[name] for name in names])}"
        for said, pattern in (
            ("does not decide {}: conditions go both ways", {1, -1}),
            ("goes with better {}", {1}),
            ("goes with worse {}", {-1}),
        )
        if (names := [name for name, held in shown.items() if held == pattern])
    ]
    if not verdicts:
        return f"Whether flatter is better is undecided: no outcome is shown to differ from {found.baseline}."
    return f"Being flatter {'; it '.join(verdicts)}."


def way(found: Contrasts, condition: str) -> int:
    """1 where more measures are shown to be flatter than sharper, −1 where fewer are, 0 where neither."""
    total = sum(each.towards for each in found.of(condition)[0])
    return (total > 0) - (total < 0)


_KINDS = {1: "flatter, ", -1: "sharper, ", 0: ""}


def _alone(held: Sequence[Sequence[int]]) -> str:
    """Added where only one condition shows it: one is not a rule."""
    return " (one condition)" if max(sum(map(abs, signs)) for signs in held) == 1 else ""


def _better(found: Contrasts) -> str:
    """Every outcome: for which conditions it is better, for which worse."""
    if not found.outcomes:
        return ""
    ways = {name: way(found, name) for name in found.conditions}
    said, undecided = [], []
    for column in dict.fromkeys(each.column for each in found.outcomes):
        own = [each for each in found.outcomes if each.column == column]
        parts = []
        for word, each in zip(("better", "worse"), _counts(own), strict=True):
            if each:
                every = len(each) == len(found.conditions) > 2
                names = [
                    f"{c.condition} ({_KINDS[ways[c.condition]]}{c.change.partition(' (')[0]})" for c in _by_size(each)
                ]
                parts.append(f"{word} for {'all: ' if every else ''}{listed(names)}")
        if parts:
            said.append(f"{label(column)} is {' and '.join(parts)}")
        else:
            undecided.append(label(column))
    sentence = f"{capital('; '.join(said))}, against {found.baseline}." if said else ""
    if undecided:
        sentence += f" No difference from {found.baseline} can be shown in {listed(undecided)}."
    return sentence.strip()


def _by_size(each: Sequence[Contrast]) -> list[Contrast]:
    return sorted(each, key=lambda c: -abs(c.effect.value) if c.effect else 0.0)


def _explanations(found: Contrasts) -> list[str]:
    """What else differs: smaller weights or another training loss alone change most measures of sharpness."""
    resized = [f"{name} ({sizes})" for name, sizes in found.resized.items() if name in found.conditions]
    said, items = [], []
    if resized:
        kept = [each.column for each in found.sharpness if each.condition in found.resized and each.effect]
        by = listed(list(dict.fromkeys(map(label, kept)))) if kept else "none of these"
        items.append(
            f"The networks differ in size from those of {found.baseline}: {listed(resized)}. They are compared only by "
            f"measures that rescaled weights leave as they are: {by}."
        )
    for name in found.conditions:
        own = [
            f"{label(each.column)} {each.change.partition(' (')[0]}"
            for each in found.explaining
            if each.condition == name and each.sure
        ]
        if own and any(_counts(found.of(name)[0])):
            said.append(f"{name} ({', '.join(own)})")
    if not said:
        return items
    return [
        *items,
        f"Part of this may be a difference in the size of the weights or in fit, which changes sharpness by itself: against "
        f"{found.baseline}, {listed(said)}.",
    ]


def baseline_figure(study: Cohorts, found: Contrasts) -> list[Figure]:
    """The ratio to the baseline of every measure and outcome, with its interval; empty where no ratio is defined."""
    panels = [
        panel
        for key, title, held in (("sharpness", "Sharpness", found.sharpness), ("outcomes", "Outcomes", found.outcomes))
        if (panel := _panel(study, key, title, held)) is not None
    ]
    if not panels or len(found.conditions) > CONDITIONS:
        return []
    caption = (
        f"Each condition over {found.baseline}, the ratio of geometric means with its 95% interval. Left of 1: lower than "
        f"{found.baseline}, flatter for all measures of sharpness but PAC-Bayes σ. Filled: shown, after adjusting for all tests "
        f"of the panel (Holm)."
    )
    return [Figure("baseline", panels, caption, kind="wide", across=2)]


def _panel(study: Cohorts, key: str, title: str, held: Sequence[Contrast]) -> Panel | None:
    known = [each for each in held if each.ratio and each.effect is not None]
    columns = list(dict.fromkeys(each.column for each in known))
    conditions = list(dict.fromkeys(each.condition for each in known))
    if not known:
        return None
    step = 0.7 / len(conditions)
    marks: list[Points | Rule] = [Rule(1.0)]
    for place, name in enumerate(conditions):
        number = study.conditions.index(name)
        for sure in (False, True):
            own = [each for each in known if each.condition == name and each.sure == sure]
            ends = np.array([each.ends for each in own], dtype=np.float64).reshape(-1, 3)
            rows = [columns.index(each.column) + step * (place - (len(conditions) - 1) / 2) for each in own]
            marks.append(
                Points(
                    ends[:, 0],
                    np.array(rows),
                    f"@c{number}",
                    Marker(8, "circle", hollow=not sure),
                    x_error=Errors(ends[:, 2] - ends[:, 0], ends[:, 0] - ends[:, 1], f"@c{number}", thickness=1.6),
                    hover=[f"{name}, {label(each.column)}: {each.change}" for each in own],
                    condition=number,
                )
            )
    return Panel(
        f"baseline-{key}",
        marks,
        Axis("times the baseline", scale="log", ticks=_ticks(known)),
        Axis(
            ticks=(np.arange(float(len(columns))), [label(column) for column in columns]),
            range=(len(columns) - 0.4, -0.6),
        ),
        f"{title}: each condition over the baseline, with 95% intervals; n = {_runs(study)}.",
        title=title,
        note=f"n = {_runs(study)}",
        height=110 + max(26, 15 * len(conditions)) * len(columns),
        size=(3.0, max(0.24, 0.13 * len(conditions)) * len(columns) + 0.2),
        fixed=True,
    )


def _runs(study: Cohorts) -> str:
    sizes = study.main.frame["condition"].value_counts()
    few, many = int(sizes.min()), int(sizes.max())
    return f"{few} runs" if few == many else f"{few} to {many} runs"


def _ticks(known: Sequence[Contrast]) -> tuple[np.ndarray, list[str]]:
    """Round ratios over the range of the intervals, 1 among them.

    A handful: a third of them where they would be more than seven.
    """
    low = min(each.ends[1] for each in known)
    high = max(each.ends[2] for each in known)
    steps = np.array([1, 2, 5]) if high / low < 100 else np.array([1])
    powers = 10.0 ** np.arange(np.floor(np.log10(low)), np.ceil(np.log10(high)) + 1)
    places = np.array(sorted({float(step * power) for power in powers for step in steps} | {1.0}))
    inside = places[(places >= low / 1.5) & (places <= high * 1.5)]
    return inside, [f"{place:g}" for place in inside]


def baseline_table(study: Cohorts, found: Contrasts) -> Table:
    """A row for each measure and outcome, a column for each condition: the change with its interval."""
    places = {name: number for number, name in enumerate(study.conditions)}
    rows = []
    for kind, held in (("sharpness", found.sharpness), ("outcome", found.outcomes), ("besides", found.explaining)):
        for column in dict.fromkeys(each.column for each in held):
            own = {each.condition: each for each in held if each.column == column}
            first = next(iter(own.values()))
            cells = [Cell(label(column), title=column), Cell(kind), Cell(significant(first.means[1]))]
            rows.append(cells + [contrast_cell(own[name]) for name in found.conditions])
    heads = words("", "")
    heads += [Heading(name, condition=places.get(name)) for name in (found.baseline, *found.conditions)]
    tests = f"{len(found.sharpness)} tests of sharpness and {len(found.outcomes)} of outcomes"
    return Table(
        heads,
        rows,
        f"Change against {found.baseline}, with its 95% interval: of geometric means where all values are positive, otherwise "
        f"the difference of means; Welch's t-test, {_runs(study)} each. Bold: shown at {ALPHA:.0%} after adjusting for {tests} "
        f"(Holm, each family by itself); blue is flatter or better, orange sharper or worse.",
        key="baseline-table",
    )


def contrast_cell(contrast: Contrast) -> Cell:
    """The change with its interval, shaded where it is shown to be flatter or better, sharper or worse."""
    if contrast.effect is None:
        return Cell("–", mark="muted", title=contrast.reason)
    value, _, interval = contrast.change.partition(" (")
    marks: dict[int, Mark] = {1: "best", -1: "worst", 0: "good" if contrast.sure else ""}
    p = p_value(contrast.effect.p_value())
    return Cell(
        value,
        interval.rstrip(")"),
        marks[contrast.towards],
        title=f"p {p}, decided at {contrast.level:.2g}",
        interval=True,
    )
