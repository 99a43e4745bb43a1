"""Paper 3 says: whatever keeps weights small makes minima sharper, and generalises better all the same.

Networks with BatchNorm are as sharp as batch statistics make them and as accurate as they predict: accuracies are those of the
part that ends in `-eval`. The analytical example and the theorem have no experiment in the paper; `analytical` runs them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from landscope.analysis import difference, mean
from landscope.papers.framework.answers import Answer, Unit
from landscope.papers.framework.claims import Claim
from landscope.papers.framework.questions import Question, above, asked, correlates, every, larger, share
from landscope.papers.framework.values import NoAnswerError, Tables, Values, rows_at

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["claims"]

NONE, STRONG = "l2 0", "l2 5e-4"
NETWORKS = {
    "softmax-regression": ("Softmax regression", 0.60),
    "mlp": ("MLP", 2.3),
    "cnn": ("CNN", None),
    "preresnet164": ("PreResNet-164", 3.98),
    "wideresnet28x10": ("WideResNet-28×10", 5.4),
}
"""Part → what claims call it, and the paper's gain in accuracy from L2 in points, of one run each."""
ADAPTIVE = {
    "vgg16bn-cifar10-modes": ("VGG-16 on CIFAR-10", 0.8),
    "vgg16bn": ("VGG-16 on 100 classes", 2.3),
    "vgg16bn-cifar10": ("VGG-16 on CIFAR-10", 0.8),
}
MODES = "-modes"
"""One training, measured in both modes of BatchNorm."""
STABLE = {"softmax-rates": "Softmax regression", "mlp-rates": "MLP"}
SMALLER = {"wideresnet28x4-cifar10": "WideResNet-28×4 on CIFAR-10", "cnn-cifar10": "CNN on CIFAR-10"}
RATE = 0.1
"""Of the residual networks."""
EVAL = "-eval"
SHARPNESS = {"hessian_top_eigenvalue": "λ₁", "hessian_trace": "trace", "hessian_frobenius": "Frobenius norm"}
POINTS = Unit("points", 100)
SETTLED, VANISHED = 1.02, 0.01


def claims() -> Iterator[Claim]:
    """Every claim, network by network."""
    for part in NETWORKS:
        yield from _regularised(part)
    for part in ADAPTIVE:
        yield from _adaptive(part)
    yield Claim(
        part="softmax-regression",
        text="L2 regularisation raises λ₁: softmax regression and MLP",
        question=every(_sharper(part, "hessian_top_eigenvalue") for part in ("softmax-regression", "mlp")),
        paper="× 1.29 (softmax regression)",
        headline=10,
    )
    yield Claim(
        part="wideresnet28x10",
        text="L2 regularisation raises λ₁ and accuracy: PreResNet-164 and WideResNet-28×10",
        question=every(
            question
            for part in ("preresnet164", "wideresnet28x10")
            for question in (_sharper(part, "hessian_top_eigenvalue"), _accurate(part, "validation"))
        ),
        paper="+4.0 and +5.4 points",
        headline=13,
        minima=True,
    )
    for part, name in SMALLER.items():
        yield from _smaller(part, name)
    for part, name in STABLE.items():
        yield from _stable(part, name)
    yield _converged()
    for name, words in SHARPNESS.items():
        if name != "hessian_frobenius":
            yield _vanishing(name, words)
    yield Claim(
        part=f"wideresnet28x10{EVAL}",
        text="WideResNet, BatchNorm as it predicts: the regularised minimum is hundreds of times sharper",
        question=larger(
            *_ends(f"wideresnet28x10{EVAL}", "train.corrected.hessian_top_eigenvalue"),
            log=True,
            factor=100.0,
            label="λ₁ with L2 over without, less a factor of 100",
        ),
        paper="nearly 1000 times",
    )


def _ends(part: str, column: str) -> tuple[Values, Values]:
    strong, without = (Values(part=part, column=column, condition=condition) for condition in (STRONG, NONE))
    return strong, without


def _sharper(part: str, name: str) -> Question:
    return larger(*_ends(part, f"train.corrected.{name}"), log=True, label=f"{NETWORKS[part][0]}, {SHARPNESS[name]}")


def _accurate(part: str, split: str) -> Question:
    predicting = part if part in ("softmax-regression", "mlp", "cnn") else f"{part}{EVAL}"
    gain = NETWORKS[part][1]
    theirs = None if gain is None or split != "validation" else gain / 100
    label = f"{NETWORKS[part][0]}, {split} accuracy"
    return larger(*_ends(predicting, f"{split}.accuracy"), unit=POINTS, theirs=theirs, label=label)


def _regularised(part: str) -> Iterator[Claim]:
    name, gain = NETWORKS[part]
    yield Claim(
        part=part,
        text=f"{name}: L2 regularisation raises validation accuracy",
        question=_accurate(part, "validation"),
        paper="" if gain is None else f"+{gain} points",
        headline=11 if part == "mlp" else 0,
    )
    yield Claim(
        part=part,
        text=f"{name}: L2 regularisation raises accuracy on the test rows, too",
        question=_accurate(part, "test"),
        ours=True,
    )
    yield Claim(
        part=part,
        text=f"{name}: L2 regularisation makes minima sharper, by λ₁, trace and Frobenius norm",
        question=every(_sharper(part, measure) for measure in SHARPNESS),
    )
    if part in ("mlp", "cnn"):
        ends = _ends(part, "gap.error")
        yield Claim(
            part=part,
            text=f"{name}: the generalisation gap is smallest where the minimum is sharpest",
            question=larger(ends[1], ends[0], unit=POINTS),
        )


def _sizes(tables: Tables, part: str) -> list[Answer]:
    column = "train.batch_hessian_bottom_eigenvalue"
    adam, sgd = (
        [-value for value in Values(part=part, column=column, condition=each, at="average").numbers(tables)]
        for each in ("adam", "sgd")
    )
    return [Answer("−λ_min: adam less sgd", difference(adam, sgd), n=f"{len(adam)} and {len(sgd)}")]


def _smaller(part: str, name: str) -> Iterator[Claim]:
    """Networks of paper 3 at the size that a run can hold, in both modes at once."""

    def ends(column: str) -> tuple[Values, Values]:
        strong, without = (Values(part=part, column=column, condition=each, at="average") for each in (STRONG, NONE))
        return strong, without

    yield Claim(
        part=part,
        text=f"{name}: L2 regularisation raises validation accuracy",
        question=larger(*ends("validation.accuracy"), unit=POINTS),
    )
    for column, mode in (
        ("train.batch_hessian_top_eigenvalue", "batch statistics"),
        ("train.hessian_top_eigenvalue", "prediction"),
    ):
        yield Claim(
            part=part,
            text=f"{name}: L2 regularisation raises λ₁, with BatchNorm in the mode of {mode}",
            question=larger(*ends(column), log=True),
            minima=True,
        )
    if part.startswith("wide"):
        top = Values(part=part, column="train.batch_hessian_top_eigenvalue", condition=STRONG, at="average")
        yield Claim(
            part=part,
            text=f"{name}: with L2 of 5e-4, λ₁ lies above the bound 2/α = {2 / RATE:g} of the initial rate",
            question=above(part, "λ₁", lambda tables: top.rows(tables)[top.column], 2 / RATE, log=True),
            paper="over-reached",
        )


def _stable(part: str, name: str) -> Iterator[Claim]:
    """λ₁ beside the bounds of gradient descent and of SGD, at each of the rates of the grid; seeds are the units."""
    for bound, words in ((_descent, "2/α, the bound of gradient descent"), (_sgd, "the bound of SGD, with λ₁(Var H)")):
        yield Claim(
            part=part,
            text=f"{name}: at every rate and every L2, λ₁ lies below {words}",
            question=asked(part, lambda tables, bound=bound: list(_below(tables, part, bound))),  # type: ignore[misc]
        )
    yield Claim(
        part=part,
        text=f"{name}: the larger the rate, the smaller λ₁, whatever the L2",
        question=correlates(
            Values(part=part, column="train.hessian_top_eigenvalue"), "axis.rate", -1, over="conditions"
        ),
    )


def _descent(alpha: float, _: float) -> float:
    return 2 / alpha


def _sgd(alpha: float, variance: float) -> float:
    """Where α² λ₁(Var H) > 1 there is none: no λ₁ is small enough."""
    under = 1 - alpha**2 * variance
    return (1 + math.sqrt(under)) / alpha if under >= 0 else math.nan


def _below(tables: Tables, part: str, bound: Callable[[float, float], float]) -> Iterator[Answer]:
    top, variance = "train.hessian_top_eigenvalue", "train.batch_hessian_variance"
    rows = Values(part=part, column=top).rows(tables)
    for condition, own in rows.groupby("condition", sort=False):
        bounds = [bound(float(a), float(v)) for a, v in zip(own["axis.rate"], own[variance], strict=True)]
        if not all(map(math.isfinite, bounds)):
            raise NoAnswerError(f"{condition}: α² λ₁(Var H) > 1, so that no λ₁ keeps SGD in place")
        logs = [math.log(b / value) for b, value in zip(bounds, own[top], strict=True)]
        unit = Unit(ratio=True, symbol="bound over λ₁ = ")
        yield Answer(condition, mean(logs), None, unit, n=str(len(logs)))


def _converged() -> Claim:
    part, column = "softmax-regression", "train.corrected.hessian_top_eigenvalue"
    ratio = share(Values(part=part, column=column), Values(part=part, column=column, at="half time"))
    return Claim(
        part=part,
        text="Softmax regression: after 1000 epochs convergence is not an issue: λ₁ rises by less than 2 % in the second half",
        question=above(part, "λ₁ at the end over at half time", ratio, SETTLED, log=True, below=True),
    )


def _adaptive(part: str) -> Iterator[Claim]:
    name, gain = ADAPTIVE[part]

    def ends(where: str, column: str) -> tuple[Values, Values]:
        adam, sgd = (Values(part=where, column=column, condition=each, at="average") for each in ("adam", "sgd"))
        return adam, sgd

    modes = part.endswith(MODES)
    name = f"{name}, one training in both modes" if modes else name
    better = larger(*ends(part if modes else f"{part}{EVAL}", "validation.accuracy"), unit=POINTS, theirs=gain / 100)
    column = "train.batch_hessian_top_eigenvalue" if modes else "train.corrected.hessian_top_eigenvalue"
    sharper = larger(*ends(part, column), log=True)
    yield Claim(
        part=part,
        text=f"{name}: Adam with decoupled decay and averaged iterates generalises better than SGD",
        question=better,
        paper=f"+{gain} points",
    )
    yield Claim(
        part=part,
        text=f"{name}: the minima of Adam with averaged iterates are sharper than those of SGD",
        question=sharper,
        paper="× 38" if part == "vgg16bn" else "",
        minima=True,
    )
    yield Claim(
        part=part,
        text=f"{name}: the weights of Adam with averaged iterates are larger than those of SGD",
        question=larger(*ends(part, "train.l2_norm"), log=True),
    )
    if modes:
        yield Claim(
            part=part,
            text=f"{name}: the minima of Adam are sharper also with BatchNorm as it predicts",
            question=larger(*ends(part, "train.hessian_top_eigenvalue"), log=True),
            minima=True,
        )
        yield Claim(
            part=part,
            text=f"{name}: the most negative eigenvalue of Adam's minima is the larger one in size",
            question=asked(part, lambda tables: _sizes(tables, part)),
            ours=True,
        )
    if part.startswith("vgg16bn-cifar10"):
        yield Claim(
            part=part,
            text=f"{name}: Adam with averaged iterates is sharper and better than SGD",
            question=every((better, sharper)),
            paper="+0.8 points",
            headline=12,
            minima=True,
        )


def _vanishing(name: str, words: str) -> Claim:
    """Within each run: is the sharpness almost nothing where the loss is?"""
    part, column = "vanishing-loss", f"train.{name}"

    def ratio(tables: Tables) -> pd.Series[float]:
        rows_at(tables, part)
        table = tables[part]
        return table.groupby("run").apply(
            lambda run: run.loc[run["train.loss"].idxmin(), column] / run[column].max(), include_groups=False
        )

    return Claim(
        part=part,
        text=f"As the training loss vanishes, so does the {words} of the Hessian: to less than 1 % of its largest value",
        question=above(
            part, f"{words} where the loss is smallest, over its largest", ratio, VANISHED, log=True, below=True
        ),
        paper="a theorem",
        trains=True,
    )
