"""Paper 3 on images: four convolutional networks, under L2 or by two optimisers, with BatchNorm in either of its modes."""

from __future__ import annotations

from collections.abc import Mapping

from torch.nn.functional import interpolate

from landscope.data import load
from landscope.data.card import Split
from landscope.recipes.false_friend_study import L2, METRICS, SCHEDULE, Mode, Options, part_of, study_of
from landscope.recipes.recipe import Part, Size

__all__ = ["adaptive", "enlarged_digits", "regularised"]

AVERAGING = 161 / 300
"""The share of the epochs after which Gadam averages."""
NETWORKS: Mapping[str, Mapping[Size, Options]] = {
    "cnn": {"tiny": {"name": "cnn9", "width": 1}, "small": {"name": "cnn9", "width": 8}, "paper": {"name": "cnn9"}},
    "preresnet164": {
        "tiny": {"name": "landscope.models.images:PreResNet", "depth": 11, "width": 1},
        "small": {"name": "landscope.models.images:PreResNet", "depth": 11, "width": 4},
        "paper": {"name": "preresnet164"},
    },
    "wideresnet28x10": {
        "tiny": {"name": "landscope.models.images:WideResNet", "depth": 10, "widen_factor": 1, "conv_bias": True},
        "small": {"name": "landscope.models.images:WideResNet", "depth": 10, "widen_factor": 1, "conv_bias": True},
        "paper": {"name": "wide_resnet28_10", "conv_bias": True},
    },
    "vgg16bn": {
        "tiny": {"name": "vgg16", "width": 1, "head": "two_hidden", "dropout": 0.5},
        "small": {"name": "vgg16", "width": 8, "head": "two_hidden", "dropout": 0.5, "init": "he"},
        "paper": {"name": "vgg16", "head": "two_hidden", "dropout": 0.5, "init": "he"},
    },
}
RATES: Mapping[str, float] = {"cnn": 0.01, "preresnet164": 0.1, "wideresnet28x10": 0.1}
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


def regularised(network: str, data: str, size: Size, mode: Mode) -> Part:
    """One of the convolutional networks under L2."""
    study = study_of(
        f"{network}-{mode}",
        f"{network}: does L2 regularisation lead to sharper minima, and to better ones?",
        {
            **_images(network, data, size),
            "optimizer": {"name": "sgd", "lr": RATES[network]},
            "schedule": SCHEDULE,
        },
        {"l2": {name: L2[name] for name in ("l2 0", "l2 5e-4")} if size == "tiny" else L2},
        seeds=1 if size == "tiny" else 3,
        mode=mode,
        samples={"tiny": 8, "small": 128, "paper": None}[size],
        plain={"hessian_top_eigenvalue": {"max_matvecs": 4}} if size == "tiny" else None,
    )
    rows: dict[str, str | tuple[str, ...]] = {"model": network}
    if mode == "batch_statistics":
        rows["metric"] = METRICS
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
                    "optimizer": {"name": "sgd", "lr": 0.1, "weight_decay": decay},
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
        checkpoints=("average",) if size == "tiny" else ("average", "final"),
        mode=mode,
        samples={"tiny": 8, "small": 128, "paper": None}[size],
        plain={"hessian_top_eigenvalue": {"max_matvecs": 4}} if size == "tiny" else None,
    )
    rows: dict[str, str | tuple[str, ...]] = {"model": "vgg16bn", "data": published}
    rows["metric"] = "val_accuracy_pct" if mode == "eval" else METRICS
    return part_of(study, size, rows, _about("vgg16bn", data, size, mode))


def _images(network: str, data: str, size: Size) -> Options:
    """Network, data, augmentation and length of a training on images."""
    training: Options = {"model": NETWORKS[network][size], "augmentation": {"crop": 4, "flip": True}}
    rows: Options = {"name": data, "pixels": "standard", "validation": 5_000}
    if size == "tiny":
        rows = {"name": "landscope.recipes.false_friend_images:enlarged_digits", "times": SMALLEST[network]}
        return {**training, "data": rows, "epochs": 2, "batch_size": 20}
    if size == "small":
        return {**training, "data": {**rows, "train_size": 2_000}, "epochs": 10}
    return {**training, "data": rows, "epochs": 300, "precision": "bfloat16", "channels_last": True}


def _about(network: str, data: str, size: Size, mode: Mode) -> str:
    how = "as it predicts" if mode == "eval" else "by the statistics of batches of 128, for accuracies too"
    note = f"{data}; trained with crops and flips, measured without{'' if network == 'cnn' else f', BatchNorm {how}'}."
    if data not in ("cifar10", "cifar100"):
        note += " The paper's numbers are those of CIFAR-100."
    if size == "small":
        return f"{note} Reduced: a narrower and shallower network, 2,000 images, 10 epochs, measured on 128 rows."
    return f"{note} Trained in bfloat16."
