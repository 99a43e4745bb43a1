"""What the studies of "Flatness is a False Friend" have in common: schedule, levels of L2, and what is measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from landscope.recipes.false_friend_claims import DECAYS
from landscope.recipes.recipe import Part, Size
from landscope.specs.schema import parse
from landscope.studies.spec import StudySpec

__all__ = ["CURVATURE", "L2", "METRICS", "SCHEDULE", "Mode", "Options", "part_of", "study_of"]

Options: TypeAlias = dict[str, object]
Mode: TypeAlias = Literal["eval", "batch_statistics"]

BATCH = 128
SCHEDULE: Options = {"name": "flat_linear_flat", "flat": 0.5, "end": 0.9, "final": 0.01}
L2: Options = {condition: {"optimizer.weight_decay": decay} for condition, decay in DECAYS.items()}
PREDICTIONS = ("loss", "error", "accuracy")
CURVATURE = ("hessian_top_eigenvalue", "hessian_trace", "hessian_frobenius")
METRICS = ("hessian_top_eigenvalue", "hessian_bottom_eigenvalue", "hessian_frobenius")
"""Of the published numbers, those that depend on BatchNorm's mode."""
PREDICTING = ", bn eval"
"""Ends the conditions of published numbers that are of networks with BatchNorm as it predicts."""


def study_of(
    name: str,
    question: str,
    training: Options,
    axes: dict[str, Options],
    *,
    seeds: int = 3,
    checkpoints: tuple[str, ...] = ("final",),
    mode: Mode = "eval",
    samples: int | None = None,
    plain: Options | None = None,
) -> StudySpec:
    """A study whose training rows get the paper's measures, or `plain` ones of ours with their settings."""
    train: Options = {"measures": (*PREDICTIONS, "l2_norm", "gradient_norm"), "as_published": "false-friend"}
    if plain is not None:
        train = {"measures": dict.fromkeys((*PREDICTIONS, "l2_norm")) | plain}
    prefix = "train.corrected" if plain is None else "train"
    curvature = [measure for measure in CURVATURE if plain is None or measure in plain]
    return parse(
        StudySpec,
        {
            "name": f"false-friend-{name}",
            "question": question,
            "training": {"batch_size": BATCH, **training},
            "axes": axes,
            "seeds": seeds,
            "measuring": {
                "checkpoints": checkpoints,
                "splits": {
                    "train": {**train, "samples": samples},
                    "validation": PREDICTIONS,
                    "test": (*PREDICTIONS, "ece"),
                },
                "mode": mode,
                "batch_size": BATCH if mode == "batch_statistics" else None,
            },
            "analysis": {
                "outcomes": ["validation.error", "test.error", "gap.error", "test.ece"],
                "measures": [*(f"{prefix}.{measure}" for measure in curvature), "train.l2_norm"],
                "baseline": next(iter(next(iter(axes.values())))),
            },
        },
    )


def part_of(study: StudySpec, size: Size, published: Mapping[str, str | tuple[str, ...]], note: str) -> Part:
    """The part of a study; nothing is published of the smallest ones."""
    return Part(
        study=study,
        published={} if size == "tiny" else published,
        conditions={f"{condition}{PREDICTING}": condition for condition in DECAYS},
        pool=study.training is not None and study.training.get("model") == "softmax_regression",
        columns={metric: f"train.published.{metric}" for metric in METRICS}
        | {"generalisation_gap_pct": "validation.gap"},
        note="On small stand-ins, to show that everything runs." if size == "tiny" else note,
    )
