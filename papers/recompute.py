"""Recompute headline claims from the records, with nothing of Landscope's: JSON, NumPy and SciPy.

    python papers/recompute.py results

prints for each claim the effect (positive where the paper's claim goes), its 95 % interval and two-sided p. `tests/papers`
compares them with what `landscope paper results` says.
"""

from __future__ import annotations

import gzip
import json
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from scipy import stats

Effect = tuple[float, float, float, float]
"""Value, ends of the 95 % interval, p."""


class Part:
    """The records of one file, as they are."""

    def __init__(self, path: Path) -> None:
        self.records = json.loads(gzip.decompress(path.read_bytes()))["records"]

    def values(self, column: str, condition: str, checkpoint: str = "final", place: int = 0) -> dict[int, float]:
        """Seed → a column of the models of a condition, at the `place`-th of their temperatures."""
        split, _, name = column.partition(".")
        found = {}
        for record in self.records:
            if record["condition"] != condition:
                continue
            models = [model for model in record["subjects"] if model["checkpoint"] == checkpoint]
            estimate = models[place]["reports"][split]["estimates"].get(name) if place < len(models) else None
            if estimate is not None and estimate["value"] is not None:
                found[record["seed"]] = float(estimate["value"])
        return found


def welch(first: dict[int, float], second: dict[int, float], log: bool = False) -> Effect:
    """The first less the second, or the logarithm of their ratio."""
    a, b = (np.array(list(values.values())) for values in (first, second))
    if log:
        a, b = np.log(a), np.log(b)
    test = stats.ttest_ind(a, b, equal_var=False)
    low, high = test.confidence_interval()
    return float(a.mean() - b.mean()), float(low), float(high), float(test.pvalue)


def pairs(first: dict[int, float], second: dict[int, float]) -> Effect:
    """The mean difference of runs with the same seed."""
    seeds = [seed for seed in first if seed in second]
    test = stats.ttest_1samp([first[seed] - second[seed] for seed in seeds], 0.0)
    low, high = test.confidence_interval()
    return float(np.mean([first[seed] - second[seed] for seed in seeds])), float(low), float(high), float(test.pvalue)


def share(after: dict[int, float], before: dict[int, float], bound: float) -> Effect:
    """The logarithm of after/before over a bound."""
    logs = [math.log(after[seed] / before[seed] / bound) for seed in after if seed in before]
    test = stats.ttest_1samp(logs, 0.0)
    low, high = test.confidence_interval()
    return float(np.mean(logs)), float(low), float(high), float(test.pvalue)


def order(x: dict[int, float], y: dict[int, float], sign: int) -> Effect:
    """Kendall's τ over models; no interval."""
    seeds = [seed for seed in x if seed in y]
    found = stats.kendalltau([x[seed] for seed in seeds], [y[seed] for seed in seeds])
    return sign * float(found.statistic), math.nan, math.nan, float(found.pvalue)


def learnt(of: Part, condition: str, column: str, classes: int) -> dict[int, float]:
    """A column of the models whose training loss is below half of that of guessing."""
    losses = of.values("train.loss", condition)
    return {seed: value for seed, value in of.values(column, condition).items() if losses[seed] < math.log(classes) / 2}


def order_of_means(of: Part, x: str, y: str, sign: int) -> Effect:
    """Kendall's τ over the means of conditions that have learnt (ten classes), at the final weights; no interval."""
    conditions = dict.fromkeys(record["condition"] for record in of.records)
    means = [[float(np.mean([*of.values(column, c).values()])) for column in (x, y, "train.loss")] for c in conditions]
    kept = [(a, b) for a, b, loss in means if loss < math.log(10) / 2]
    found = stats.kendalltau(*zip(*kept, strict=True))
    return sign * float(found.statistic), math.nan, math.nan, float(found.pvalue)


def claims(folder: Path) -> dict[str, Callable[[], Effect]]:
    """Number of the headline claim (and which of its members) → how it is computed."""

    def part(name: str) -> Part:
        return Part(folder / f"{name}.json.gz")

    vgg, resnet = part("explicit-regularisation/cifar10"), part("fam/cifar10")
    softmax, mlp = part("false-friend/softmax-regression"), part("false-friend/mlp")
    skulls, rte = part("fam/skulls"), part("fam/rte")
    fcnn, gat = part("adaptive-sharpness/fcnn-notebook"), part("adaptive-sharpness/gat-seeds")
    flatness, top = "train.published.relative_flatness", "train.corrected.hessian_top_eigenvalue"

    def compared(of: Part, column: str, first: str, second: str, log: bool = False) -> Callable[[], Effect]:
        return lambda: welch(of.values(column, first), of.values(column, second), log)

    many = folder / "explicit-regularisation" / "cifar10-strengths.json.gz"
    strengths = Part(many) if many.exists() else None
    over_conditions: dict[str, Callable[[], Effect]] = {}
    if strengths is not None:
        over_conditions = {
            "4": lambda: order_of_means(strengths, flatness, "test.ece", -1),
            "6": lambda: order_of_means(strengths, "train.published.log_igs", "train.loss", 1),
        }
    return {
        **over_conditions,
        "1": compared(vgg, "test.error", "baseline", "augmentation"),
        "2": compared(vgg, flatness, "augmentation", "baseline", log=True),
        "3": compared(vgg, "test.error", "weight decay", "baseline"),
        "5": lambda: share(vgg.values("test.ece", "baseline", place=1), vgg.values("test.ece", "baseline"), 0.5),
        "10 softmax": compared(softmax, top, "l2 5e-4", "l2 0", log=True),
        "10 mlp": compared(mlp, top, "l2 5e-4", "l2 0", log=True),
        "11": compared(mlp, "validation.accuracy", "l2 5e-4", "l2 0"),
        "14": compared(resnet, "test.accuracy", "sam", "baseline"),
        "15": compared(resnet, "test.accuracy", "fam as coded", "baseline"),
        "16": lambda: pairs(skulls.values("shapes.dsc", "fam 0.002 as coded"), skulls.values("shapes.dsc", "baseline")),
        "17": compared(rte, "test.accuracy", "fam as coded", "baseline"),
        "18 fcnn": lambda: order(
            fcnn.values("train.published.adaptive_sharpness_fcnn", "as coded"), fcnn.values("test.loss", "as coded"), -1
        ),
        "18 gat": lambda: order(
            learnt(gat, "until learnt", "train.published.adaptive_sharpness_gat", classes=7),
            gat.values("test.loss", "until learnt"),
            -1,
        ),
    }


def main(folder: str = "results") -> None:
    """Print them all."""
    for name, compute in claims(Path(folder)).items():
        value, low, high, p = compute()
        sys.stdout.write(f"{name:12} {value:+.5f} [{low:+.5f}, {high:+.5f}]  p = {p:.3g}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
