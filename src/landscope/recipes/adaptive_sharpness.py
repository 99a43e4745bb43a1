"""Paper 5: adaptive sharpness and generalisation. Models of three families; does sharpness go with test loss?

Kendall's τ between the worst-case adaptive ℓ∞ m-sharpness and the test loss of models that differ in their seed only. The paper
found −0.311, −0.180 and −0.185. Here: what its three notebooks computed, and what its text describes, on the same models; and
models trained as the notebooks trained them, beside those trained as the text says.
"""

from __future__ import annotations

from collections.abc import Mapping

from landscope.recipes.adaptive_sharpness_claims import claims
from landscope.recipes.adaptive_sharpness_families import (
    AS_CODED,
    AS_DESCRIBED,
    BATCH,
    FAMILIES,
    FASHION,
    UNTIL_LEARNT,
    left_in_evaluation,
)
from landscope.recipes.recipe import RECIPES, Part, Recipe, Size
from landscope.specs.schema import parse
from landscope.studies.spec import StudySpec

__all__ = ["RECIPE"]

FEWER_IMAGES, FEWER_ROWS = 6_000, 2_000
"""At size "small": what LeNet-5 is trained and measured on."""
TINY: Mapping[tuple[str, str], dict[str, object]] = {
    ("fcnn-notebook", AS_CODED): {
        "data": {"name": "landscope:abalone_of_the_notebook", "train_size": 256},
        "epochs": 4,
        "evaluate_every": 2,
    },
    ("lenet5-notebook", AS_CODED): {"model": left_in_evaluation(128)},
    ("lenet5-radii", AS_CODED): {"model": left_in_evaluation(128)},
    ("gat-notebook", AS_CODED): {"epochs": 3},
    ("gat-notebook", UNTIL_LEARNT): {"epochs": 4},
}
"""What else differs from training to training at size "tiny"."""


def _study(key: str, size: Size) -> StudySpec:
    family = FAMILIES[key]
    training: dict[str, object] = {"epochs": 10, "batch_size": BATCH, **family.training}
    trainings = {name: dict(changes) for name, changes in family.trainings.items()}
    seeds, samples = family.seeds, family.rows if size == "paper" else None
    own: dict[str, object] = {"loss": None, **family.measures}
    if size == "small" and family.training["data"] is FASHION:
        samples = FEWER_ROWS
        training["data"] = {**FASHION, "train_size": FEWER_IMAGES}
        if trainings:
            trainings[AS_CODED]["model"] = left_in_evaluation(FEWER_IMAGES)
        own = {name: one for name, one in own.items() if not name.startswith(("hessian", "average"))}
    if size == "tiny":
        seeds, samples = 4, 64
        training |= {"epochs": 2, **_tiny(key)}
        trainings = {name: changes | TINY.get((key, name), {}) for name, changes in trainings.items()}
        own = {name: one for name, one in own.items() if not name.startswith(("hessian", "average"))}
    return parse(
        StudySpec,
        {
            "name": f"adaptive-sharpness-{key}",
            "question": f"{family.title}: does adaptive sharpness go with the test loss?",
            "training": training,
            "axes": {"training": trainings} if trainings else {},
            "seeds": seeds,
            "measuring": {
                "splits": {
                    "train": {
                        "measures": own,
                        "samples": samples,
                        "as_published": "adaptive-sharpness",
                        "only": [family.measure],
                    },
                    "test": {"measures": ["loss"] if key.startswith("fcnn") else ["loss", "error"]},
                },
                "consistency": False,
            },
            "analysis": {"outcomes": ["test.loss", "gap.loss"]},
        },
    )


def _tiny(key: str) -> dict[str, object]:
    """Seconds instead of minutes; without files that must be downloaded and without optional packages."""
    if key.startswith("fcnn"):
        data = {"name": "abalone", "pixels": "standard", "standard_targets": True, "validation": 0, "train_size": 256}
        return {"data": data}
    if key in ("lenet5-notebook", "lenet5-radii"):
        return {"data": {"name": "landscope:enlarged_grey_digits"}}
    return {
        "data": {"name": "digits", "pixels": "standard", "train_size": 128},
        "model": {"name": "mlp", "widths": [8], "init": "xavier"},
    }


def _parts(size: Size) -> dict[str, Part]:
    return {
        key: Part(
            study=_study(key, size),
            published=family.published if size != "tiny" and key != "lenet5-radii" else {},
            columns={"test_loss": "test.loss", "adaptive_sharpness": f"train.published.{family.measure}"},
            conditions={"50 models": AS_CODED if family.trainings else "all"},
            corrected={AS_CODED: AS_DESCRIBED} if AS_DESCRIBED in family.trainings else {},
            pool=not family.trainings or family.training["data"] is not FASHION,
            note=_note(key, size),
        )
        for key, family in FAMILIES.items()
    }


def _note(key: str, size: Size) -> str:
    if size == "tiny":
        return "On small stand-ins, to show that everything runs."
    family = FAMILIES[key]
    fewer = size == "small" and family.training["data"] is FASHION
    if not family.trainings:
        on = f"Trained on {FEWER_IMAGES:,} of the 60,000 images, measured on {FEWER_ROWS:,} of them." if fewer else ""
        on = on or (f"Measured on {family.rows:,} of the training images." if family.rows else "")
        return f"All {family.seeds} models. {on}".rstrip()
    if fewer:
        return (
            f"{family.seeds} models of each training, on {FEWER_IMAGES:,} of the 60,000 images and measured on "
            f"{FEWER_ROWS:,} of them."
        )
    return f"{family.seeds} models of each training ({', '.join(family.trainings)}), measured on all training rows."


RECIPE = RECIPES.register("adaptive-sharpness")(
    Recipe(
        name="adaptive-sharpness",
        title="Adaptive sharpness and generalisation",
        paper="H. Hammoud, O. Liossatos, L. Nicollier. Adaptive Sharpness and Generalization. EPFL",
        parts=_parts,
        claims=claims,
        differences=(
            "The LeNet notebook calls `model.eval()` to test after the first epoch and never `model.train()` again: from then on "
            "dropout is off and BatchNorm frozen. Its ascent, in training mode, replaces the stale statistics: that is the "
            "sharpness of its figure. It also has weight decay 5e-3, which the text does not mention.",
            "Every step of the FCNN notebook is on all rows, at rate 0.102 where the text has 0.014; ELU acts on the output too; "
            "the first row of the file is taken for a header.",
            "The GAT notebook compares sums of three losses over freshly drawn batches of 64, 64 and 12 nodes with dropout on: "
            "one draw before the ascent, the largest of five after it; 5 restarts in place of 50. Records of `gat` are older: "
            "as published, they have three times the mean loss of all nodes. Those of `gat-notebook` have the sums.",
            "The projection of the FCNN notebook lacks |w|; the ball of the LeNet notebook is centred on moved weights. The "
            "corrected measure is what the text describes.",
            "p = 0.06 is called small in the text; here a claim needs p ≤ 0.05 and an interval without 0.",
        ),
    )
)
