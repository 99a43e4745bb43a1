"""Paper 5: adaptive sharpness and generalisation. Fifty models each of three families; does sharpness go with test loss?

Kendall's τ between the worst-case adaptive ℓ∞ m-sharpness and the test loss of models that differ in their seed only. The paper
found −0.311, −0.180 and −0.185. Here: what its three notebooks computed, and what its text describes, on the same models.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from landscope.analysis import correlation, models_needed, partial_correlation
from landscope.recipes.recipe import RECIPES, Claim, Part, Recipe, Size
from landscope.recipes.verdicts import RESAMPLES, in_words, judged
from landscope.specs.schema import parse
from landscope.studies.spec import StudySpec

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FAMILIES", "RECIPE", "Family"]


@dataclass(frozen=True, kw_only=True)
class Family:
    """One kind of model: how it is trained, and the measure of the preset that belongs to it."""

    title: str
    training: Mapping[str, object]
    measure: str
    published: Mapping[str, str]
    tau: float
    small: Mapping[str, object]
    """What `small` changes."""


ROWS: Mapping[Size, int] = {"small": 2_000, "paper": 10_000}
"""Training rows on which the larger family is measured."""
_FEWER_IMAGES: Mapping[Size, str] = {
    "small": " Trained on 6,000 of the 60,000 images, measured on 2,000 of them.",
    "paper": " Measured on 10,000 of the training images.",
}

_CONVERGED = {"relative_change": 0.05}

FAMILIES: Mapping[str, Family] = {
    "fcnn": Family(
        title="FCNN 10-64-64-1 on Abalone",
        training={
            "data": {"name": "abalone", "pixels": "standard", "standard_targets": True, "validation": 0},
            "model": {"name": "mlp", "widths": [64, 64], "init": "xavier"},
            "optimizer": {"name": "sgd", "lr": 0.014, "momentum": 0.0},
            "convergence": _CONVERGED,
        },
        measure="adaptive_sharpness_fcnn",
        published={"data": "abalone", "model": "fcnn"},
        tau=-0.311,
        small={},
    ),
    "lenet5": Family(
        title="LeNet-5 with BatchNorm and dropout on FashionMNIST",
        training={
            "data": {"name": "fashion_mnist", "pixels": "standard", "validation": 0},
            "model": {"name": "lenet5", "batch_norm": True, "dropout": 0.5, "init": "xavier"},
            "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.0},
            "convergence": _CONVERGED,
        },
        measure="adaptive_sharpness_lenet5",
        published={"data": "fashionmnist", "model": "lenet5"},
        tau=-0.180,
        small={"data": {"name": "fashion_mnist", "pixels": "standard", "validation": 0, "train_size": 6_000}},
    ),
    "gat": Family(
        title="graph attention network on Cora",
        training={
            "data": {"name": "cora"},
            "model": {"name": "gat"},
            "optimizer": {"name": "sgd", "lr": 0.236, "momentum": 0.0},
            "convergence": {**_CONVERGED, "after": 10},
            "epochs": 100,
        },
        measure="adaptive_sharpness_gat",
        published={"data": "cora", "model": "gat"},
        tau=-0.185,
        small={},
    ),
}


def _study(key: str, size: Size) -> StudySpec:
    family = FAMILIES[key]
    training: dict[str, object] = {"epochs": 10, "batch_size": 64, **family.training}
    seeds, samples = 50, None
    if family.small:
        samples = ROWS.get(size)
        training |= family.small if size == "small" else {}
    if size == "tiny":
        seeds, samples = 4, 64
        training |= {"epochs": 2, **_tiny(key)}
    own: dict[str, object] = {
        "loss": None,
        "l2_norm": None,
        "gradient_norm": None,
        "fisher_rao": None,
        "sam_sharpness": None,
    }
    if size == "paper" or (size == "small" and not family.small):
        own |= {
            "hessian_top_eigenvalue": {"tol": 0.01},
            "hessian_trace": {"tol": 0.1, "max_matvecs": 32},
            "average_sharpness": {"rho": 0.01},
        }
    return parse(
        StudySpec,
        {
            "name": f"adaptive-sharpness-{key}",
            "question": f"{family.title}: does adaptive sharpness go with the test loss?",
            "training": training,
            "seeds": seeds,
            "measuring": {
                "splits": {
                    "train": {
                        "measures": own,
                        "samples": samples,
                        "as_published": "adaptive-sharpness",
                        "only": [family.measure],
                    },
                    "test": {"measures": ["loss"] if key == "fcnn" else ["loss", "error"]},
                },
                "consistency": False,
            },
            "analysis": {"outcomes": ["test.loss", "gap.loss"]},
        },
    )


def _tiny(key: str) -> dict[str, object]:
    """Seconds instead of minutes; without files that must be downloaded and without optional packages."""
    if key == "fcnn":
        data = {"name": "abalone", "pixels": "standard", "standard_targets": True, "validation": 0, "train_size": 256}
        return {"data": data}
    return {
        "data": {"name": "digits", "pixels": "standard", "train_size": 128},
        "model": {"name": "mlp", "widths": [8], "init": "xavier"},
    }


def _parts(size: Size) -> dict[str, Part]:
    notes = {
        "tiny": "On small stand-ins, to show that everything runs.",
        "small": "All 50 models.",
        "paper": "All 50 models.",
    }
    return {
        key: Part(
            study=_study(key, size),
            published=family.published if size != "tiny" else {},
            columns={"test_loss": "test.loss", "adaptive_sharpness": f"train.published.{family.measure}"},
            conditions={"50 models": "all"},
            pool=True,
            note=notes[size] + (_FEWER_IMAGES.get(size, "") if family.small else ""),
        )
        for key, family in FAMILIES.items()
    }


def _claims(tables: Mapping[str, pd.DataFrame]) -> Sequence[Claim]:
    found = []
    for key, family in FAMILIES.items():
        if key not in tables:
            continue
        table = tables[key]
        for kind, meaning in (("published", "as its notebook computed it"), ("corrected", "as its text describes it")):
            column = f"train.{kind}.{family.measure}"
            if column in table:
                found.append(_negative(key, family, table, column, meaning))
    return found


def _negative(key: str, family: Family, table: pd.DataFrame, column: str, meaning: str) -> Claim:
    text = (
        f"{family.title}: adaptive sharpness, {meaning}, correlates negatively with test loss (paper: τ = {family.tau})"
    )
    result = correlation(table[column], table["test.loss"], "kendall", resamples=RESAMPLES)
    records = tuple(table["run"])
    if result.value is None or result.p_value is None or result.low is None or result.high is None:
        return Claim(
            text=text, verdict="cannot be told", why=f"n = {result.n}: {result.reason}", part=key, records=records
        )
    given_loss = partial_correlation(table[column], table["test.loss"], table["train.loss"], "kendall")
    why = (
        f"τ = {result.value:.3f}, 95 % interval {result.low:.3f} to {result.high:.3f}, p = {result.p_value:.3g}, "
        f"n = {result.n} models; given the training loss {in_words(given_loss)}"
    )
    verdict = judged(result, -1)
    if verdict != "cannot be told":
        return Claim(text=text, verdict=verdict, why=why, part=key, records=records)
    needed = models_needed(result.value) if result.value else None
    more = f"; a τ of this size would need about {needed} models" if needed and needed > result.n else ""
    if result.low <= family.tau <= result.high:
        more += "; the paper's lies inside the interval"
    return Claim(text=text, verdict="cannot be told", why=why + more, part=key, records=records)


RECIPE = RECIPES.register("adaptive-sharpness")(
    Recipe(
        name="adaptive-sharpness",
        title="Adaptive sharpness and generalisation",
        paper="H. Hammoud, O. Liossatos, L. Nicollier. Adaptive Sharpness and Generalization. EPFL",
        parts=_parts,
        claims=_claims,
        differences=(
            "The projection of the FCNN notebook lacks |w|; the ball of the LeNet notebook is centred on moved weights, with "
            "dropout on; the GAT notebook restarts 5 times instead of 50. The corrected measure is what the text describes.",
            "p = 0.06 is called small in the text; here a claim needs p ≤ 0.05 and an interval without 0.",
        ),
    )
)
