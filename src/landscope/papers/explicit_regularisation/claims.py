"""Paper 1 says: regularisers make minima sharper; sharpness does not tell how well a model generalises, but how well it is
calibrated; a temperature hardly helps models without a regulariser.

Its four conditions (`cifar10`, `cifar10-seeds`, `classes100`) tell conditions apart, and no correlation: over four means even a
perfect one has p = 0.083. Correlations are asked of 24 conditions (`cifar10-strengths`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from landscope.analysis import Effect, Order, Summary, difference, log_ratio
from landscope.analysis.coefficients import as_kendall
from landscope.papers.framework.answers import RATIO, Answer, Unit
from landscope.papers.framework.claims import Claim
from landscope.papers.framework.compare import printed
from landscope.papers.framework.questions import Question, above, asked, correlates, every, larger, moves, none, share
from landscope.papers.framework.values import OWN_LOSS, Tables, Values

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["claims"]

PARTS = {
    "cifar10-seeds": "1 early stopping",
    "cifar10": "1 early stopping",
    "classes100-seeds": "2 early stopping",
    "classes100": "2 early stopping",
}
"""And the table of final models, which the paper calls early stopping (its checkpoints are swapped)."""
HUNDRED = ("classes100", "classes100-seeds")
HEADLINE = ("cifar10-seeds", "cifar10")
"""Where a headline claim is asked of both, the first that was run counts."""
MEASURES = {"fisher_rao": True, "relative_flatness": True, "sam_sharpness": True, "log_igs": False}
"""Of sharpness, and whether they are compared by their ratio; IGS has its logarithm."""
KINDS = {"published": "as coded", "corrected": "as defined"}
WORDS = {"relative_flatness": "relative flatness", "sam_sharpness": "SAM-sharpness", "log_igs": "ln IGS"}
POINTS = Unit("points", 100)
SEEDS = 3
STRENGTHS, LEVELS, CONDITIONS = "cifar10-strengths", "cifar10-levels", 4
SMALL = 0.2
"""A τ below which a measure is of no use."""


def _printed(part: str, condition: str, metric: str, scale: float = 1.0) -> Summary:
    data = "cifar100" if part in HUNDRED else "cifar10"
    return printed("explicit-regularisation", PARTS[part], condition, metric, data=data, n=SEEDS, scale=scale)


def claims() -> Iterator[Claim]:
    """Every claim, part by part."""
    for part in PARTS:
        yield from _errors(part)
        yield from _sharper(part)
        yield from _calibrated(part)
        yield from _tempered(part)
    yield from _minimised()
    yield from _over_conditions()
    yield from _only_temperature_and_loss()
    yield _harder()


def _errors(part: str) -> Iterator[Claim]:
    for text, better, worse, headline in (
        ("augmentation generalises better than no regulariser", "augmentation", "baseline", 1),
        ("dropout generalises better than no regulariser", "dropout", "baseline", 0),
        ("weight decay of 5e-4 generalises worse than no regulariser", "baseline", "weight decay", 3),
    ):
        if part in HUNDRED and better == "baseline":
            continue  # of 100 classes the paper says that it makes no difference
        theirs = difference(*(_printed(part, name, "test_error_pct", 0.01) for name in (worse, better)))
        for at in ("final", "best"):
            first, second = (Values(part=part, column="test.error", condition=c, at=at) for c in (worse, better))
            yield Claim(
                part=part,
                text=f"{part}: {text} ({at} weights)",
                question=larger(first, second, unit=POINTS, theirs=theirs if at == "final" else None),
                paper=f"{100 * theirs.value:.1f} points",
                headline=headline if part in HEADLINE and at == "final" else 0,
            )


def _sharper(part: str) -> Iterator[Claim]:
    for regulariser in ("augmentation", "weight decay"):
        for kind, meaning in KINDS.items():
            each = {
                name: larger(
                    *(
                        Values(part=part, column=f"train.{kind}.{name}", condition=condition)
                        for condition in (regulariser, "baseline")
                    ),
                    log=ratio,
                    theirs=_published_ratio(part, regulariser, name, ratio) if kind == "published" else None,
                )
                for name, ratio in MEASURES.items()
                # the corrected measure is IGS itself, of which the ratio is taken
                if not (part in HUNDRED and name == "log_igs")
            }
            if "log_igs" in each and kind == "corrected":
                ends = (
                    Values(part=part, column="train.corrected.log_igs", condition=condition)
                    for condition in (regulariser, "baseline")
                )
                each["log_igs"] = larger(*ends, log=True)
            yield Claim(
                part=part,
                text=f"{part}: {regulariser} gives sharper minima than no regulariser, by every measure ({meaning})",
                question=every(each.values()),
            )
            if part in HEADLINE and (regulariser, kind) == ("augmentation", "published"):
                yield Claim(
                    part=part,
                    text=f"{part}: augmentation gives sharper minima than no regulariser, by relative flatness",
                    question=each["relative_flatness"],
                    paper="× 5.5",
                    headline=2,
                )


def _published_ratio(part: str, regulariser: str, name: str, ratio: bool) -> Effect | None:
    metric = f"{name}_x100" if name == "sam_sharpness" else name
    try:
        ends = [_printed(part, condition, metric) for condition in (regulariser, "baseline")]
    except ValueError:  # the paper has none of 100 classes
        return None
    return log_ratio(*ends) if ratio else difference(*ends)


def _calibrated(part: str) -> Iterator[Claim]:
    theirs = difference(*(_printed(part, name, "ece_pct", 0.01) for name in ("baseline", "augmentation")))
    ends = (Values(part=part, column="test.ece", condition=name) for name in ("baseline", "augmentation"))
    yield Claim(
        part=part,
        text=f"{part}: augmentation is better calibrated than no regulariser, before any temperature",
        question=larger(*ends, unit=POINTS, theirs=theirs),
        paper=f"{100 * theirs.value:.1f} points",
    )


def _tempered(part: str) -> Iterator[Claim]:
    for condition in ("baseline", "dropout"):
        before = Values(part=part, column="test.ece", condition=condition)
        for temperature, how in (("fitted", "to convergence"), ("coded", "as its code does")):
            after = Values(part=part, column="test.ece", condition=condition, temperature=temperature)  # type: ignore[arg-type]
            yield Claim(
                part=part,
                text=f"{part}: a temperature fitted {how} leaves more than half of the calibration error of {condition} models",
                question=above(part, "ECE after over before", share(after, before), 0.5, log=True, percent=True),
                paper="about 70 % is left",
                headline=5 if part in HEADLINE and (condition, temperature) == ("baseline", "fitted") else 0,
            )
    for regulariser in ("augmentation", "weight decay"):
        for temperature, how in (("fitted", "to convergence"), ("coded", "as its code does")):
            ends = (
                Values(part=part, column="test.ece", condition=condition, temperature=temperature)  # type: ignore[arg-type]
                for condition in ("baseline", regulariser)
            )
            yield Claim(
                part=part,
                text=f"{part}: with a temperature fitted {how}, {regulariser} is still better calibrated than no regulariser",
                question=larger(*ends, unit=POINTS),
            )
    for kind, meaning in KINDS.items():
        column = f"train.{kind}.relative_flatness"
        yield Claim(
            part=part,
            text=f"{part}: a temperature makes the landscape sharper: relative flatness ({meaning}) is larger",
            question=larger(
                Values(part=part, column=column, temperature="fitted"),
                Values(part=part, column=column),
                pairs="run",
                log=True,
            ),
        )


DECAY, INPUTS = 5e-4, 512
"""Of the condition weight decay; of the classifier."""


def _minimised() -> Iterator[Claim]:
    """Section 4.2.2: what is sharper on plain rows may not be so by the loss that was minimised, with its rows and its decay.

    The term γ/2 ‖w‖² adds γ to λ₁, and γ m ‖W‖² to relative flatness. Without augmentation the augmented rows are the plain ones.
    """
    part = "cifar10-seeds"

    def with_decay(regulariser: str) -> Iterator[Question]:
        gamma = DECAY if regulariser == "weight decay" else 0.0
        for column, added in (
            ("train.augmented_hessian_top_eigenvalue", lambda rows: gamma),
            ("train.augmented_relative_flatness", lambda rows: gamma * INPUTS * rows["train.published.weight_norm"]),
        ):
            yield asked(part, _larger_with(part, regulariser, column, added))

    for regulariser in ("augmentation", "weight decay"):
        yield Claim(
            part=part,
            text=f"{part}: {regulariser} is sharper than no regulariser also by the loss that was minimised",
            question=every(with_decay(regulariser)),
        )


def _larger_with(
    part: str, regulariser: str, column: str, added: Callable[[pd.DataFrame], pd.Series[float] | float]
) -> Callable[[Tables], list[Answer]]:
    def answers(tables: Tables) -> list[Answer]:
        one, other = (
            Values(part=part, column=column, condition=name).rows(tables) for name in (regulariser, "baseline")
        )
        ours = log_ratio(list(one[column] + added(one)), list(other[column]))
        label = f"{column} with its decay: {regulariser} over baseline"
        return [Answer(label, ours, None, RATIO, n=f"{len(one)} and {len(other)}")]

    return answers


def _rho(value: float) -> Order:
    """The paper's ρ, counted positive, as the τ of its four conditions."""
    return Order(as_kendall(abs(value), "spearman"), CONDITIONS)


def _over_conditions() -> Iterator[Claim]:
    """What the paper correlates over means of four conditions, asked of 24; final weights."""

    def values(column: str, temperature: str = "none") -> Values:
        return Values(part=STRENGTHS, column=column, temperature=temperature)  # type: ignore[arg-type]

    def claim(text: str, question: Question, paper: str = "", headline: int = 0) -> Claim:
        return Claim(part=STRENGTHS, text=f"over conditions: {text}", question=question, paper=paper, headline=headline)

    for kind, meaning in KINDS.items():
        of = f"train.{kind}."
        for name, rho in (("log_igs", 1.0), ("sam_sharpness", 0.86), ("relative_flatness", 0.67)):
            if (kind, name) == ("corrected", "sam_sharpness"):
                continue
            yield claim(
                f"{WORDS[name]} ({meaning}) rises with the training loss",
                correlates(values(of + name), "train.loss", 1, over="conditions", theirs=_rho(rho)),
                f"ρ = {rho}".replace("-", "−"),
                6 if (kind, name) == ("published", "log_igs") else 0,
            )
        for name, before, after in (("relative_flatness", -0.75, -0.78), ("log_igs", -0.74, -0.80)):
            for temperature, rho in (("none", before), ("fitted", after), ("coded", after)):
                if (kind, name) == ("corrected", "relative_flatness") and temperature != "none":
                    continue  # on equal rows it is the published one
                when = {
                    "none": "before any temperature",
                    "fitted": "after a converged one",
                    "coded": "after that of its code",
                }
                yield claim(
                    f"sharper minima are better calibrated {when[temperature]}: {WORDS[name]} ({meaning}) falls with the ECE",
                    correlates(values(of + name, temperature), "test.ece", -1, over="conditions", theirs=_rho(rho)),
                    f"ρ = {rho}".replace("-", "−"),
                    4 if (kind, name, temperature) == ("published", "relative_flatness", "none") else 0,
                )
        yield claim(
            f"a larger weight norm ({meaning}) goes with a lower test error",
            correlates(values(of + "weight_norm"), "test.error", -1, over="conditions", theirs=_rho(-0.74)),
            "ρ = −0.74",
        )
        yield claim(
            f"no measure of sharpness ({meaning}) goes with the test error",
            none(
                correlates(values(of + name), "test.error", 1, over="conditions", margin=SMALL)
                for name in ("fisher_rao", "relative_flatness", "log_igs")
            ),
        )
    for temperature, rho in (("none", 0.54), ("fitted", 0.24)):
        yield claim(
            f"models with a higher test error are worse calibrated ({'before' if rho > 0.5 else 'after'} a temperature)",
            correlates(values("test.error", temperature), "test.ece", 1, over="conditions", theirs=_rho(rho)),
            f"ρ = {rho}".replace("-", "−"),
        )
    yield claim(
        "its SAM-sharpness is the noise of redrawn rows: it follows the spread of the training loss without any perturbation",
        correlates(values("train.redrawn.sam_sharpness"), "train.loss", 1, over="conditions", theirs=_rho(0.86)),
        "ρ = 0.86",
    )


def _only_temperature_and_loss() -> Iterator[Claim]:
    """Ours: is what sharpness has to do with calibration more than the training loss and the temperature?"""
    for name in ("published.relative_flatness", "published.log_igs", "hessian_top_eigenvalue"):
        column, tempered = f"train.{name}", name != "hessian_top_eigenvalue"
        for at in ("final", "loss 0.1", "loss 0.01"):
            yield Claim(
                part=LEVELS,
                text=f"over conditions, {_AT[at]}: {name} falls with the ECE, given the training loss",
                question=correlates(
                    Values(part=LEVELS, column=column, at=at), "test.ece", -1, over="conditions", given=["train.loss"]
                ),
                ours=True,
            )
            if tempered:
                yield Claim(
                    part=LEVELS,
                    text=f"over conditions, {_AT[at]}: after a converged temperature, {name} falls with the ECE, given that "
                    "temperature and the training loss",
                    question=correlates(
                        Values(part=LEVELS, column=column, at=at, temperature="fitted"),
                        "test.ece",
                        -1,
                        over="conditions",
                        given=["calibration.temperature", OWN_LOSS],
                    ),
                    ours=True,
                )
        yield from _slopes(name, log=not name.endswith("log_igs"), tempered=tempered)
    yield from _slopes("loss", log=True, tempered=False)


_AT = {"final": "at the end", "loss 0.1": "at a training loss of 0.1", "loss 0.01": "at a training loss of 0.01"}


def _slopes(name: str, *, log: bool, tempered: bool) -> Iterator[Claim]:
    """Of the ECE, inside trainings (a loss of 0.3, 0.1, 0.01, the end) and between them, before and after a temperature."""
    for temperature in ("none", "fitted") if tempered else ("none",):
        when = "before any temperature" if temperature == "none" else "after a converged one"
        for between in (False, True):
            yield Claim(
                part=LEVELS,
                text=f"{'between' if between else 'inside'} trainings, {when}: where {name} is smaller, the ECE is larger",
                question=moves(
                    LEVELS,
                    f"train.{name}",
                    "test.ece",
                    -1,
                    log=log,
                    between=between,
                    temperature=temperature,
                ),
                ours=True,
            )


def _harder() -> Claim:
    """Section 4.2.3: more than twice as sharp with ten times the classes."""
    return Claim(
        part="classes100",
        text="with 100 classes augmentation and weight decay are more than twice as sharp as with 10",
        question=every(
            larger(
                Values(part="classes100", column=f"train.published.{name}", condition=condition),
                Values(part="cifar10", column=f"train.published.{name}", condition=condition),
                log=True,
                factor=2.0,
                label=f"{name} with {condition}, 100 classes over 10, less a factor of 2",
            )
            for condition in ("augmentation", "weight decay")
            for name in ("relative_flatness", "sam_sharpness")
        ),
        paper="more than 100 % sharper",
    )
