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

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from landscope.recipes.does_sharpness_predict_claims import GIVEN, claims_of
from landscope.recipes.recipe import RECIPES, Part, Recipe, Size
from landscope.specs.schema import parse
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
        **({"seeds": 1} if tiny else {}),
    }


def _fashion_mnist(size: Size) -> dict[str, object]:
    if size == "tiny":
        return _digits(size) | {"seeds": [2]}
    return {
        "training": {
            "data": {"name": "landscope.recipes.halved_images:halved_fashion_mnist", "train": 1_000},
            "model": {
                "name": "landscope:ResNet",
                "shortcut": "project",
                "dropout": 0.0,
                "init": "he",
            },
            "epochs": 30,
            "evaluate_every": 30,
            "averaging": {"kind": "swa", "start": 0.7},
        },
        "axes": {
            "architecture": {
                "ResNet-8": {"model.blocks": [1, 1, 1], "model.width": 8},
                "wide ResNet-8": {"model.blocks": [1, 1, 1], "model.width": 12},
                "ResNet-14": {"model.blocks": [2, 2, 2], "model.width": 8},
            },
            "regulariser": {
                "none": {},
                "augmentation": {"augmentation": {"flip": True, "crop": 2}},
                "weight decay": {"optimizer.weight_decay": 3e-3},
            },
            "batch": {"batch_size": [32, 128]},
            "rate": {"optimizer.lr": [0.01, 0.03]},
            "optimizer": {"SGD": {}, "SAM": {"sam.rho": 0.05}, "Adam": {"optimizer.name": "adam"}},
        },
    }


def _cifar10(size: Size) -> dict[str, object]:
    if size == "tiny":
        return _digits(size) | {"seeds": [1]}
    return {
        "training": {
            "data": {"name": "cifar10", "pixels": "standard", "validation": 0, "train_size": 50_000},
            "model": {"name": "resnet20"},
            "epochs": 20,
            "averaging": {"kind": "swa", "start": 0.7},
            "precision": "bfloat16",
            "channels_last": True,
        },
        "axes": {
            "architecture": {
                "ResNet-20": {"model.width": 16},
                "wide ResNet-20": {"model.width": 32},
                "ResNet-18": {"model.name": "resnet18", "model.width": 32},
            },
            "regulariser": {
                "none": {},
                "augmentation": {"augmentation": {"flip": True, "crop": 4}},
                "weight decay": {"optimizer.weight_decay": 5e-4},
            },
            "batch": {"batch_size": [128, 512]},
            "rate": {"optimizer.lr": [0.003, 0.02]},
            "optimizer": {"SGD": {}, "SAM": {"sam.rho": 0.05}, "Adam": {"optimizer.name": "adam"}},
        },
    }


@dataclass(frozen=True)
class _Grid:
    """A part: what is trained, how often, on how many rows it is measured (None: all), and what a reader should know."""

    written: Callable[[Size], dict[str, object]]
    seeds: int
    rows: int | None
    about: str

    @property
    def note(self) -> str:
        """How many models, and of what kind."""
        trainings = 3 * 3 * 2 * 2 * 3 * self.seeds
        times = "" if self.seeds == 1 else f" × {self.seeds} seeds"
        return (
            f"{trainings} trainings (3 architectures × 3 regularisers × 2 batch sizes × 2 rates × 3 optimisers{times}), each "
            f"measured at its last weights and at their average: {2 * trainings} models. {self.about}"
        )


_GRIDS: Mapping[str, _Grid] = {
    "digits": _Grid(_digits, 2, None, "MLPs on 400 digits, tested on the 599 that were held out."),
    "fashion-mnist": _Grid(
        _fashion_mnist,
        1,
        128,
        "ResNets on 1,000 images of FashionMNIST at 14×14 pixels, 30 epochs, measured on 128 of them, tested on 10,000.",
    ),
    "cifar10": _Grid(_cifar10, 2, 2000, "ResNets on CIFAR-10, 20 epochs, measured on 2,000 training images."),
}


def _study(part: str, size: Size) -> StudySpec:
    measures: dict[str, object] = {"loss": None, "error": None}
    some = ("l2_norm", "sam_sharpness", "relative_flatness", "igs")
    measures |= {name: dict(MEASURED[name]) for name in (some if size == "tiny" else MEASURED)}
    grid = _GRIDS[part]
    return parse(
        StudySpec,
        {
            "name": f"does-sharpness-predict-{part}",
            "question": "Does sharpness predict generalisation or calibration beyond what the settings and the training "
            "loss tell?",
            "seeds": grid.seeds,
            **grid.written(size),
            "measuring": {
                "checkpoints": ["final", "average"],
                "splits": {
                    "train": {"measures": measures, "samples": None if size == "tiny" else grid.rows},
                    "test": {"measures": ["loss", "error", "ece", "brier"]},
                },
                "seconds": 60.0 if part == "cifar10" and size == "paper" else None,
                "reliability": False,
            },
            "analysis": {"outcomes": ["test.error", "test.loss", "gap.loss", "test.ece"], "given": GIVEN},
        },
    )


def _parts(size: Size) -> dict[str, Part]:
    """Two parts need two cores, the third a GPU."""
    return {
        part: Part(
            study=_study(part, size),
            note="Eight small networks, to show that everything runs." if size == "tiny" else grid.note,
        )
        for part, grid in _GRIDS.items()
        if part != "cifar10" or size != "small"
    }


RECIPE = RECIPES.register("does-sharpness-predict")(
    Recipe(
        name="does-sharpness-predict",
        title="Does sharpness predict?",
        paper="Ours; the larger study that Mason-Williams, Sterner and Ekholm ask for, in the manner of Jiang et al. (ICLR 2020)",
        parts=_parts,
        claims=claims_of,
        remarks=(
            "No paper stands behind it: there are no published numbers to compare with.",
            "The rate is the same number for SGD and Adam, so that it is an axis of its own.",
            "Models of one condition share everything but the seed; τ and its p-value take all final models for independent, "
            "Ψ does not.",
        ),
    )
)
