"""How the models of the fourth paper are trained, task by task and size by size, and which of its numbers stand beside them."""

from __future__ import annotations

from dataclasses import replace

from landscope.recipes.fam_conditions import (
    AS_CODED,
    FAM_ROW,
    SWEEP_ROWS,
    Task,
    Written,
    autoencoder,
    methods,
    sweep,
    text,
)
from landscope.recipes.hundred_classes import HUNDRED_CLASSES, OTHER_DATA
from landscope.recipes.recipe import Size

__all__ = ["tasks"]

_STEPS = {"name": "multistep", "milestones": [0.3, 0.6, 0.8], "gamma": 0.2}
_GPU = {"precision": "bfloat16", "channels_last": True, "compile": True}
_NO_GPU = {"precision": "float32", "channels_last": False, "compile": False}
_WIDE = "landscope:WideResNet"


def _sgd(lr: float, *, nesterov: bool = False) -> Written:
    return {"name": "sgd", "lr": lr, "momentum": 0.9, "nesterov": nesterov, "weight_decay": 5e-4}


def tasks(size: Size) -> dict[str, Task]:
    """The parts of the recipe at a size; SVHN and the hundred classes are for a GPU only.

    >>> list(tasks("tiny"))
    ['cifar10', 'fashion-mnist', 'skulls', 'rte']
    """
    return {"tiny": _tiny, "small": _small, "paper": _paper}[size]()


def _paper() -> dict[str, Task]:
    wide = {"name": "wide_resnet28_10", "penultimate": 64}
    cifar10 = Task(
        training={
            "data": {"name": "cifar10", "pixels": "standard", "validation": 0},
            "model": "resnet18",
            "epochs": 250,
            "batch_size": 64,
            "optimizer": _sgd(0.03),
            "schedule": "cosine",
            "augmentation": {"crop": 4, "flip": True},
            **_GPU,
        },
        conditions=methods(512, sam={"optimizer.lr": 0.01}),
        published={"data": "cifar10"},
        paper_conditions=FAM_ROW,
        note="As in the paper, where SAM has a smaller learning rate (0.01) than the others (0.03).",
    )
    return {
        "cifar10": cifar10,
        "cifar10-tenth": replace(
            cifar10,
            training={**cifar10.training, "epochs": 25},
            note="25 of the paper's 250 epochs, with a whole cosine; otherwise as in the paper, where SAM has a smaller learning "
            "rate (0.01) than the others (0.03).",
        ),
        "fashion-mnist": Task(
            training={
                "data": {"name": "fashion_mnist", "pixels": "symmetric", "validation": 0},
                "model": wide,
                "epochs": 200,
                "batch_size": 64,
                "optimizer": _sgd(0.01, nesterov=True),
                "schedule": _STEPS,
                "augmentation": {"crop": 0, "flip": False, "cutout": 16},
                **_GPU,
            },
            conditions=methods(64),
            published={"data": "fashionmnist"},
            paper_conditions=FAM_ROW,
            note="One channel of 28×28 pixels, where the paper enlarges to three of 32×32.",
        ),
        "svhn": Task(
            training={
                "data": {"name": "svhn", "pixels": "standard", "validation": 0},
                "model": wide,
                "epochs": 100,
                "batch_size": 128,
                "optimizer": _sgd(0.1, nesterov=True),
                "schedule": _STEPS,
                "augmentation": {"crop": 4, "flip": True, "cutout": 16},
                **_GPU,
            },
            conditions=methods(64),
            published={"data": "svhn"},
            paper_conditions=FAM_ROW,
            note="Crops, flips and cutout without the AutoAugment policy of the paper.",
        ),
        "classes100": Task(
            training={
                "data": {"name": HUNDRED_CLASSES, "pixels": "symmetric", "validation": 0},
                "model": {"name": "landscope.recipes.fam_inputs:enlarged_efficientnet"},
                "epochs": 10,
                "batch_size": 32,
                "optimizer": {"name": "adam", "lr": 1e-4},
                "augmentation": {"crop": 4, "flip": True},
                **_GPU,
            },
            conditions=methods(1280),
            published={"data": "cifar100"},
            paper_conditions=FAM_ROW,
            note=f"{OTHER_DATA} EfficientNet-Lite0 stands for B7. The learning rate (1e-4), the number of epochs (10) and λ "
            "(0.1) are not in the paper.",
        ),
        "skulls": Task(
            training=autoencoder("skulls", "autoencoder3d", n_train=100, batch_size=10, epochs=200),
            conditions=sweep(),
            published={"data": ("skulls set 1", "skulls set 2")},
            paper_conditions=SWEEP_ROWS,
            note="Skulls made from one head, since those of the paper are not public: the published numbers are of other shapes. "
            "Batches of 10; the paper does not say. Sharpness is measured on 40 of the training skulls.",
        ),
        "rte": Task(
            training={
                "data": {"name": "landscope.recipes.fam_inputs:rte_word_pieces", "length": 128},
                "model": {"name": "minilm", "weights": "minilm"},
                "epochs": 20,
                "batch_size": 32,
                "optimizer": {"name": "adamw", "lr": 2e-5},
            },
            conditions=text(384),
            seeds=12,
            published={"data": "rte"},
            paper_conditions={"fam 3e6": f"fam {AS_CODED}"},
            note="MiniLM-L6 (22.6M) stands for BERT-base (110M).",
        ),
    }


def _small() -> dict[str, Task]:
    paper = _paper()
    images = {
        "cifar10": Task(
            training={
                **paper["cifar10"].training,
                "data": {"name": "cifar10", "pixels": "standard", "validation": 0, "train_size": 2000},
                "model": {"name": "resnet20", "width": 8},
                "epochs": 6,
                **_NO_GPU,
            },
            conditions=methods(32),
            published={"data": "cifar10"},
            paper_conditions=FAM_ROW,
            note="ResNet-20 with half the channels, 2,000 images, 6 epochs, SAM with the learning rate of the others; tested on "
            "2,000 images.",
        ),
        "fashion-mnist": Task(
            training={
                **paper["fashion-mnist"].training,
                "data": {"name": "fashion_mnist", "pixels": "symmetric", "validation": 0, "train_size": 4000},
                "model": {"name": _WIDE, "depth": 10, "widen_factor": 1, "penultimate": 64},
                "epochs": 15,
                **_NO_GPU,
            },
            conditions=methods(64),
            published={"data": "fashionmnist"},
            paper_conditions=FAM_ROW,
            note="WideResNet-10-1 with the layer of 64 units, 4,000 images, 15 epochs; tested on 2,000 images.",
        ),
    }
    skulls = {"name": "skulls", "size": 32, "n_train": 24, "n_validation": 2, "n_test": 24}
    network = {"name": "autoencoder3d", "channels": [8, 16, 32, 16, 8], "instance_norm": False}
    return images | {
        "skulls": Task(
            training=autoencoder(skulls, network, n_train=24, batch_size=4, epochs=80, lr=2e-3),
            conditions=sweep(),
            published=paper["skulls"].published,
            paper_conditions=SWEEP_ROWS,
            note="24 skulls of 32³ voxels to learn from and 24 to test, a quarter of the channels, no instance normalisation, "
            "batches of 4, 80 epochs, learning rate 2e-3; distances are in voxels of twice the size.",
        ),
        "rte": Task(
            training={
                **paper["rte"].training,
                "data": {
                    "name": "landscope.recipes.fam_inputs:rte_word_pieces",
                    "length": 64,
                    "train_size": 200,
                },
                "epochs": 2,
            },
            conditions=text(384),
            seeds=3,
            published={"data": "rte"},
            paper_conditions={"fam 3e6": f"fam {AS_CODED}"},
            note="200 pairs of at most 64 word pieces, 2 epochs, 3 seeds: enough to run, not to learn entailment.",
        ),
    }


def _tiny() -> dict[str, Task]:
    digits = {"name": "digits", "pixels": "standard", "train_size": 64}
    common: Written = {"data": digits, "epochs": 1, "batch_size": 32}
    shells = {"name": "shells", "size": 32, "n_train": 2, "n_validation": 1, "n_test": 2}
    network = {"name": "autoencoder3d", "channels": [2, 2, 2, 2, 2], "instance_norm": False, "init": "he"}
    note = "A stand-in of a few seconds, to show that everything runs."
    return {
        "cifar10": Task(
            training={
                **common,
                "model": {"name": "mlp", "widths": [12], "batch_norm": True},
                "optimizer": _sgd(0.03),
                "schedule": "cosine",
                "augmentation": {"crop": 1, "flip": True},
            },
            conditions=methods(12),
            seeds=1,
            note=note,
        ),
        "fashion-mnist": Task(
            training={
                **common,
                "model": {"name": _WIDE, "depth": 10, "widen_factor": 1, "penultimate": 16},
                "optimizer": _sgd(0.01, nesterov=True),
                "schedule": _STEPS,
                "augmentation": {"crop": 0, "flip": False, "cutout": 4},
            },
            conditions=methods(16),
            seeds=1,
            note=note,
        ),
        "skulls": Task(
            training=autoencoder(shells, network, n_train=2, batch_size=2, epochs=2),
            conditions=sweep((0.02,)),
            seeds=1,
            note=note,
        ),
        "rte": Task(
            training={
                **common,
                "model": {"name": "mlp", "widths": [8]},
                "optimizer": {"name": "adamw", "lr": 2e-5},
            },
            conditions=text(8),
            seeds=1,
            note=f"{note} No text: digits.",
        ),
    }
