"""Our own recipe: does sharpness predict? Hundreds of models over every axis, every measure, and three ways of asking.

The first paper found sharpness measures to follow the training loss, and asked for "a much larger number of models, with varying
hyperparameters, training setups and regularisations" to settle it. Here architecture, regulariser, batch size, learning rate,
optimizer (SGD, SAM, Adam) and averaging are crossed, and each measure is asked three times (after Jiang et al. 2020):

    overall      Kendall's τ with the outcome over all final models
    granulated   Ψ: one axis changed at a time, averaging and the seed among them
    partial      τ given the training loss

Only a measure that passes all three predicts anything that the settings and the training loss do not tell already.
"""

from __future__ import annotations

from collections.abc import Mapping

from landscope.core.schema import build
from landscope.recipes.does_sharpness_predict_claims import GIVEN, claims_of
from landscope.recipes.recipe import RECIPES, Part, Recipe, Size
from landscope.studies.spec import StudySpec

__all__ = ["MEASURED", "RECIPE"]

MEASURED: Mapping[str, Mapping[str, object]] = {
    "l2_norm": {},
    "gradient_norm": {},
    "gradient_noise": {},
    "fisher_rao": {},
    "fisher_rao_homogeneous": {},
    "relative_flatness": {},
    "relative_flatness_layerwise": {},
    "random_sharpness": {},
    "average_sharpness": {},
    "sam_sharpness": {},
    "adaptive_sharpness": {},
    "keskar_sharpness": {},
    "pac_bayes_sigma": {"samples": 10, "tol": 0.05},
    "igs": {"batches": 3},
    "hessian_top_eigenvalue": {"tol": 0.01},
    "hessian_trace": {"tol": 0.05},
    "hessian_frobenius": {"tol": 0.05},
    "ggn_top_eigenvalue": {"tol": 0.01},
    "ggn_trace": {"tol": 0.05},
    "ggn_frobenius": {"tol": 0.05},
    "log_volume": {"tol": 0.01},
}
"""Measures whose claims are tested, with settings that rank models at little cost. For a softmax the Fisher matrix is the
Gauss–Newton one, and a spectrum is no number, so neither is measured again."""


def _digits(size: Size) -> dict[str, object]:
    tiny = size == "tiny"
    architectures = {
        "32": {"model.widths": [32]},
        "64-64": {"model.widths": [64, 64]},
        "32-32-32": {"model.widths": [32, 32, 32]},
    }
    regularisers = {
        "none": {},
        "dropout": {"model.dropout": 0.2},
        "weight decay": {"optimizer.weight_decay": 3e-3},
    }
    optimizers = {"SGD": {}, "SAM": {"sam.rho": 0.05}, "Adam": {"optimizer.name": "adam"}}
    axes: dict[str, object] = {
        "architecture": {"4": {"model.widths": [4]}, "8": {"model.widths": [8]}} if tiny else architectures,
        "regulariser": {name: regularisers[name] for name in (["none", "dropout"] if tiny else regularisers)},
        "batch": {"batch_size": [32] if tiny else [16, 64]},
        "rate": {"optimizer.lr": [0.02] if tiny else [0.01, 0.03]},
        "optimizer": {name: optimizers[name] for name in (["SGD", "SAM"] if tiny else optimizers)},
    }
    return {
        "training": {
            "data": {"name": "digits", "train_size": 64 if tiny else 400, "validation": 0},
            "model": {"name": "mlp"},
            "epochs": 3 if tiny else 100,
            "averaging": {"kind": "swa", "start": 0.7},
        },
        "axes": axes,
        "seeds": 1 if tiny else 2,
    }


def _cifar10(size: Size) -> dict[str, object]:
    if size == "tiny":
        return _digits(size) | {"seeds": [1]}
    small = size == "small"
    return {
        "training": {
            "data": {"name": "cifar10", "pixels": "standard", "validation": 0, "train_size": 2000 if small else 50_000},
            "model": {"name": "resnet20"},
            "epochs": 5 if small else 20,
            "averaging": {"kind": "swa", "start": 0.7},
            "precision": "float32" if small else "bfloat16",
            "channels_last": not small,
        },
        "axes": {
            "architecture": {
                "ResNet-20": {"model.width": 4 if small else 16},
                "wide ResNet-20": {"model.width": 8 if small else 32},
                "ResNet-18": {"model.name": "resnet18", "model.width": 4 if small else 32},
            },
            "regulariser": {
                "none": {},
                "augmentation": {"augmentation": {"flip": True, "crop": 4}},
                "weight decay": {"optimizer.weight_decay": 5e-4},
            },
            "batch": {"batch_size": [64, 256] if small else [128, 512]},
            "rate": {"optimizer.lr": [0.003, 0.02]},
            "optimizer": {"SGD": {}, "SAM": {"sam.rho": 0.05}, "Adam": {"optimizer.name": "adam"}},
        },
        "seeds": 2,
    }


def _study(part: str, size: Size) -> StudySpec:
    measures: dict[str, object] = {"loss": None, "error": None}
    some = ("l2_norm", "sam_sharpness", "relative_flatness", "igs")
    measures |= {name: dict(MEASURED[name]) for name in (some if size == "tiny" else MEASURED)}
    rows: dict[tuple[str, Size], int] = {("cifar10", "small"): 256, ("cifar10", "paper"): 2000}
    return build(
        StudySpec,
        {
            "name": f"does-sharpness-predict-{part}",
            "question": "Does sharpness predict generalisation or calibration beyond what the settings and the training "
            "loss tell?",
            **(_digits(size) if part == "digits" else _cifar10(size)),
            "measuring": {
                "checkpoints": ["final", "average"],
                "splits": {
                    "train": {"measures": measures, "samples": rows.get((part, size))},
                    "test": {"measures": ["loss", "error", "ece", "brier"]},
                },
                "seconds": 60.0 if part == "cifar10" and size == "paper" else None,
                "reliability": False,
            },
            "analysis": {"outcomes": ["test.error", "test.loss", "gap.loss", "test.ece"], "given": GIVEN},
        },
    )


def _parts(size: Size) -> dict[str, Part]:
    grid = (
        "216 trainings (3 architectures × 3 regularisers × 2 batch sizes × 2 rates × 3 optimizers × 2 seeds), each measured at "
        "its last weights and at their average: 432 models."
    )
    notes: dict[tuple[str, Size], str] = {
        ("digits", "small"): f"{grid} MLPs on 400 digits, tested on the 599 that were held out.",
        ("digits", "paper"): f"{grid} MLPs on 400 digits, tested on the 599 that were held out.",
        (
            "cifar10",
            "small",
        ): f"{grid} Narrow ResNets, five epochs on 2,000 images, measured on 256: far from what trained networks are.",
        ("cifar10", "paper"): f"{grid} ResNets on CIFAR-10, 20 epochs, measured on 2,000 training images.",
    }
    return {
        part: Part(
            study=_study(part, size),
            note=notes.get((part, size), "Eight small networks, to show that everything runs."),
        )
        for part in ("digits", "cifar10")
    }


RECIPE = RECIPES.register("does-sharpness-predict")(
    Recipe(
        name="does-sharpness-predict",
        title="Does sharpness predict?",
        paper="Ours; the larger study that Mason-Williams, Sterner and Ekholm ask for, in the manner of Jiang et al. (ICLR 2020)",
        parts=_parts,
        claims=claims_of,
        differences=(
            "No paper stands behind it: there are no published numbers to compare with.",
            "The rate is the same number for SGD and Adam, so that it is an axis of its own.",
            "Models of one condition share everything but the seed; τ and its p-value take all final models for independent, "
            "Ψ does not.",
        ),
    )
)
