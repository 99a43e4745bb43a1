"""Paper 3: flatness is a false friend. L2 regularisation and adaptive optimisers generalise better, and are sharper.

The loss of a classifier that fits its data goes to 0 only as its weights grow without bound, and the Hessian goes to 0 with
it. So whatever keeps weights small should make minima sharper, and generalise better all the same. The paper shows it for
L2 ∈ {0, 1e-4, 5e-4} on five networks, and for VGG-16 trained by SGD or by Adam with decoupled decay and iterate averaging
(Gadam).

    softmax-regression, mlp                          MNIST, pixels in [−1, 1], 45,000 training and 5,000 validation images
    vanishing-loss                                   the theorem: training to a loss of almost 0, where the data can be separated
    cnn, preresnet164, wideresnet28x10, vgg16bn      `HUNDRED_CLASSES`; BatchNorm by the statistics of batches of 128
    vgg16bn-cifar10                                  the same on CIFAR-10
    …-eval                                           the same networks with BatchNorm as it predicts

The Hessian is that of the loss without its L2 term, on the training rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias

from torch.nn.functional import interpolate

from landscope.core.schema import build
from landscope.data import load
from landscope.data.card import Split
from landscope.recipes.false_friend_claims import DECAYS, EVAL, claims
from landscope.recipes.recipe import RECIPES, Part, Recipe, Size
from landscope.studies.spec import StudySpec

__all__ = ["HUNDRED_CLASSES", "RECIPE", "enlarged_digits"]

HUNDRED_CLASSES = "tinyimagenet100_32"
"""Stands for CIFAR-100: as many images of the same size in as many classes. Set it to "cifar100" where that is at hand."""

Options: TypeAlias = dict[str, object]
Mode: TypeAlias = Literal["eval", "batch_statistics"]

BATCH = 128
SCHEDULE: Options = {"name": "flat_linear_flat", "flat": 0.5, "end": 0.9, "final": 0.01}
L2: Options = {condition: {"optimizer.weight_decay": decay} for condition, decay in DECAYS.items()}
MNIST: Options = {"name": "mnist", "pixels": "symmetric", "validation": 5_000, "train_size": 45_000}
STEPS_PER_EPOCH = 352
"""45,000 images in batches of 128."""
AVERAGING = 161 / 300
"""The share of the epochs after which Gadam averages."""
PREDICTIONS = ("loss", "error", "accuracy")
CURVATURE = ("hessian_top_eigenvalue", "hessian_trace", "hessian_frobenius")
METRICS = ("hessian_top_eigenvalue", "hessian_bottom_eigenvalue", "hessian_frobenius")
"""Of the published numbers, those that depend on BatchNorm's mode."""
NETWORKS: Mapping[str, Mapping[Size, Options]] = {
    "cnn": {"tiny": {"name": "cnn9", "width": 1}, "small": {"name": "cnn9", "width": 16}, "paper": {"name": "cnn9"}},
    "preresnet164": {
        "tiny": {"name": "landscope.models.images:PreResNet", "depth": 11, "width": 1},
        "small": {"name": "landscope.models.images:PreResNet", "depth": 11, "width": 8},
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
STAND_INS = "On small stand-ins, to show that everything runs."


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


def _study(
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
    return build(
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
                "measures": [*(f"{prefix}.{measure}" for measure in CURVATURE), "train.l2_norm"],
                "baseline": next(iter(next(iter(axes.values())))),
            },
        },
    )


def _softmax_regression(size: Size) -> Part:
    tiny = size == "tiny"
    epochs, steps = ((4,), 2) if tiny else ((10, 50, 200, 500), STEPS_PER_EPOCH)
    snapshots = [epoch * steps for epoch in epochs]
    study = _study(
        "softmax-regression",
        "Softmax regression on MNIST: does L2 regularisation lead to sharper minima, and to better ones?",
        {
            "model": "softmax_regression",
            "data": _digits(100) if tiny else MNIST,
            "epochs": 2 * epochs[-1],
            "optimizer": {"name": "sgd", "lr": 0.01},
            "schedule": SCHEDULE,
            "snapshots": snapshots,
            **({"batch_size": 50} if tiny else {}),
        },
        {"l2": L2},
        seeds=1 if tiny else 3,
        checkpoints=("final", *(f"step {step}" for step in snapshots)),
    )
    note = (
        "As in the paper but for what it does not state: batches of 128, pixels in [−1, 1], which rows are for validation. "
        "Measured on all 45,000 training rows. Seeds change the start and the order of the rows, not the split: whatever the "
        "spread over seeds, an accuracy over 5,000 images has a standard error of 0.3 points, over 10,000 of 0.2."
    )
    return _part(study, size, {"data": "mnist", "model": "softmax regression"}, note)


def _mlp(size: Size) -> Part:
    tiny = size == "tiny"
    study = _study(
        "mlp",
        "A hidden layer of 100 units on MNIST: does L2 regularisation lead to sharper minima, and to better ones?",
        {
            "model": {"name": "mlp", "widths": [4 if tiny else 100]},
            "data": _digits(100) if tiny else MNIST,
            "epochs": 4 if tiny else 50,
            "optimizer": {"name": "sgd", "lr": 0.01},
            "schedule": SCHEDULE,
        },
        {"l2": L2},
        seeds=1 if tiny else 3,
    )
    note = (
        "As softmax regression. 784-100-10 has 79,510 parameters. The gap is that of the test and the training error."
    )
    return _part(study, size, {"data": "mnist", "model": "mlp 100"}, note)


def _vanishing_loss(size: Size) -> Part:
    tiny = size == "tiny"
    snapshots = (3, 10) if tiny else (10, 30, 100, 300, 1_000, 3_000)
    study = _study(
        "vanishing-loss",
        "As the training loss goes to 0, does the largest eigenvalue of the Hessian?",
        {
            "model": "softmax_regression",
            "data": _digits(60)
            if tiny
            else {"name": "mnist", "pixels": "symmetric", "validation": 0, "train_size": 500},
            "epochs": 40 if tiny else 10_000,
            "batch_size": "full",
            "optimizer": {"name": "adam", "lr": 0.1 if tiny else 0.01},
            "snapshots": snapshots,
        },
        {
            "network": {
                "softmax regression": {"model": "softmax_regression"},
                "mlp 100": {"model": {"name": "mlp", "widths": [16 if tiny else 100]}},
            }
        },
        seeds=1 if tiny else 3,
        checkpoints=("final", *(f"step {step}" for step in snapshots)),
        plain=dict.fromkeys(CURVATURE),
    )
    note = "The theorem has no experiment in the paper. Here 500 images, which can be separated, are learnt by Adam, whole batch."
    return _part(study, size, {}, note)


def _regularised(network: str, size: Size, mode: Mode) -> Part:
    """One of the convolutional networks under L2."""
    study = _study(
        f"{network}-{mode}",
        f"{network}: does L2 regularisation lead to sharper minima, and to better ones?",
        {
            **_images(network, HUNDRED_CLASSES, size),
            "optimizer": {"name": "sgd", "lr": RATES[network]},
            "schedule": SCHEDULE,
        },
        {"l2": {name: L2[name] for name in ("l2 0", "l2 5e-4")} if size == "tiny" else L2},
        seeds=1 if size == "tiny" else 3,
        mode=mode,
        samples={"tiny": 8, "small": 500, "paper": None}[size],
        plain={"hessian_top_eigenvalue": {"max_matvecs": 4}} if size == "tiny" else None,
    )
    rows: dict[str, str | tuple[str, ...]] = {"model": network}
    if mode == "batch_statistics":
        rows["metric"] = METRICS
    return _part(study, size, rows, _about_images(HUNDRED_CLASSES, size, mode))


def _adaptive(data: str, size: Size, mode: Mode) -> Part:
    """VGG-16 by SGD and by Gadam. Both are measured as "average"; that of SGD is of its last iterate alone."""
    published = "cifar10" if data == "cifar10" else "cifar100"
    decay, decoupled = (3e-4, 0.35) if published == "cifar10" else (5e-4, 0.25)
    study = _study(
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
        samples={"tiny": 8, "small": 500, "paper": None}[size],
        plain={"hessian_top_eigenvalue": {"max_matvecs": 4}} if size == "tiny" else None,
    )
    rows: dict[str, str | tuple[str, ...]] = {"model": "vgg16bn", "data": published}
    rows["metric"] = "val_accuracy_pct" if mode == "eval" else METRICS
    return _part(study, size, rows, _about_images(data, size, mode))


def _images(network: str, data: str, size: Size) -> Options:
    """Network, data, augmentation and length of a training on images."""
    training: Options = {"model": NETWORKS[network][size], "augmentation": {"crop": 4, "flip": True}}
    rows: Options = {"name": data, "pixels": "standard", "validation": 5_000}
    if size == "tiny":
        rows = {"name": "landscope.recipes.false_friend:enlarged_digits", "times": SMALLEST[network]}
        return {**training, "data": rows, "epochs": 2, "batch_size": 20}
    if size == "small":
        return {**training, "data": {**rows, "train_size": 2_000}, "epochs": 10}
    return {**training, "data": rows, "epochs": 300, "precision": "bfloat16", "channels_last": True}


def _about_images(data: str, size: Size, mode: Mode) -> str:
    how = "as it predicts" if mode == "eval" else f"by the statistics of batches of {BATCH}"
    note = f"{data}, BatchNorm {how}, for accuracies too; trained with crops and flips, measured without."
    if data not in ("cifar10", "cifar100"):
        note += " The paper's numbers are those of CIFAR-100."
    if size == "small":
        return f"{note} Reduced: a narrower and shallower network, 2,000 images, 10 epochs, measured on 500 rows."
    return f"{note} Trained in bfloat16."


def _digits(train: int) -> Options:
    return {"name": "digits", "pixels": "symmetric", "train_size": train}


def _part(study: StudySpec, size: Size, published: Mapping[str, str | tuple[str, ...]], note: str) -> Part:
    return Part(
        study=study,
        published={} if size == "tiny" else published,
        conditions={f"{condition}, bn eval": condition for condition in DECAYS},
        columns={metric: f"train.published.{metric}" for metric in METRICS},
        note=STAND_INS if size == "tiny" else note,
    )


def _parts(size: Size) -> dict[str, Part]:
    parts = {
        "softmax-regression": _softmax_regression(size),
        "mlp": _mlp(size),
        "vanishing-loss": _vanishing_loss(size),
        "cnn": _regularised("cnn", size, "eval"),
    }
    modes: tuple[tuple[str, Mode], ...] = (("", "batch_statistics"), (EVAL, "eval"))
    for suffix, mode in modes:
        parts[f"preresnet164{suffix}"] = _regularised("preresnet164", size, mode)
        parts[f"wideresnet28x10{suffix}"] = _regularised("wideresnet28x10", size, mode)
        parts[f"vgg16bn{suffix}"] = _adaptive(HUNDRED_CLASSES, size, mode)
        parts[f"vgg16bn-cifar10{suffix}"] = _adaptive("cifar10", size, mode)
    return parts


RECIPE = RECIPES.register("false-friend")(
    Recipe(
        name="false-friend",
        title="Flatness is a false friend",
        paper="D. Granziol. Flatness is a False Friend. Under review at ICLR 2021",
        parts=_parts,
        claims=claims,
        differences=(
            "The text does not say how MNIST's pixels are scaled, and λ₁ depends on it by a factor of ten; only [−1, 1] comes "
            "near the published numbers.",
            "Every published number is of one training run. Here each condition has several seeds.",
            "λ₁ is the largest Ritz value after 100 Lanczos steps from one random vector, converged or not; corrected: "
            "restarted to a tolerance, with a residual bound.",
            "The 'trace' and the 'Frobenius norm' are the mean and the mean square of the eigenvalues, from the same vector; "
            "corrected: the trace and the norm themselves, with error bars.",
            "A hidden layer of 100 units on MNIST makes 79,510 parameters; the text says 9,960.",
            "PreResNet-164 without regularisation has 72.78 % in the text and 73.12 % in figure 4.",
        ),
    )
)
