"""Paper 3 on images: four convolutional networks, under L2 or by two optimisers, with BatchNorm in either of its modes."""

from __future__ import annotations

from collections.abc import Mapping

from torch.nn.functional import interpolate

from landscope.data import load
from landscope.data.dataset import Split
from landscope.recipes.false_friend_study import L2, METRICS, SCHEDULE, Mode, Options, part_of, study_of
from landscope.recipes.halved_images import halved
from landscope.recipes.hundred_classes import HUNDRED_CLASSES, OTHER_DATA
from landscope.recipes.recipe import Part, Size

__all__ = ["adaptive", "enlarged_digits", "halved_cifar10", "regularised"]

AVERAGING = 161 / 300
"""The share of the epochs after which Gadam averages."""
NETWORKS: Mapping[str, Mapping[Size, Options]] = {
    "cnn": {
        "tiny": {"name": "cnn9", "width": 1},
        "small": {"name": "cnn9", "width": 16, "input_dropout": 0.0, "dropout": 0.0},
        "paper": {"name": "cnn9"},
    },
    "preresnet164": {
        "tiny": {"name": "landscope:PreResNet", "depth": 11, "width": 1},
        "small": {"name": "landscope:PreResNet", "depth": 11, "width": 8},
        "paper": {"name": "preresnet164"},
    },
    "wideresnet28x10": {
        "tiny": {"name": "landscope:WideResNet", "depth": 10, "widen_factor": 1, "conv_bias": True},
        "small": {"name": "landscope:WideResNet", "depth": 10, "widen_factor": 1, "conv_bias": True},
        "paper": {"name": "wide_resnet28_10", "conv_bias": True},
    },
    "vgg16bn": {
        "tiny": {"name": "vgg16", "width": 1, "head": "two_hidden", "dropout": 0.5},
        "small": {"name": "vgg16", "width": 8, "head": "two_hidden", "init": "he"},
        "paper": {"name": "vgg16", "head": "two_hidden", "dropout": 0.5, "init": "he"},
    },
}
RATES: Mapping[str, float] = {"cnn": 0.01, "preresnet164": 0.1, "wideresnet28x10": 0.1, "vgg16bn": 0.1}
SMALL_RATES: Mapping[str, float] = {**RATES, "cnn": 0.02, "vgg16bn": 0.01}
"""At the paper's rates the narrow CNN learns slowly and the narrow VGG not at all."""
SMALL_LENGTHS: Mapping[str, Options] = {
    "cnn": {"epochs": 60, "batch_size": 16},
    "preresnet164": {"epochs": 40, "batch_size": 32},
    "wideresnet28x10": {"epochs": 40, "batch_size": 32},
    "vgg16bn": {"epochs": 30, "batch_size": 32},
}
SMALL_IMAGES, SMALL_ROWS = 1_000, 128
VGG_IMAGES, VGG_ROWS = 500, 64
"""VGG's five poolings need all 32×32 pixels: fewer of these images are learnt and measured."""
SMALLEST: Mapping[str, int] = {"cnn": 2, "preresnet164": 1, "wideresnet28x10": 1, "vgg16bn": 4}
"""How many times 8×8 pixels a network needs."""


def enlarged_digits(train: int = 40, times: int = 4) -> dict[str, Split]:
    """The digits, larger and in three colours: the smallest data that the networks of the paper take.

    >>> enlarged_digits()["train"].x.shape
    torch.Size([40, 3, 32, 32])
    """
    digits = load("digits", train_size=train, pixels="symmetric")
    return {
        split: Split(interpolate(x[:train], scale_factor=float(times)).expand(-1, 3, -1, -1).contiguous(), y[:train])
        for split, (x, y) in (("train", digits.train), ("validation", digits.validation), ("test", digits.test))
    }


def halved_cifar10(train: int = 1_000) -> dict[str, Split]:
    """CIFAR-10 at 16×16 pixels."""
    return halved("cifar10", train, validation=5_000)


def regularised(network: str, data: str, size: Size, mode: Mode) -> Part:
    """One of the convolutional networks under L2."""
    study = study_of(
        f"{network}-{mode}",
        f"{network}: does L2 regularisation lead to sharper minima, and to better ones?",
        {
            **_images(network, data, size),
            "optimizer": {"name": "sgd", "lr": _rate(network, size)},
            "schedule": SCHEDULE,
        },
        {"l2": {name: L2[name] for name in ("l2 0", "l2 5e-4")} if size == "tiny" else L2},
        seeds=1 if size == "tiny" else 3,
        mode=mode,
        samples={"tiny": 8, "small": SMALL_ROWS, "paper": None}[size],
        plain={"hessian_top_eigenvalue": {"max_matvecs": 4}} if size == "tiny" else None,
    )
    rows: dict[str, str | tuple[str, ...]] = {"model": network}
    if mode == "batch_statistics":
        rows |= {"metric": METRICS, "condition": tuple(L2)}
    return part_of(study, size, rows, _about(network, data, size, mode))


def adaptive(data: str, size: Size, mode: Mode) -> Part:
    """VGG-16 by SGD and by Gadam. Both are measured as "average"; that of SGD is of its last iterate alone."""
    published = "cifar10" if data == "cifar10" else "cifar100"
    decay, decoupled = (3e-4, 0.35) if published == "cifar10" else (5e-4, 0.25)
    study = study_of(
        f"vgg16bn-{published}-{mode}",
        "VGG-16: is Adam with decoupled decay and averaged iterates better than SGD, and sharper?",
        _images("vgg16bn", data, size),
        {
            "optimizer": {
                "sgd": {
                    "optimizer": {"name": "sgd", "lr": _rate("vgg16bn", size), "weight_decay": decay},
                    "schedule": SCHEDULE,
                    "averaging": {"kind": "ema", "decay": 0.0, "start": 1.0},
                },
                "adam": {
                    "optimizer": {"name": "adam", "lr": 5e-4, "weight_decay": decoupled, "decoupled": True},
                    "schedule": {**SCHEDULE, "flat": 0.5 * AVERAGING, "end": 0.9 * AVERAGING, "final": 0.5},
                    "averaging": {"kind": "swa", "start": AVERAGING, "lr": 0.5},
                },
            }
        },
        seeds=1 if size == "tiny" else 5,
        checkpoints=("average", "final") if size == "paper" else ("average",),
        mode=mode,
        samples={"tiny": 8, "small": VGG_ROWS, "paper": None}[size],
        plain={"hessian_top_eigenvalue": {"max_matvecs": 4}} if size == "tiny" else None,
    )
    rows: dict[str, str | tuple[str, ...]] = {"model": "vgg16bn", "data": published}
    rows["metric"] = "val_accuracy_pct" if mode == "eval" else METRICS
    return part_of(study, size, rows, _about("vgg16bn", data, size, mode))


def _rate(network: str, size: Size) -> float:
    return (SMALL_RATES if size == "small" else RATES)[network]


def _images(network: str, data: str, size: Size) -> Options:
    """Network, data, augmentation and length of a training on images."""
    augmented: Options = {"model": NETWORKS[network][size], "augmentation": {"crop": 4, "flip": True}}
    rows: Options = {"name": data, "pixels": "standard", "validation": 5_000}
    if size == "tiny":
        rows = {"name": "landscope.recipes.false_friend_images:enlarged_digits", "times": SMALLEST[network]}
        return {**augmented, "data": rows, "epochs": 2, "batch_size": 20}
    if size == "paper":
        return {**augmented, "data": rows, "epochs": 300, "precision": "bfloat16", "channels_last": True}
    rows = {**rows, "train_size": VGG_IMAGES}
    if network != "vgg16bn":
        rows = {"name": "landscope.recipes.false_friend_images:halved_cifar10", "train": SMALL_IMAGES}
    return {"model": NETWORKS[network][size], "data": rows, "evaluate_every": 10, **SMALL_LENGTHS[network]}


def _about(network: str, data: str, size: Size, mode: Mode) -> str:
    batches = "batch statistics" if size == "small" else "the statistics of batches of 128"
    how = "as it predicts" if mode == "eval" else f"by {batches}, for accuracies too"
    batch_norm = "" if network == "cnn" else f", BatchNorm {how}"
    if size == "small":
        images, rows = f"{SMALL_IMAGES:,} images of cifar10 at 16×16 pixels", SMALL_ROWS
        if network == "vgg16bn":
            images, rows = f"{VGG_IMAGES} images of {data}", VGG_ROWS
        narrower = "narrower" if network in ("cnn", "vgg16bn") else "narrower and shallower"
        length = SMALL_LENGTHS[network]
        return (
            f"Reduced: {images}, a {narrower} network, {length['epochs']} epochs in batches of {length['batch_size']}, SGD at "
            f"rate {_rate(network, size):g}, neither crops, flips nor dropout. Measured on {rows} training rows{batch_norm}. "
            "Published numbers beside it are of other data and networks."
        )
    note = f"{data}; trained with crops and flips, measured without{batch_norm}."
    if data == HUNDRED_CLASSES:
        note += f" {OTHER_DATA}"
    return f"{note} Trained in bfloat16."
