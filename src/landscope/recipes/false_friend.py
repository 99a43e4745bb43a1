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

At size "small" all but vgg16bn take CIFAR-10, and all learn few images without augmentation or dropout: narrow networks fit them
within a minute. The Hessian is that of the loss without its L2 term, on the training rows.
"""

from __future__ import annotations

from landscope.data import load
from landscope.data.dataset import Split
from landscope.recipes.false_friend_claims import EVAL, claims
from landscope.recipes.false_friend_images import adaptive, regularised
from landscope.recipes.false_friend_study import CURVATURE, L2, SCHEDULE, Mode, Options, part_of, study_of
from landscope.recipes.hundred_classes import HUNDRED_CLASSES
from landscope.recipes.recipe import RECIPES, Part, Recipe, Size

__all__ = ["RECIPE", "mnist_split"]

MNIST = "landscope.recipes.false_friend:mnist_split"
TRAIN, VALIDATION = 45_000, 5_000
STEPS_PER_EPOCH = 352
"""45,000 images in batches of 128."""


def mnist_split() -> dict[str, Split]:
    """MNIST with pixels in [−1, 1], split as the paper's code splits data: the last 5,000 training rows are for validation.

    They are easier than the others: softmax regression that errs on 8.7 % of held-out rows among the first 55,000 errs on 6.4 %
    of those among the last 5,000. Of the first 55,000, 45,000 are for training, as the text says.
    """
    whole = load("mnist", pixels="symmetric", validation=0)
    x, y = whole.train
    train, validation = Split(x[:TRAIN], y[:TRAIN]), Split(x[-VALIDATION:], y[-VALIDATION:])
    return {"train": train, "validation": validation, "test": whole.test}


def _softmax_regression(size: Size) -> Part:
    tiny = size == "tiny"
    epochs, steps = ((4,), 2) if tiny else ((10, 50, 200, 500), STEPS_PER_EPOCH)
    snapshots = [epoch * steps for epoch in epochs]
    study = study_of(
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
        "As in the paper; what it does not state: batches of 128, pixels in [−1, 1], validation on the last 5,000 rows. "
        "Measured on all 45,000 training rows. Seeds change the start and the order of the rows, not the split: whatever the "
        "spread over seeds, an accuracy over 5,000 images has a standard error of 0.3 points, over 10,000 of 0.2."
    )
    return part_of(study, size, {"data": "mnist", "model": "softmax regression"}, note)


def _mlp(size: Size) -> Part:
    tiny = size == "tiny"
    study = study_of(
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
    note = "As softmax regression. 784-100-10 has 79,510 parameters. The gap is that of the validation and the training error."
    return part_of(study, size, {"data": "mnist", "model": "mlp 100"}, note)


def _vanishing_loss(size: Size) -> Part:
    tiny = size == "tiny"
    snapshots = (3, 10) if tiny else (10, 30, 100, 300, 1_000, 3_000)
    study = study_of(
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
    return part_of(study, size, {}, note)


def _digits(train: int) -> Options:
    return {"name": "digits", "pixels": "symmetric", "train_size": train}


def _parts(size: Size) -> dict[str, Part]:
    parts = {
        "softmax-regression": _softmax_regression(size),
        "mlp": _mlp(size),
        "vanishing-loss": _vanishing_loss(size),
        "cnn": regularised("cnn", HUNDRED_CLASSES, size, "eval"),
    }
    modes: tuple[tuple[str, Mode], ...] = (("", "batch_statistics"), (EVAL, "eval"))
    for suffix, mode in modes:
        parts[f"preresnet164{suffix}"] = regularised("preresnet164", HUNDRED_CLASSES, size, mode)
        parts[f"wideresnet28x10{suffix}"] = regularised("wideresnet28x10", HUNDRED_CLASSES, size, mode)
        parts[f"vgg16bn{suffix}"] = adaptive(HUNDRED_CLASSES, size, mode)
        parts[f"vgg16bn-cifar10{suffix}"] = adaptive("cifar10", size, mode)
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
            "MNIST's validation rows are the last 5,000 of the training file, which are easier than the others and than the test "
            "rows.",
            "Every published number is of one training run. Here each condition has several seeds.",
            "λ₁ is the largest Ritz value after 100 Lanczos steps from one random vector, converged or not; corrected: "
            "restarted to a tolerance, with a residual bound.",
            "The 'trace' and the 'Frobenius norm' are the mean and the mean square of the eigenvalues, from the same vector; "
            "corrected: the trace and the norm themselves, with error bars.",
            "L2 is γ‖w‖² in section 4 and μ/2 ‖w‖² in appendix C. Section 4 has it add γ to every eigenvalue, as the second "
            "does: weight decay as optimisers have it, and here.",
            "Softmax regression has 1000 epochs in section 4 and 50 in appendix A; here 1000.",
            "A hidden layer of 100 units on MNIST makes 79,510 parameters; the text says 9,960. Its published accuracies and "
            "gaps are below those of such a network, trained as the text says.",
            "PreResNet-164 without regularisation has 72.78 % in the text and 73.12 % in figure 4.",
        ),
    )
)
