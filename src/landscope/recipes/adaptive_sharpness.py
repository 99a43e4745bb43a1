"""Paper 5: adaptive sharpness and generalisation. Fifty models each of three families; does sharpness go with test loss?

Kendall's τ between the worst-case adaptive ℓ∞ m-sharpness and the test loss of models that differ in their seed only. The paper
found −0.311, −0.180 and −0.185. Here: what its three notebooks computed, and what its text describes, on the same models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from scipy.stats import t

from landscope.analysis import correlation, models_needed, partial_correlation
from landscope.recipes.recipe import RECIPES, Claim, Part, Recipe, Size, Verdict
from landscope.recipes.verdicts import RESAMPLES, in_words, judged
from landscope.specs.schema import build
from landscope.studies.spec import StudySpec

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["FAMILIES", "RECIPE", "Family"]


AS_CODED, AS_DESCRIBED = "as coded", "as described"
"""How models are trained: by the notebooks, slips included, and by the text."""
TRAINING_MODE, UNTIL_LEARNT = "in training mode", "until learnt"
"""As coded but for one thing: LeNet-5 stays in training mode; the graph network is trained on."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """One kind of model: how it is trained, and the measure of the preset that belongs to it."""

    title: str
    training: Mapping[str, object]
    """What all its trainings have in common."""
    trainings: Mapping[str, Mapping[str, object]]
    """The conditions; the first is that of its notebook."""
    measure: str
    published: Mapping[str, str]
    tau: float
    seeds: int
    further: Mapping[str, Mapping[str, object] | None] = field(default_factory=dict)
    """Measures on the training rows, besides those that every family has."""


FASHION = {"name": "fashion_mnist", "pixels": "standard", "validation": 0}
FEWER_IMAGES, FEWER_ROWS = 6_000, 2_000
"""At size "small": what the larger family is trained and measured on."""
BATCH = 64
EPOCH_OF_FCNN = 53
"""Steps on all 3,340 rows that the FCNN notebook calls an epoch: as many as it has batches, which it draws and does not use."""
RADII = (1e-4, 1e-3, 1e-2)
"""The paper's radius for LeNet-5, and two larger ones: its text says that several were tried."""

_CONVERGED = {"relative_change": 0.05}
_ASCENT = "landscope:MovedCentreSharpness"
STALE = "train.stale_statistics"


def _radii() -> dict[str, Mapping[str, object] | None]:
    """The ascent of the LeNet notebook with dropout on and off (and BatchNorm moving or not), and the text's, by radius."""
    described = {"p": "inf", "batch_size": BATCH, "steps": 5, "method": "pga", "step_size": 0.05, "batches": 50}
    found: dict[str, Mapping[str, object] | None] = {"stale_statistics": {"measure": "landscope:StaleStatistics"}}
    for rho in RADII:
        name = f"{rho:.0e}".replace("e-0", "e-")
        if rho != RADII[0]:  # these two are the preset's
            found[f"notebook {name}"] = {"measure": _ASCENT, "rho": rho}
            found[f"text {name}"] = {"measure": "adaptive_sharpness", "rho": rho, **described}
        found[f"notebook, evaluation mode {name}"] = {"measure": _ASCENT, "rho": rho, "training_mode": False}
    return found


def _left_in_evaluation(rows: int) -> dict[str, object]:
    return {"name": "landscope:lenet5_left_in_evaluation", "steps": -(-rows // BATCH)}


FAMILIES: Mapping[str, Family] = {
    "fcnn": Family(
        title="FCNN 10-64-64-1 on Abalone",
        training={
            "data": {"name": "abalone", "pixels": "standard", "standard_targets": True, "validation": 0},
            "model": {"name": "mlp", "widths": [64, 64], "init": "xavier"},
            "optimizer": {"name": "sgd", "lr": 0.014, "momentum": 0.0},
            "convergence": _CONVERGED,
        },
        trainings={
            AS_CODED: {
                "data": {"name": "landscope:abalone_of_the_notebook"},
                "model": {"name": "mlp", "widths": [64, 64], "activation": "elu", "activate_output": True},
                "optimizer.lr": 0.102,
                "batch_size": "full",
                "epochs": 12 * EPOCH_OF_FCNN,
                "evaluate_every": EPOCH_OF_FCNN,
            },
            AS_DESCRIBED: {},
        },
        measure="adaptive_sharpness_fcnn",
        published={"data": "abalone", "model": "fcnn"},
        tau=-0.311,
        seeds=200,
    ),
    "lenet5": Family(
        title="LeNet-5 with BatchNorm and dropout on FashionMNIST",
        training={
            "data": FASHION,
            "model": {"name": "lenet5", "batch_norm": True, "dropout": 0.5, "init": "xavier"},
            "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.0},
            "convergence": _CONVERGED,
        },
        trainings={
            AS_CODED: {
                "model": _left_in_evaluation(60_000),
                "optimizer.weight_decay": 5e-3,
            },
            TRAINING_MODE: {"model.init": "pytorch", "optimizer.weight_decay": 5e-3},
            AS_DESCRIBED: {},
        },
        measure="adaptive_sharpness_lenet5",
        published={"data": "fashionmnist", "model": "lenet5"},
        tau=-0.180,
        seeds=50,
        further=_radii(),
    ),
    "gat": Family(
        title="graph attention network on Cora",
        training={
            "data": {"name": "cora"},
            "model": {"name": "gat"},
            "optimizer": {"name": "sgd", "lr": 0.236, "momentum": 0.0},
        },
        trainings={
            AS_CODED: {"epochs": 20, "convergence": {**_CONVERGED, "after": 11}},
            UNTIL_LEARNT: {"epochs": 200},
        },
        measure="adaptive_sharpness_gat",
        published={"data": "cora", "model": "gat"},
        tau=-0.185,
        seeds=200,
    ),
}


TINY: Mapping[tuple[str, str], dict[str, object]] = {
    ("fcnn", AS_CODED): {
        "data": {"name": "landscope:abalone_of_the_notebook", "train_size": 256},
        "epochs": 4,
        "evaluate_every": 2,
    },
    ("lenet5", AS_CODED): {"model": _left_in_evaluation(128)},
    ("gat", AS_CODED): {"epochs": 3},
    ("gat", UNTIL_LEARNT): {"epochs": 4},
}
"""What else differs from training to training at size "tiny"."""


def _study(key: str, size: Size) -> StudySpec:
    family = FAMILIES[key]
    training: dict[str, object] = {"epochs": 10, "batch_size": BATCH, **family.training}
    trainings = {name: dict(changes) for name, changes in family.trainings.items()}
    seeds, samples = family.seeds, None
    own: dict[str, object] = {
        "loss": None,
        "l2_norm": None,
        "gradient_norm": None,
        "fisher_rao": None,
        "sam_sharpness": None,
        "hessian_top_eigenvalue": {"tol": 0.01},
        "hessian_trace": {"tol": 0.1, "max_matvecs": 32},
        "average_sharpness": {"rho": 0.01},
        **family.further,
    }
    if size == "small" and key == "lenet5":
        samples = FEWER_ROWS
        training["data"] = {**FASHION, "train_size": FEWER_IMAGES}
        trainings[AS_CODED]["model"] = _left_in_evaluation(FEWER_IMAGES)
        own = {name: one for name, one in own.items() if not name.startswith(("hessian", "average"))}
    if size == "tiny":
        seeds, samples = 4, 64
        training |= {"epochs": 2, **_tiny(key)}
        trainings = {name: changes | TINY.get((key, name), {}) for name, changes in trainings.items()}
        own = {name: one for name, one in own.items() if not name.startswith(("hessian", "average", "notebook"))}
    return build(
        StudySpec,
        {
            "name": f"adaptive-sharpness-{key}",
            "question": f"{family.title}: does adaptive sharpness go with the test loss?",
            "training": training,
            "axes": {"training": trainings},
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
    if key == "lenet5":
        return {"data": {"name": "landscope:enlarged_grey_digits"}}
    return {
        "data": {"name": "digits", "pixels": "standard", "train_size": 128},
        "model": {"name": "mlp", "widths": [8], "init": "xavier"},
    }


def _parts(size: Size) -> dict[str, Part]:
    return {
        key: Part(
            study=_study(key, size),
            published=family.published if size != "tiny" else {},
            columns={"test_loss": "test.loss", "adaptive_sharpness": f"train.published.{family.measure}"},
            conditions={"50 models": AS_CODED},
            corrected={AS_CODED: AS_DESCRIBED} if AS_DESCRIBED in family.trainings else {},
            pool=key != "lenet5",
            note=_note(key, size),
        )
        for key, family in FAMILIES.items()
    }


def _note(key: str, size: Size) -> str:
    if size == "tiny":
        return "On small stand-ins, to show that everything runs."
    family = FAMILIES[key]
    note = f"{family.seeds} models of each training ({', '.join(family.trainings)}), measured on all training rows."
    if size == "small" and key == "lenet5":
        return (
            f"{family.seeds} models of each training, on {FEWER_IMAGES:,} of the 60,000 images and measured on "
            f"{FEWER_ROWS:,} of them."
        )
    return note


def _claims(tables: Mapping[str, pd.DataFrame]) -> Sequence[Claim]:
    found = []
    for key, family in FAMILIES.items():
        if key not in tables:
            continue
        for training in family.trainings:
            table = tables[key][tables[key]["condition"] == training]
            for kind, meaning in (
                ("published", "as its notebook computed it"),
                ("corrected", "as its text describes it"),
            ):
                column = f"train.{kind}.{family.measure}"
                if column in table:
                    found.append(
                        _negative(key, f"{family.title}, trained {training}", family.tau, table, column, meaning)
                    )
        if STALE in tables[key]:
            found.append(_stale(tables[key]))
    return found


def _stale(table: pd.DataFrame) -> Claim:
    """Ours: what the LeNet notebook calls sharpness is the age of BatchNorm's statistics."""
    text = "Ours: more than half of what the LeNet notebook measured is the replacement of stale BatchNorm statistics"
    coded = table[table["condition"] == AS_CODED]
    value, stale = coded[f"train.published.{FAMILIES['lenet5'].measure}"], coded[STALE]
    share = (stale / value).dropna()
    records = tuple(coded["run"])
    if len(share) < 3:
        return Claim(
            text=text, verdict="cannot be told", why=f"n = {len(share)} models", part="lenet5", records=records
        )
    half = float(t.ppf(0.975, len(share) - 1) * share.std() / math.sqrt(len(share)))
    low, high = float(share.mean()) - half, float(share.mean()) + half
    verdict: Verdict = "holds" if low > 0.5 else "does not hold" if high < 0.5 else "cannot be told"
    others = ", ".join(
        f"{training} {float(rows[value.name].mean()):.3f} ± {float(rows[value.name].std()):.3f} (n = {len(rows)})"
        for training, rows in table.groupby("condition")
    )
    why = (
        f"share {float(share.mean()):.2f}, 95 % interval {low:.2f} to {high:.2f}, n = {len(share)} models trained as coded; "
        f"the notebook's measure by training: {others}"
    )
    return Claim(text=text, verdict=verdict, why=why, part="lenet5", records=records)


def _negative(key: str, title: str, tau: float, table: pd.DataFrame, column: str, meaning: str) -> Claim:
    text = f"{title}: adaptive sharpness, {meaning}, correlates negatively with test loss (paper: τ = {tau})"
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
    if result.low <= tau <= result.high:
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
            "The LeNet notebook calls `model.eval()` to test after the first epoch and never `model.train()` again: from then on "
            "dropout is off and BatchNorm frozen. Its ascent, in training mode, replaces the stale statistics: that is the "
            "sharpness of its figure. It also has weight decay 5e-3, which the text does not mention.",
            "Every step of the FCNN notebook is on all rows, at rate 0.102 where the text has 0.014; ELU acts on the output too; "
            "the first row of the file is taken for a header.",
            "The GAT notebook compares sums of three losses over freshly drawn batches of 64, 64 and 12 nodes with dropout on: "
            "one draw before the ascent, the largest of five after it; 5 restarts in place of 50.",
            "The projection of the FCNN notebook lacks |w|; the ball of the LeNet notebook is centred on moved weights. The "
            "corrected measure is what the text describes.",
            "p = 0.06 is called small in the text; here a claim needs p ≤ 0.05 and an interval without 0.",
        ),
    )
)
