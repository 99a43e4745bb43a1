"""Paper 4: FAM, relative flatness aware minimisation. The loss plus λκ of one layer; does it generalise better?

Its tables: four image tasks against plain training and SAM, the completion of skulls over a range of λ, a text encoder on RTE.
The code of the paper held the Hessian constant, so the method that its text describes has hardly been run: here every task
has both. Figures 4 and 5 time the Hessian of a layer; what a step costs is measured by `benchmarks/fam.py`.
"""

from __future__ import annotations

from landscope.recipes.fam_claims import claims_of
from landscope.recipes.fam_conditions import AS_CODED, Task
from landscope.recipes.fam_tasks import tasks
from landscope.recipes.fam_timing_part import TIMING, timing_part
from landscope.recipes.recipe import RECIPES, Part, Recipe, Size
from landscope.specs.schema import parse
from landscope.studies.spec import StudySpec

__all__ = ["RECIPE"]

_OWN = (
    "loss",
    "error",
    "l2_norm",
    "gradient_norm",
    "relative_flatness",
    "relative_flatness_layerwise",
    "sam_sharpness",
)
_TEST = ("loss", "error", "accuracy", "ece", "brier")
_OF_CLASSES = ("error", "accuracy", "ece", "brier")
_OF_SHAPES = ["shapes.dsc", "shapes.hd95", "shapes_shifted.dsc", "shapes_shifted.hd95", "test.loss", "gap.loss"]
_PAPER_ROWS = {"rte": 256, "skulls": 40}
"""Training rows that sharpness is measured on at size `paper`, where that is not 1,000."""
SCORES = ("dsc", "hd", "hd95")
HALF_TIME = "@100"
"""The paper's mark for the scores after 100 of its 200 epochs."""


def _study(part: str, task: Task, size: Size) -> StudySpec:
    shapes = part == "skulls"
    own, test = (tuple(name for name in names if not shapes or name not in _OF_CLASSES) for names in (_OWN, _TEST))
    measured: dict[str, dict[str, object] | None] = dict.fromkeys(own)
    if size == "paper" and not shapes:
        measured |= {"hessian_top_eigenvalue": {"tol": 0.05}, "hessian_trace": {"tol": 0.1, "max_matvecs": 32}}
    kept = task.training.get("snapshots")
    half_time = [f"step {step}" for step in kept] if isinstance(kept, list) else []
    return parse(
        StudySpec,
        {
            "name": f"fam-{part}",
            "question": "Does a penalty on relative flatness lead to flatter minima, and do these generalise better?",
            "training": dict(task.training),
            "axes": {"method": {name: dict(changes) for name, changes in task.conditions.items()}},
            "seeds": task.seeds,
            "measuring": {
                "checkpoints": ["final", *half_time],
                "splits": {
                    "train": {
                        "measures": measured,
                        "samples": {"tiny": 8, "small": 256, "paper": _PAPER_ROWS.get(part, 1000)}[size],
                        "as_published": "fam",
                        "only": _as_published(part, size),
                    },
                    "test": {"measures": test, "samples": 2000 if size == "small" else None},
                },
                "batch_size": 10 if shapes else None,
                # a guard for a GPU; on a shared machine it would decide which numbers there are
                "seconds": 180.0 if size == "paper" else None,
                "consistency": False,
            },
            "analysis": {
                "outcomes": _OF_SHAPES if shapes else ["test.error", "gap.loss", "test.ece"],
                "baseline": "baseline",
            },
        },
    )


def _as_published(part: str, size: Size) -> tuple[str, ...]:
    """Measures of the preset: the form that the paper used, and for images on a GPU both.

    The auto-encoder has more units than inputs, on which the neuronwise code fails; it takes d² products otherwise.
    """
    neuronwise, layerwise = ("relative_flatness", "relative_flatness_in_out"), "relative_flatness_layerwise"
    if part == "skulls":
        return (layerwise,)
    if size == "small":
        return neuronwise[1:]
    return neuronwise if size == "tiny" or part == "rte" else (*neuronwise, layerwise)


def _parts(size: Size) -> dict[str, Part]:
    found = {
        part: Part(
            study=_study(part, task, size),
            published=task.published,
            conditions=task.paper_conditions,
            corrected={coded: coded.removesuffix(f" {AS_CODED}") for coded in task.paper_conditions.values()},
            columns=_shape_columns() if part == "skulls" else {},
            checkpoints=_half_time(task) if part == "skulls" else {},
            note=task.note,
        )
        for part, task in tasks(size).items()
    }
    return found | {TIMING: timing_part(size)}


def _shape_columns() -> dict[str, str]:
    """Table 2 scores the completion of two kinds of defects, after all epochs and after half of them ("@100")."""
    return {
        f"skulls set {number} {score}{at}": f"{split}.{score}"
        for number, split in ((1, "shapes"), (2, "shapes_shifted"))
        for score in SCORES
        for at in ("", HALF_TIME)
    }


def _half_time(task: Task) -> dict[str, str]:
    kept = task.training["snapshots"]
    assert isinstance(kept, list), "auto-encoders keep weights at half time"
    return {f"{score}{HALF_TIME}": f"step {kept[0]}" for score in SCORES}


RECIPE = RECIPES.register("fam")(
    Recipe(
        name="fam",
        title="FAM: relative flatness aware minimisation",
        paper="L. Adilova, A. Abourayya, J. Li, A. Dada, H. Petzka, J. Egger, J. Kleesiek, M. Kamp. TAG-ML at ICML 2023",
        parts=_parts,
        claims=claims_of,
        differences=(
            "The code detaches the Hessian, so that only the products of the weights carry gradient, and divides neuronwise κ by "
            "the number of inputs of the layer. Its published numbers stand beside `fam as coded`, which does the same; `fam` is "
            "the method of the text, with the whole gradient of κ and the λ of the text.",
            "One way through the code traces the wrong axes of the Hessian, and its layerwise form has ‖W‖ where the text has "
            "‖W‖². Neither is repeated in training; landscope.measures.AS_PUBLISHED has the values.",
            "Under the Dice loss κ can be negative, and a penalty on it is then a reward for sharpness without bound.",
            "Spreads of table 1 are of unstated numbers of runs; table 2 has no spreads. Here a "
            "claim needs a rank-sum test over seeds.",
        ),
    )
)
