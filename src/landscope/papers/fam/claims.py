"""Paper 4 says: adding λκ of one layer to the loss generalises better than plain training, and as well as SAM.

`fam` is the method of the text, with its whole gradient; `fam as coded` is what made the paper's tables: the Hessian held
constant, κ divided by the number of inputs of the layer. Networks that a penalty keeps from learning show nothing about flatness.
"""

from __future__ import annotations

from collections.abc import Iterator

from landscope.analysis import Summary, difference
from landscope.papers.fam.timing import timing_claims
from landscope.papers.framework.claims import Claim
from landscope.papers.framework.compare import printed
from landscope.papers.framework.questions import Unit, every, larger
from landscope.papers.framework.values import Values

__all__ = ["claims"]

CODED, WEAKER = "fam as coded", "fam, λ of the code"
WORDS = {
    "baseline": "plain training",
    "sam": "SAM",
    "fam": "FAM with its whole gradient",
    CODED: "FAM as coded",
    WEAKER: "FAM with its whole gradient and the λ of the code",
}
BEST = {"cifar10": "fam", "cifar10-tenth": "fam", "cifar10-bottleneck": "fam", "classes100": "fam", "svhn": "sam",
        "fashion-mnist": "sam"}  # fmt: skip
"""The most accurate method of each task in table 1; plain training is always the least."""
HEADLINES = {("cifar10", "sam", "baseline"): (14, "+0.08 points"), ("cifar10", CODED, "baseline"): (15, "+0.09 points")}
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
        yield from (_flatter(part, fam, KAPPA) for fam in ("fam", CODED, WEAKER))
        yield from _whole_or_coded(part)
    yield from _shapes()
    yield from _text()
    yield from timing_claims()


def _ends(part: str, column: str, first: str, second: str) -> tuple[Values, Values]:
    one, other = (Values(part=part, column=column, condition=condition) for condition in (first, second))
    return one, other


def _accuracy(part: str) -> Iterator[Claim]:
    """Table 1: FAM and SAM against plain training, and FAM against SAM."""
    ranks = [("sam", "baseline")]
    for fam in ("fam", CODED, WEAKER):
        ranks += [(fam, "baseline"), (fam, "sam") if BEST[part] == "fam" else ("sam", fam)]
    for better, worse in ranks:
        headline, paper = HEADLINES.get((part, better, worse), (0, ""))
        yield Claim(
            part=part,
            text=f"{part}: {WORDS[better]} is more accurate than {WORDS[worse]}",
            question=larger(*_ends(part, "test.accuracy", better, worse), unit=POINTS),
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
    for whole in ("fam", WEAKER):
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
    yield Claim(
        part=part,
        text="skulls: FAM as coded completes them better than plain training (Dice score, λ = 0.002)",
        question=larger(
            *_ends(part, "shapes.dsc", "fam 0.002 as coded", "baseline"), pairs="axis.method", theirs=0.071, margin=0.01
        ),
        paper="+0.071 Dice, other skulls",
        headline=16,
    )
    yield Claim(
        part=part,
        text="skulls: plain training overfits: its Dice score is higher at half time than at the end",
        question=larger(
            Values(part=part, column="shapes.dsc", condition="baseline", at="half time"),
            Values(part=part, column="shapes.dsc", condition="baseline"),
            pairs="run",
        ),
        paper="0.657 → 0.646",
    )
    yield Claim(
        part=part,
        text="skulls: plain training does worse on other kinds of defects than on those it has seen",
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
