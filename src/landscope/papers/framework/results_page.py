"""RESULTS.md: twenty claims on one scale, then one screen for each paper; nothing on it is written by hand but prose.

Prose stands in `paper.yaml`: what was found in a sentence, the question, three lines of answer, what surprised. `{5}` in it is
what was found for headline claim 5, `{9.2}` the second effect that claim 9 is judged by.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from landscope.analysis.verdicts import ALPHA, VERDICTS
from landscope.measures import MEASURES
from landscope.papers.framework.answers import Answer
from landscope.papers.framework.claims import Told
from landscope.papers.framework.drawing import ForestRow, forest, scatter
from landscope.papers.framework.paper import PAPERS, Figure, Paper
from landscope.papers.framework.values import NoAnswerError, rows_at

if TYPE_CHECKING:
    from landscope.papers.framework.results import Findings

__all__ = ["figures", "page_text"]

MARGIN = 0.2
"""|D| below which an effect is of no use: the band of the forest."""
FOREST = "forest.svg"
LABELS = {
    1: "Augmentation lowers the test error (VGG-19)",
    2: "Augmentation's minima are sharper (VGG-19)",
    3: "Weight decay raises the test error (VGG-19)",
    4: "Sharper conditions are better calibrated",
    5: "A temperature leaves most of the ECE",
    6: "IGS follows the training loss",
    7: "Regularised minima are sharper (ResNet-18)",
    8: "… and better in every respect (ResNet-18)",
    9: "Harder function, sharper minimum (circles)",
    10: "L2 raises λ₁ (softmax regression, MLP)",
    11: "L2 raises the MLP's accuracy",
    12: "Adam + averaging: sharper and better (VGG-16)",
    13: "L2: sharper and better (residual networks)",
    14: "SAM beats plain training (ResNet-18)",
    15: "FAM beats plain training (ResNet-18)",
    16: "FAM completes shapes better (made-up skulls)",
    17: "FAM beats plain training (RTE, MiniLM)",
    18: "Adaptive sharpness against test loss (FCNN, GAT)",
    19: "Adaptive sharpness against test loss (LeNet-5)",
    20: "Ours: the Hessian's trace orders the test error",
}
"""The claims that were fixed as headlines, as the figure names them."""
INTRODUCTION = """\
Five papers ask what flat and sharp minima have to do with generalisation and calibration. We ran their experiments again, as
their text describes them and as their code did them, and put their claims to one test. Made by `landscope paper results {folder}`
from the records under `{folder}/`; every number comes from them. `landscope paper run PAPER --size paper --from {folder}` makes
the runs that a paper lacks."""
CAPTION = """\
D is how often a claim holds among pairs of models (one of either condition; for a correlation any two) less how often it fails:
1 is always, 0 is chance, −1 is never. Filled marks are ours, with the interval of the test; hollow ones are the papers', where
they give a spread or a number of models. In the band |D| < 0.2, which is too little to be of use."""
RULES = """\
A claim **replicates** where its effect is shown in the claimed direction (two-sided p ≤ its level). It is **excluded** where
the opposite is shown, where it is shown to be smaller than a margin named beforehand, or where it differs from the paper's
number by more than both errors allow. It is **explained** where another claim that replicates shows what the paper's number comes
from, **undecided** where none of these is so, and **not tested** where networks have not learnt, runs failed, only a reduced
size was run, or fewer than three quarters of the conditions that a correlation is over. Behind a verdict stands what took the
place of the paper's data or network, if anything did. Twenty claims were fixed as headlines; Holm's procedure gives each its
level. All others are exploratory, at 0.05 each. Brackets are intervals of the same tests: at the level of the claim in the figure
and the table of headlines, of 95 % elsewhere. n counts what is independent: runs of either condition (3 and 3), pairs of runs
that share a seed, conditions where conditions differ. Of a claim of several parts the two that decide are shown."""


def page_text(found: Findings, folder: Path, home: Path) -> str:
    """The page for the records of a folder, with links from `home`."""
    where = _from(folder, home)
    lines = [
        "# Results",
        "",
        INTRODUCTION.format(folder=where),
        "",
        f"![Twenty claims on one scale]({where}/{FOREST})",
        "",
        CAPTION,
        "",
        *(f"- {_filled(PAPERS[name].lead, found)}" for name in found.kept if PAPERS[name].lead),
        "",
        RULES,
        "",
        *_headlines(found),
        "",
        *_counts(found, where),
    ]
    for name in found.kept:
        lines += ["", *_screen(PAPERS[name], found, where)]
    missing = [name for name in PAPERS if name not in found.kept]
    if missing:
        lines += [
            "",
            "Not run yet: " + ", ".join(f"`landscope paper run {name} --size paper`" for name in missing) + ".",
        ]
    return "\n".join(lines) + "\n"


def figures(found: Findings) -> dict[str, str]:
    """File name → SVG: the forest, and one figure for each paper."""
    made = {FOREST: forest([row for one in found.headlines for row in _rows(one)], MARGIN)}
    for name in found.kept:
        figure = PAPERS[name].figure
        if figure is not None and (text := _scatter(figure, found, name)):
            made[f"{name}.svg"] = text
    return made


def _rows(told: Told) -> list[ForestRow]:
    """One row for a claim; of a family a row for each of its two most telling members."""
    claim, verdict, alpha = told.claim, told.judgement.verdict, told.judgement.alpha
    label = f"{claim.headline}  {LABELS[claim.headline]}"
    if not told.answers or verdict == "not tested":
        return [ForestRow(label, verdict, value=told.judgement.why)]
    rows = []
    for number, answer in enumerate(_telling(told, 2)):
        ours = answer.ours.concordance(1 - alpha)
        theirs = None if answer.theirs is None or answer.theirs.n < 2 else answer.theirs.concordance().value
        name = label if number == 0 else in_words(answer.label)
        rows.append(
            ForestRow(name, verdict, (ours.value, ours.low, ours.high), theirs, answer.unit.written(answer.ours, alpha))
        )
    return rows


def _scatter(figure: Figure, found: Findings, paper: str) -> str:
    try:
        rows = rows_at(found.tables[paper], figure.part, figure.at)
    except NoAnswerError:
        return ""
    if not {figure.x, figure.y} <= set(rows):
        return ""
    points = {
        str(condition): list(zip(own[figure.x], own[figure.y], strict=True))
        for condition, own in rows.groupby("condition", sort=False)
    }
    labels = {"x": figure.x_label or figure.x, "y": figure.y_label or figure.y}
    return scatter(points, **labels, title=figure.title, log_x="x" in figure.log, log_y="y" in figure.log)


def _headlines(found: Findings) -> list[str]:
    lines = ["| # | claim | ours | n | paper | verdict |", "|--:|---|---|---|---|---|"]
    for one in found.headlines:
        cells = [str(one.claim.headline), one.claim.text, _ours(one), _units(one), one.claim.paper or "–", one.verdict]
        lines.append(f"| {' | '.join(map(_cell, cells))} |")
    return lines


def _telling(told: Told, most: int) -> list[Answer]:
    """So many answers of a family, in the order in which its text names them: the least certain ones.

    Of an excluded one first what excludes it, then what speaks for it.
    """
    excluded = told.judgement.verdict == "excluded"

    def rank(place: int) -> tuple[bool, bool, float]:
        ours = told.answers[place].ours
        return excluded and ours is not told.judgement.ours, excluded and ours.value < 0, -ours.p_value()

    places = sorted(range(len(told.answers)), key=rank)[:most]
    return [told.answers[place] for place in sorted(places)]


def _ours(told: Told, most: int = 2, alpha: float | None = None) -> str:
    """What was found, or why nothing was; of a family the telling members, in the order of the claim."""
    level = told.judgement.alpha if alpha is None else alpha
    if told.judgement.verdict == "not tested":
        return told.judgement.why
    family = len(told.answers) > 1
    texts = [
        f"{in_words(answer.label)}: " * family + answer.unit.written(answer.ours, level)
        for answer in _telling(told, most)
    ]
    return "; ".join(texts) + (f"; and {len(told.answers) - most} more" if len(told.answers) > most else "")


def _units(told: Told, most: int = 2) -> str:
    """Of how many, once where all have as many."""
    if told.judgement.verdict == "not tested":
        return "–"
    return "; ".join(dict.fromkeys(answer.n.partition(";")[0] for answer in _telling(told, most) if answer.n)) or "–"


def in_words(label: str) -> str:
    """A label without the grammar of columns.

    >>> in_words("factor 0.7, train.corrected.relative_flatness"), in_words("train.igs and test.error")
    ('factor 0.7, relative flatness', 'IGS and test error')
    """

    def named(match: re.Match[str]) -> str:
        return MEASURES[match[1]].title if match[1] in MEASURES else match[1].replace("_", " ")

    bare = re.sub(r"\btrain\.(?:published\.|corrected\.)?(\w+)", named, label)
    return re.sub(r"(?<=[a-z])[._](?=[a-z])", " ", bare)


def _counts(found: Findings, where: PurePosixPath) -> list[str]:
    lines = [f"| paper | runs | {' | '.join(VERDICTS)} | everything |", f"|---|--:{'|--:' * len(VERDICTS)}|---|"]
    for name, parts in found.kept.items():
        counts = Counter(one.judgement.verdict for one in found.told[name])
        runs = sum(len(kept.bundle.records) for kept in parts.values())
        title = PAPERS[name].title
        cells = [f"[{title}](#{_anchor(title)})", f"{runs:,}", *(str(counts[verdict]) for verdict in VERDICTS)]
        lines.append(f"| {' | '.join(cells)} | [{name}.md]({where}/{name}.md) |")
    return lines


def _screen(paper: Paper, found: Findings, where: PurePosixPath) -> list[str]:
    told = found.told[paper.name]
    lines = [f"## {paper.title}", "", f"*{paper.question}* {paper.paper}", ""]
    lines += [f"- {_filled(line, found)}" for line in paper.answer]
    if paper.figure is not None:
        lines += ["", f"![{paper.figure.title}]({where}/{paper.name}.svg)"]
    known: dict[str, Told] = {}
    for one in told:
        if one.claim.text not in known or known[one.claim.text].judgement.verdict == "not tested":
            known[one.claim.text] = one
    if also := [known[text] for text in paper.also if text in known]:
        lines += ["", "| also | ours | n | paper | verdict |", "|---|---|---|---|---|"]
        for one in also:
            cells = [one.claim.text, _ours(one, 1), _units(one, 1), one.claim.paper or "–", one.verdict]
            lines.append(f"| {' | '.join(map(_cell, cells))} |")
    if paper.surprise:
        lines += ["", f"**What surprised us.** {_filled(paper.surprise, found)}"]
    return lines


def _filled(text: str, found: Findings) -> str:
    known = {one.claim.headline: one for one in found.headlines}

    def filled(match: re.Match[str]) -> str:
        one, place = known.get(int(match[1])), match[2]
        if one is None:
            return "(not run)"
        if place is None or one.judgement.verdict == "not tested":
            return _ours(one, alpha=ALPHA)
        answer = one.answers[int(place) - 1]
        return answer.unit.written(answer.ours, ALPHA)

    return re.sub(r"\{(\d+)(?:\.(\d+))?\}", filled, text)


def _anchor(title: str) -> str:
    """Where a heading is linked to.

    >>> _anchor("FAM: relative flatness, again")
    'fam-relative-flatness-again'
    """
    return re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")


def _from(path: Path, home: Path) -> PurePosixPath:
    return PurePosixPath(Path(os.path.relpath(path, home)).as_posix())


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
