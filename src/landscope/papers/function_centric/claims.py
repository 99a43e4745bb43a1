"""Paper 2 says: sharpness belongs to the function that is learnt; regularised minima are sharper, and better in every respect.

A condition is compared with its baseline run by run: same seed, batch size and learning rate. Claims about minima need networks
that fit their training rows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import torch

from landscope.analysis import between, correlation, mean
from landscope.data import TEST_FUNCTIONS
from landscope.papers.framework.answers import RATIO, TAU, Answer, Unit
from landscope.papers.framework.claims import Claim
from landscope.papers.framework.questions import Question, asked, correlates, effect_of, every, larger
from landscope.papers.framework.values import NoAnswerError, Tables, Values, rows_at

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["claims", "complexity"]

SHARPNESS = {
    "Fisher–Rao norm": "train.corrected.fisher_rao",
    "relative flatness": "train.corrected.relative_flatness",
    "random sharpness": "train.random_sharpness",
}
"""As it should be measured: a larger value is sharper. What the paper calls SAM-sharpness is random."""
KINDS = {
    "every measure of curvature": (
        SHARPNESS["relative flatness"], SHARPNESS["Fisher–Rao norm"], "train.hessian_top_eigenvalue", "train.hessian_trace",
    ),
    "the loss in a small ball": (SHARPNESS["random sharpness"],),
}  # fmt: skip
"""At equal training loss these differ: what was found first in fourteen seeds of twenty is asked of each kind by itself."""
CODED = {"Fisher–Rao norm": "train.published.fisher_rao", "relative flatness": "train.published.relative_flatness"}
GENERALISATION = {"test error": ("test.error", -1), "generalisation gap": ("gap.error", -1)}
SAFETY = {
    "calibration error": ("test.ece", -1),
    "corruption accuracy": ("corrupted.accuracy", 1),
    "disagreement": ("consistency.disagreement", -1),
}
"""And which direction is better."""
IMAGES = {"images-cell": "ResNet-18, one cell", "images": "ResNet-18", "images-vgg19": "VGG-19", "images-vit": "ViT",
          "images-small-vit": "ViT of its code", "images-100": "ResNet-18, 100 classes"}  # fmt: skip
CONDITIONS = ("base + SAM", "augmentation", "augmentation + SAM", "weight decay", "weight decay + SAM")
SINGLE = ("base + SAM", "augmentation", "weight decay")
RADII = ("0.0005", "0.005", "0.05", "0.5")
FITTED = {"functions": "train.random_sharpness_{}", "functions-shared": "train.noise_{}"}
"""Part → its columns, by radius."""
FITS = 0.01
POINTS = Unit("points", 100)


def claims() -> Iterator[Claim]:
    """Every claim, study by study."""
    for part in FITTED:
        yield _through_training(part)
        yield _complexity(part)
    yield from _circles()
    for part, network in IMAGES.items():
        yield from _images(part, network)
    yield from _redrawn(IMAGES["images-cell"])
    yield from _names()
    yield from _doses()


def _against(
    part: str, axis: str, level: str, base: str, column: str, sign: int = 1, *, log: bool = False, at: str = "final"
) -> Question:
    """A level of an axis against another, run by run; the sign says which way the claim goes."""
    one, other = (Values(part=part, column=column, condition=name, axis=axis, at=at) for name in (level, base))
    first, second = (one, other) if sign > 0 else (other, one)
    return larger(first, second, pairs=axis, log=log, label=f"{level}, {column}", unit=RATIO if log else POINTS)


def _images(part: str, network: str) -> Iterator[Claim]:
    axis, base = "axis.condition", "base"

    def sharper(level: str, columns: dict[str, str]) -> Question:
        return every(_against(part, axis, level, base, column, log=True) for column in columns.values())

    def better(level: str, family: dict[str, tuple[str, int]]) -> Question:
        return every(_against(part, axis, level, base, column, sign) for column, sign in family.values())

    for level in CONDITIONS:
        yield Claim(part=part, text=f"{network}, {level}: minima are sharper than base", question=sharper(level, SHARPNESS),
                    minima=True)  # fmt: skip
        yield Claim(part=part, text=f"{network}, {level}: minima are sharper than base by the formulas of its code",
                    question=sharper(level, CODED), minima=True)  # fmt: skip
        yield Claim(part=part, text=f"{network}, {level}: models generalise better than base",
                    question=better(level, GENERALISATION))  # fmt: skip
        yield Claim(part=part, text=f"{network}, {level}: models are better calibrated, more robust and more consistent",
                    question=better(level, SAFETY))  # fmt: skip
    yield Claim(
        part=part,
        text=f"{network}: over all models that fit their training rows, sharper minima go with lower test error",
        question=every(
            correlates(
                Values(part=part, column=column), "test.error", -1, over="conditions",
                keep=lambda rows: rows["train.error"] <= FITS,
            )
            for column in SHARPNESS.values()
        ),
    )  # fmt: skip
    if part in ("images-cell", "images"):
        yield Claim(
            part=part,
            text=f"{network}: regularised minima (SAM, augmentation, weight decay) are sharper",
            question=every(sharper(level, SHARPNESS) for level in SINGLE),
            headline=7,
            minima=True,
        )
        yield Claim(
            part=part,
            text=f"{network}: regularised models generalise better, are better calibrated, more robust and more consistent",
            question=every(better(level, GENERALISATION | SAFETY) for level in SINGLE),
            headline=8,
        )


def _redrawn(network: str) -> Iterator[Claim]:
    """Augmented models are sharper by the code's SAM-sharpness, whose every loss is on other crops: and on fixed rows?"""
    part, axis, column = "images-cell", "axis.condition", "train.published.sam_sharpness"
    base = Values(part=part, column=column, condition="base", axis=axis)
    for where, of in (("on crops drawn anew for every loss", "train.redrawn_sam_sharpness"), ("on fixed rows", column)):
        augmented = Values(part=part, column=of, condition="augmentation", axis=axis)
        yield Claim(
            part=part,
            text=f"{network}, augmentation: SAM-sharpness as its code computes it, {where}, is larger than of base",
            question=larger(augmented, base, pairs=axis, log=True, label=f"augmentation over base, {where}"),
        )


def _circles() -> Iterator[Claim]:
    axis, base = "axis.task", "factor 0.5"

    def sharper(level: str) -> Question:
        return every(_against("circles", axis, level, base, column, log=True) for column in SHARPNESS.values())

    for level in ("factor 0.7", "factor 0.9", "random labels", "factor 0.9, longer", "random labels, longer"):
        yield Claim(
            part="circles",
            text=f"circles, {level}: minima are sharper than of {base}",
            question=sharper(level),
            minima=True,
        )
    yield Claim(
        part="circles",
        text="circles: the tighter the boundary, the sharper the minimum (0.7, and 0.9 trained on, against 0.5; losses differ)",
        question=every(sharper(level) for level in ("factor 0.7", "factor 0.9, longer")),
        headline=9,
        minima=True,
    )
    for level in ("factor 0.7", "factor 0.9"):
        for loss in ("0.01", "0.001"):
            for words, columns in KINDS.items():
                each = (_against("circles-levels", axis, level, base, c, log=True, at=f"loss {loss}") for c in columns)
                yield Claim(
                    part="circles-levels",
                    text=f"circles, {level}: at a training loss of {loss} sharper than {base}, by {words}",
                    question=every(each),
                    minima=True,
                    ours=True,
                )


def _names() -> Iterator[Claim]:
    """A small GPT-2: SAM and weight decay, run by run."""
    part, axis, base = "names", "axis.condition", "base"
    safety = {name: SAFETY[name] for name in ("calibration error", "disagreement")}
    for level in ("base + SAM", "weight decay"):
        each = (_against(part, axis, level, base, column, log=True) for column in SHARPNESS.values())
        yield Claim(part=part, text=f"GPT-2 on names, {level}: minima are sharper than base", question=every(each),
                    minima=True)  # fmt: skip
        better = (GENERALISATION | safety).values()
        yield Claim(
            part=part,
            text=f"GPT-2 on names, {level}: models generalise better, are better calibrated and more consistent than base",
            question=every(_against(part, axis, level, base, column, sign) for column, sign in better),
        )


def _doses() -> Iterator[Claim]:
    """The radius of SAM, and the share of random labels: the more, the sharper? Conditions are the units."""
    images = {name: f"validation.{column.partition('.')[2]}" for name, column in SHARPNESS.items()}
    for part, dose, meaning, columns in (
        ("images-radii", "radius", "the larger the radius of SAM, the sharper the minimum", SHARPNESS),
        (
            "images-random-labels",
            "share",
            "the more random labels, the sharper the minimum, on rows with true labels",
            images,
        ),
        ("circles-dose", "share", "the more random labels, the sharper the minimum", SHARPNESS),
    ):
        yield Claim(
            part=part,
            text=f"{part}: {meaning}",
            question=every(asked(part, _with_dose(part, dose, column), spans=True) for column in columns.values()),
            minima=part != "images-random-labels",
        )


def _with_dose(part: str, dose: str, column: str) -> Callable[[Tables], list[Answer]]:
    def answers(tables: Tables) -> list[Answer]:
        rows = Values(part=part, column=column).rows(tables)
        amounts = [0.0 if str(level) == "base" else float(str(level).split()[-1]) for level in rows[f"axis.{dose}"]]
        tau = between(rows[column], amounts, rows["condition"])
        return [Answer(f"{column} and {dose}", effect_of(tau, 1, part), None, TAU, n=f"{tau.n} conditions")]

    return answers


def complexity(function: str) -> tuple[float, float]:
    """How rough a test function is, and how large: mean ‖∇f‖²/Var f and Var f on a grid over [−3.5, 3.5]².

    The first is the mean squared frequency of the function, whatever its units.

    >>> rough, large = complexity("sphere")
    >>> round(rough, 2), round(large, 1)
    (1.22, 26.7)
    """
    axis = 7 * (torch.arange(400, dtype=torch.float64) + 0.5) / 400 - 3.5  # midpoints of cells
    points = torch.cartesian_prod(axis, axis).requires_grad_()
    values = TEST_FUNCTIONS[function](points)
    (slope,) = torch.autograd.grad(values.sum(), points)
    variance = float(values.detach().var())
    return float(slope.square().sum(1).mean()) / variance, variance


def _medians(tables: Tables, part: str, at: str) -> pd.DataFrame:
    """Of each function: one's values are thousands of times another's, and networks of one are alike."""
    rows = rows_at(tables, part, at)
    word = "_" if part == "functions-shared" else "."
    columns = [FITTED[part].format(radius.replace(".", word)) for radius in RADII]
    if not set(columns) <= set(rows):
        raise NoAnswerError(f"{part} has no random sharpness at every radius")
    return rows.groupby("axis.function")[columns].median()


def _through_training(part: str) -> Claim:
    def answers(tables: Tables) -> list[Answer]:
        import numpy as np

        logs = np.log(_medians(tables, part, "final") / _medians(tables, part, "step 0"))
        return [
            Answer(
                f"ρ = {radius}, last over first", mean(logs[column].tolist()), None, RATIO, n=f"{len(logs)} functions"
            )
            for radius, column in zip(RADII, logs, strict=True)
        ]

    return Claim(
        part=part,
        text=f"{part}: random sharpness grows through training, from the first weights to the last, at every radius",
        question=asked(part, answers),
        trains=True,
    )


def _complexity(part: str) -> Claim:
    """Over functions: does sharpness follow how rough the function is?"""

    def answers(tables: Tables) -> list[Answer]:
        medians = _medians(tables, part, "final")
        rough = [complexity(str(name))[0] for name in medians.index]
        found = []
        for radius, column in zip(RADII, medians, strict=True):
            tau = correlation(medians[column], rough)
            found.append(Answer(f"ρ = {radius}", effect_of(tau, 1, part), None, TAU, n=f"{tau.n} functions"))
        return found

    return Claim(
        part=part,
        text=f"{part}: the rougher the function, the sharper the minimum of its fit",
        question=asked(part, answers),
    )
