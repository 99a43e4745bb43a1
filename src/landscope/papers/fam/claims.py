"""Paper 4 says: adding λκ of one layer to the loss generalises better than plain training, and as well as SAM.

`fam` is the method of the text, with its whole gradient; `fam as coded` is what made the paper's tables: the Hessian held
constant, κ divided by the number of inputs of the layer. Networks that a penalty keeps from learning show nothing about flatness.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from landscope.analysis import Summary, between, difference, slopes
from landscope.papers.fam.step_time import step_claims
from landscope.papers.fam.timing import timing_claims
from landscope.papers.framework.answers import TAU, Answer, Unit
from landscope.papers.framework.claims import Claim
from landscope.papers.framework.compare import printed
from landscope.papers.framework.questions import asked, correlates, effect_of, every, larger
from landscope.papers.framework.values import NoAnswerError, Tables, Values, have_learnt

__all__ = ["claims"]

CODED, WEAKER, RIGHT = "fam as coded", "fam, λ of the code", "fam, right axes"
WORDS = {
    "baseline": "plain training",
    "sam": "SAM",
    "fam": "FAM with its whole gradient",
    CODED: "FAM as coded",
    WEAKER: "FAM with its whole gradient and the λ of the code",
    RIGHT: "FAM as coded but for its axes",
}
BOTTLENECK, RATES = "cifar10-bottleneck", "cifar10-rates"
BEST = {BOTTLENECK: "fam", "cifar10": "fam", "cifar10-tenth": "fam", "classes100": "fam", "svhn": "sam",
        "fashion-mnist": "sam"}  # fmt: skip
"""The most accurate method of each task in table 1; plain training is always the least."""
HEADLINES = {("sam", "baseline"): (14, "+0.08 points"), (CODED, "baseline"): (15, "+0.09 points")}
HEADLINE = (BOTTLENECK, "cifar10")
"""The network of the paper's code, and until it is run the one of its text."""
EQUIVALENT = 0.002
"""Two methods that differ by less are alike: named with the plan of eight runs a side (papers/QUEUE.md)."""
STRENGTHS = ("0.0006", "0.002", "0.02", "0.1", "0.7")
SCORES = {"Dice score": ("dsc", 1), "Hausdorff distance": ("hd", -1), "its 95 % quantile": ("hd95", -1)}
"""Of table 2, and which direction is better."""
SETS = ("shapes", "shapes_shifted")
POINTS = Unit("points", 100)
KAPPA, KAPPA_LAYERWISE = "train.relative_flatness", "train.relative_flatness_layerwise"
SEEDS = 5
"""Of table 3."""


def claims() -> Iterator[Claim]:
    """Every claim, task by task."""
    for part in BEST:
        yield from _accuracy(part)
        yield from (_flatter(part, fam, KAPPA) for fam in ("fam", CODED, RIGHT if part == BOTTLENECK else WEAKER))
        yield replace(_flatter(part, "sam", KAPPA), ours=True)
        yield from _whole_or_coded(part)
    for better, worse in (("sam", "baseline"), (CODED, "baseline"), (CODED, "sam")):
        yield Claim(
            part=RATES,
            text=f"{RATES}: {WORDS[better]} is more accurate than {WORDS[worse]}",
            question=larger(*_ends(RATES, "test.accuracy", better, worse), unit=POINTS),
            trains=True,
        )
    yield from _sweeps()
    yield from _shapes()
    yield from _text()
    yield from timing_claims()
    yield from step_claims()
    yield from _dose_and_response()


def _ends(part: str, column: str, first: str, second: str) -> tuple[Values, Values]:
    one, other = (Values(part=part, column=column, condition=condition) for condition in (first, second))
    return one, other


def _accuracy(part: str) -> Iterator[Claim]:
    """Table 1: FAM and SAM against plain training, and FAM against SAM."""
    ranks = [("sam", "baseline")]
    for fam in ("fam", CODED, RIGHT if part == BOTTLENECK else WEAKER):
        ranks += [(fam, "baseline"), (fam, "sam") if BEST[part] == "fam" else ("sam", fam)]
    for better, worse in ranks:
        headline, paper = HEADLINES.get((better, worse), (0, "")) if part in HEADLINE else (0, "")
        yield Claim(
            part=part,
            text=f"{part}: {WORDS[better]} is more accurate than {WORDS[worse]}",
            question=larger(
                *_ends(part, "test.accuracy", better, worse),
                unit=POINTS,
                margin=EQUIVALENT if part == BOTTLENECK else None,
            ),
            paper=paper,
            headline=headline,
            trains=True,
        )


def _flatter(part: str, fam: str, kappa: str) -> Claim:
    """Whether the penalty does what it is there for."""
    return Claim(
        part=part,
        text=f"{part}: {_in_words(fam)} ends at flatter weights than plain training",
        question=larger(*_ends(part, kappa, "baseline", fam)),
    )


def _in_words(condition: str) -> str:
    """A condition as it stands in a sentence.

    >>> _in_words("fam 0.02 as coded"), _in_words("sam")
    ('FAM as coded with λ = 0.02', 'SAM')
    """
    if condition in WORDS:
        return WORDS[condition]
    _, strength, *coded = condition.split(" ", 2)
    return f"{WORDS[CODED if coded else 'fam']} with λ = {strength}"


def _whole_or_coded(part: str) -> Iterator[Claim]:
    """What the paper could not ask: is the method of its text another one than that of its code, and by its gradient alone?"""
    for whole in ("fam", RIGHT if part == BOTTLENECK else WEAKER):
        yield Claim(
            part=part,
            text=f"{part}: {WORDS[whole]} is more accurate than as coded",
            question=larger(*_ends(part, "test.accuracy", whole, CODED), unit=POINTS),
            ours=True,
        )
        yield Claim(
            part=part,
            text=f"{part}: {WORDS[whole]} is flatter than as coded",
            question=larger(*_ends(part, KAPPA, CODED, whole)),
            ours=True,
        )


def _sweeps() -> Iterator[Claim]:
    """FAM with its whole gradient: over λ, and on other layers than the classifier."""
    part = "cifar10-sweep"
    for column, sign, words in (
        (KAPPA, -1, "the flatter the weights"),
        ("test.accuracy", 1, "the higher the accuracy"),
    ):
        yield Claim(
            part=part,
            text=f"{part}: the larger λ, {words}",
            question=asked(part, _with_strength(part, column, sign, "axis.method"), spans=True),
            ours=True,
            trains=True,
        )
    part = "cifar10-layers"
    for layer in ("classifier", "penultimate", "both"):
        yield Claim(
            part=part,
            text=f"{part}: FAM on {layer if layer == 'both' else f'the {layer}'} is more accurate than plain training",
            question=larger(*_ends(part, "test.accuracy", layer, "baseline"), unit=POINTS),
        )
    for layer, other in (("classifier", "penultimate"), ("penultimate", "classifier")):
        for seen in (layer, other):
            yield Claim(
                part=part,
                text=f"{part}: FAM on the {layer} flattens the {seen}",
                question=larger(*_ends(part, f"train.kappa_{seen}", "baseline", layer), log=True),
                ours=True,
            )


def _with_strength(part: str, column: str, sign: int, axis: str) -> Callable[[Tables], list[Answer]]:
    """τ of a column with λ over the means of conditions."""

    def answers(tables: Tables) -> list[Answer]:
        rows = Values(part=part, column=column).rows(tables)
        words = rows[axis].astype(str).str.removeprefix("λ ").str.replace("−", "-")
        found = between(rows[column], words.where(words != "baseline", "0").astype(float), rows["condition"])
        unit = replace(TAU, scale=sign)
        return [Answer(f"{column} and λ", effect_of(found, sign, part), None, unit, n=f"{found.n} conditions")]

    return answers


def _dose_and_response() -> Iterator[Claim]:
    """Ours: λ of both signs crossed with SAM. Does what is moved move the test error, at equal training loss?"""
    part = "dose-response"
    yield Claim(
        part=part,
        text=f"{part}: the larger λ, the smaller relative flatness κ",
        question=asked(part, _with_strength(part, KAPPA, -1, "axis.penalty"), spans=True),
        ours=True,
    )
    for at, when in (("final", "at the end"), ("loss 0.1", "at a loss of 0.1"), ("loss 0.01", "at a loss of 0.01")):
        for column, words in ((KAPPA, "κ"), ("train.hessian_top_eigenvalue", "λ₁")):
            for given, meaning in (((), ""), (("train.loss",), ", given the training loss")):
                yield Claim(
                    part=part,
                    text=f"{part}: a larger {words} goes with a higher test error over conditions {when}{meaning}",
                    question=correlates(
                        Values(part=part, column=column, at=at), "test.error", 1, over="conditions", given=given
                    ),
                    ours=True,
                )
            yield Claim(
                part=part,
                text=f"{part}: the test error rises with {words} from condition to condition {when}",
                question=asked(part, _response(Values(part=part, column=column, at=at)), spans=True),
                ours=True,
            )
            for radius in ("SAM 0.05", "SAM 0.1"):
                ends = (
                    Values(part=part, column=column, condition=name, axis="axis.radius", at=at)
                    for name in ("plain", radius)
                )
                yield Claim(
                    part=part,
                    text=f"{part}: {radius} has a smaller {words} than plain training {when}, at the same penalty",
                    question=larger(*ends, pairs="axis.radius", log=True),
                    ours=True,
                )


def _response(x: Values) -> Callable[[Tables], list[Answer]]:
    """The slope of the test error with the logarithm of a measure of sharpness; conditions are the units, seeds lie inside."""

    def answers(tables: Tables) -> list[Answer]:
        rows = x.rows(tables)
        rows = rows[have_learnt(rows) & (rows[x.column] > 0)]
        found = slopes(rows[x.column].map(math.log), rows["test.error"], rows["condition"]).between
        if found is None:
            raise NoAnswerError(f"{x.part} has too few conditions to tell")
        return [Answer(f"test.error and {x.column}", found, None, _PER_E, n=f"{found.n} conditions")]

    return answers


_PER_E = Unit("points per factor e", 100)


def _shapes() -> Iterator[Claim]:
    """Table 2. The two kinds of FAM are asked about one by one, all λ together."""
    part = "skulls"
    for kind, words in (("", WORDS["fam"]), (" as coded", WORDS[CODED])):
        names = [f"fam {strength}{kind}" for strength in STRENGTHS]
        for score, (column, sign) in SCORES.items():
            each = (_ends(part, f"{split}.{column}", name, "baseline") for name in names for split in SETS)
            yield Claim(
                part=part,
                text=f"skulls: {words} completes them better than plain training by {score}, for every λ and kind of defect",
                question=every(larger(*(pair if sign > 0 else pair[::-1]), pairs="axis.method") for pair in each),
                paper="0.646 → 0.716 to 0.718 (Dice)" if sign > 0 else "",
            )
        yield Claim(
            part=part,
            text=f"skulls: {words} has a higher training loss than plain training, for every λ",
            question=every(larger(*_ends(part, "train.loss", name, "baseline"), pairs="axis.method") for name in names),
        )
        yield from (_flatter(part, name, KAPPA_LAYERWISE) for name in names)
        yield Claim(
            part=part,
            text=f"skulls: {words} with λ = 0.7 gives more nearly one shape, whatever it is shown, than plain training",
            question=larger(*_ends(part, "shapes.variety", "baseline", names[-1])),
        )
    for part in (
        "skulls-published",
        "skulls",
    ):  # the headline is of the code's own loss and batches, once they were run
        yield Claim(
            part=part,
            text=f"{part}: FAM as coded completes them better than plain training (Dice score, λ = 0.002)",
            question=larger(
                *_ends(part, "shapes.dsc", "fam 0.002 as coded", "baseline"),
                pairs="axis.method",
                theirs=0.071,
                margin=0.01,
            ),
            paper="+0.071 Dice, other skulls",
            headline=16,
        )
        yield Claim(
            part=part,
            text=f"{part}: plain training overfits: its Dice score is higher at half time than at the end",
            question=larger(
                Values(part=part, column="shapes.dsc", condition="baseline", at="half time"),
                Values(part=part, column="shapes.dsc", condition="baseline"),
                pairs="run",
            ),
            paper="0.657 → 0.646",
        )
        yield Claim(
            part=part,
            text=f"{part}: plain training does worse on other kinds of defects than on those it has seen",
            question=larger(
                Values(part=part, column="shapes.dsc", condition="baseline"),
                Values(part=part, column="shapes_shifted.dsc", condition="baseline"),
                pairs="run",
            ),
            paper="−0.005",
        )


def _text() -> Iterator[Claim]:
    """Table 3 and figure 3; `rte-linear` has the linear decay of the rate that its trainer has."""

    def table(condition: str) -> Summary:
        return printed("fam", "table 3", condition, "accuracy", data="rte", n=SEEDS)

    theirs = difference(table("fam 3e6"), table("baseline"))
    for part in ("rte", "rte-linear"):
        for fam in ("fam", CODED, "fam 0.1"):
            if part == "rte-linear" and fam != CODED:
                continue
            yield Claim(
                part=part,
                text=f"{part}: {_in_words(fam)} is more accurate than plain training",
                question=larger(
                    *_ends(part, "test.accuracy", fam, "baseline"),
                    unit=POINTS,
                    theirs=theirs if fam == CODED else None,
                ),
                paper="+2.5 points" if fam == CODED else "",
                headline=17 if (part, fam) == ("rte", CODED) else 0,
                trains=True,
            )
            yield Claim(
                part=part,
                text=f"{part}: {_in_words(fam)} ends with a lower development loss than plain training",
                question=larger(*_ends(part, "test.loss", "baseline", fam)),
            )
            yield _flatter(part, fam, KAPPA)
