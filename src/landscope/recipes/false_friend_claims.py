"""What "Flatness is a False Friend" claims, put to the test.

A claim about L2 is Kendall's τ over all models of a part, at the 5 % level and with an interval that does not contain 0; one
about validation accuracy must come out alike on the test rows. Networks with BatchNorm are as sharp as batch statistics make
them and as accurate as they predict. SGD and Adam are compared seed by seed, by Wilcoxon's signed-rank test.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from landscope.analysis import Finding, Rules, correlation, wilcoxon
from landscope.core.text import counted
from landscope.recipes.recipe import Claim, Verdict
from landscope.recipes.verdicts import RESAMPLES, judged

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["DECAYS", "EVAL", "claims"]

DECAYS: Mapping[str, float] = {"l2 0": 0.0, "l2 1e-4": 1e-4, "l2 5e-4": 5e-4}
"""The conditions of the paper, and their coefficient of L2."""
NORM = "train.l2_norm"
EVAL = "-eval"
"""Ends the name of a part whose networks are measured with BatchNorm as it predicts."""
RULES = Rules()
TOP = "train.hessian_top_eigenvalue"
TRACE = "train.hessian_trace"
SHARPNESS = {TOP: "λ₁", TRACE: "trace", "train.hessian_frobenius": "Frobenius norm"}
HELD_OUT = {"validation.accuracy": "validation accuracy", "test.accuracy": "test accuracy"}
REGULARISED = {
    "softmax-regression": "Softmax regression",
    "mlp": "MLP",
    "cnn": "CNN",
    "preresnet164": "PreResNet",
    "wideresnet28x10": "WideResNet",
}
"""Parts as claims name them; how deep and wide their networks are depends on the size."""
ADAPTIVE = {"vgg16bn": "VGG-16 on 100 classes", "vgg16bn-cifar10": "VGG-16 on CIFAR-10"}
SETTLED = 0.02
"""A share by which λ₁ may change over the second half of a training that has converged."""
VANISHED = 0.01
"""Shares of the largest loss and of the largest sharpness of a run that count as almost nothing."""
FEWEST = 3
"""Seeds below which ratios tell nothing."""
FITTED = 0.99
"""A mean training accuracy below which points are no minima."""

Tables = Mapping[str, "pd.DataFrame"]


def claims(tables: Tables) -> list[Claim]:
    """Every claim whose part is among the tables. The corrected measures count, whether they are called so or not."""
    tables = {
        part: table.rename(columns=lambda name: name.replace("train.corrected.", "train."))
        for part, table in tables.items()
    }
    found = [claim for part in REGULARISED if part in tables for claim in _regularisation(tables, part)]
    if "softmax-regression" in tables:
        found.append(_convergence(tables["softmax-regression"]))
    found += [claim for part in ADAPTIVE if part in tables for claim in _adaptive(tables, part)]
    if "vanishing-loss" in tables:
        found += [_vanishing(tables["vanishing-loss"], column) for column in (TOP, TRACE)]
    if f"wideresnet28x10{EVAL}" in tables:
        found.append(_evaluation_mode(tables[f"wideresnet28x10{EVAL}"]))
    return found


def _models(tables: Tables, part: str, checkpoint: str) -> pd.DataFrame:
    """One row per run, accuracies taken from the part that predicts, where there is one."""
    table = tables[part]
    models = table[table["checkpoint"] == checkpoint].reset_index(drop=True)
    predicting = tables.get(part + EVAL)
    if predicting is None:
        return models
    key = ["condition", "seed", "checkpoint"]
    accuracies = [f"{split}.accuracy" for split in ("train", "validation", "test")]
    return models.drop(columns=accuracies).merge(predicting[[*key, *accuracies]], on=key)


def _regularisation(tables: Tables, part: str) -> list[Claim]:
    models = _models(tables, part, "final")
    models = models.assign(
        decay=models["condition"].map(DECAYS), gap=models["train.accuracy"] - models["validation.accuracy"]
    )
    runs = tuple(models["run"])

    def claim(text: str, findings: Sequence[Finding], judged: Sequence[Verdict], shown: Mapping[str, str]) -> Claim:
        means = [f"{label}: {_means(models, column)}." for column, label in shown.items()]
        why = " ".join([*means, *(f"{f.measure} and {f.outcome}: {f.correlation}." for f in findings)])
        return Claim(text=f"{REGULARISED[part]}: {text}", verdict=_common(judged), why=why, part=part, records=runs)

    better = [_finding(models, "decay", column, "L2", label) for column, label in HELD_OUT.items()]
    sharpness = {column: label for column, label in SHARPNESS.items() if column in models}
    sharper = [_finding(models, "decay", column, "L2", label) for column, label in sharpness.items()]
    friends = [_finding(models, TOP, column, "λ₁", label) for column, label in HELD_OUT.items()]
    told = [
        claim("L2 regularisation raises validation accuracy", better, [_verdict(f) for f in better], HELD_OUT),
        claim(
            "L2 regularisation raises the spectral norm λ₁ of the Hessian", sharper, [_verdict(sharper[0])], sharpness
        ),
        claim("the sharper a network, the better it generalises", friends, [_verdict(f) for f in friends], {}),
    ]
    if part in ("mlp", "cnn"):
        gap = _finding(models, TOP, "gap", "λ₁", "gap of training and validation accuracy")
        text = "the generalisation gap is smallest where λ₁ is largest"
        told.append(claim(text, [gap], [_verdict(gap, sign=-1)], {"gap": "training less validation accuracy"}))
    return told


def _finding(models: pd.DataFrame, x: str, y: str, measure: str, outcome: str) -> Finding:
    found = correlation(models[x], models[y], resamples=RESAMPLES)
    return Finding(measure, outcome, found, "all", 1, found.p_value)


def _verdict(finding: Finding, sign: int = 1) -> Verdict:
    """Of the claim that they go together, or with `sign` −1 opposite ways."""
    return "does not hold" if finding.verdict(RULES) == "no evidence" else judged(finding.correlation, sign)


def _common(verdicts: Sequence[Verdict]) -> Verdict:
    return verdicts[0] if len(set(verdicts)) == 1 else "cannot be told"


def _means(models: pd.DataFrame, column: str) -> str:
    """Means over the seeds of each condition, in the paper's order."""
    digits = ".4f" if column.endswith(("accuracy", "gap")) else ".4g"
    groups = {condition: models.loc[models["condition"] == condition, column].dropna() for condition in DECAYS}
    shown = [f"{group.mean():{digits}} at {name} (n = {len(group)})" for name, group in groups.items() if len(group)]
    return ", ".join(shown) or "not measured"


def _convergence(table: pd.DataFrame) -> Claim:
    """λ₁ on the way and at the end; the last snapshot is taken at half time."""
    kinds = sorted((kind for kind in table["checkpoint"].unique() if kind != "final"), key=lambda kind: int(kind[5:]))
    means = table.pivot_table(index="condition", columns="checkpoint", values=TOP, sort=False)
    text, part = "Softmax regression: after 1000 epochs convergence is not an issue", "softmax-regression"
    runs = tuple(table["run"].unique())
    course = [*kinds, "final"]
    if not set(course) <= set(means.columns) or means[course].isna().any(axis=None):
        return Claim(text=text, verdict="cannot be told", why="λ₁ was not measured on the way", part=part, records=runs)
    worst = max(means["final"] / means[kinds[-1]] - 1, key=abs)
    courses = [f"{name}: {' → '.join(f'{row[kind]:.4g}' for kind in course)}" for name, row in means.iterrows()]
    why = (
        f"Mean λ₁ after {', '.join(kind[5:] for kind in kinds)} steps and at the end: {'; '.join(courses)}. Over the second half "
        f"it changes by up to {worst:+.1%}; {SETTLED:.0%} would be called settled. n = {counted(len(runs), 'run')}."
    )
    verdict: Verdict = "holds" if abs(worst) <= SETTLED else "does not hold"
    return Claim(text=text, verdict=verdict, why=why, part=part, records=runs)


def _adaptive(tables: Tables, part: str) -> list[Claim]:
    models = _models(tables, part, "average")
    by_seed = {name: models[models["condition"] == name].set_index("seed") for name in ("sgd", "adam")}

    def claim(text: str, columns: Mapping[str, str]) -> Claim:
        tests = {
            label: _seed_by_seed(by_seed["adam"][column], by_seed["sgd"][column]) for column, label in columns.items()
        }
        why = ". ".join(f"{label}: {words}" for label, (_, words) in tests.items())
        judged = [verdict for verdict, _ in tests.values()]
        return Claim(
            text=f"{ADAPTIVE[part]}: {text}", verdict=_common(judged), why=why, part=part, records=tuple(models["run"])
        )

    sharper = claim("the minima of Adam with averaged iterates are sharper than those of SGD", {TOP: "λ₁"})
    ratios = (by_seed["adam"][TOP] / by_seed["sgd"][TOP]).dropna()
    if len(ratios):
        shown = f"{ratios.min():.2g} to {ratios.max():.2g} times as sharp (paper: almost 40, 30 in its abstract)"
        sharper = replace(sharper, why=f"{sharper.why}. Seed by seed {shown}")
    accuracies = {name: own["train.accuracy"].mean() for name, own in by_seed.items()}
    if min(accuracies.values()) < FITTED:
        shown = ", ".join(f"{accuracy:.1%} with {name}" for name, accuracy in accuracies.items())
        sharper = replace(sharper, verdict="cannot be told", why=f"{sharper.why}. No minima: training accuracy {shown}")
    return [
        claim("Adam with decoupled decay and averaged iterates generalises better than SGD", HELD_OUT),
        sharper,
        *(
            [claim("the weights of Adam with averaged iterates are larger than those of SGD", {NORM: "‖w‖"})]
            if NORM in models
            else ()
        ),
    ]


def _seed_by_seed(adam: pd.Series, sgd: pd.Series) -> tuple[Verdict, str]:
    pairs = [seed for seed in adam.dropna().index if seed in sgd.dropna().index]
    if not pairs:
        return "cannot be told", "no seed has both models"
    larger, smaller = (wilcoxon(adam[pairs], sgd[pairs], way) for way in ("greater", "less"))
    words = f"{adam[pairs].mean():.4g} against {sgd[pairs].mean():.4g}, n = {counted(len(pairs), 'seed')}"
    if larger.p_value is None or smaller.p_value is None:
        return "cannot be told", f"{words}, {larger.reason}"
    words += f", p = {larger.p_value:.3g} (one-sided; the opposite: p = {smaller.p_value:.3g}; "
    words += f"the smallest possible is {larger.smallest_p:.3g})"
    if min(larger.p_value, smaller.p_value) > RULES.alpha:
        return "cannot be told", words
    return ("holds" if larger.p_value <= RULES.alpha else "does not hold"), words


def _vanishing(table: pd.DataFrame, sharpness: str) -> Claim:
    """Within each run: is the sharpness almost nothing where the loss is?"""
    name = SHARPNESS[sharpness]
    table = table if sharpness in table else table.assign(**{sharpness: math.nan})
    words: list[str] = []
    judged: list[Verdict] = []
    for condition, group in table.dropna(subset=[sharpness]).groupby("condition", sort=False):
        courses = [run.sort_values("train.loss") for _, run in group.groupby("run")]
        ends = [(run["train.loss"].iloc[0], run[sharpness].iloc[0]) for run in courses]
        loss = max(end[0] / run["train.loss"].max() for end, run in zip(ends, courses, strict=True))
        top = max(end[1] / run[sharpness].max() for end, run in zip(ends, courses, strict=True))
        lowest = max(end[0] for end in ends), max(end[1] for end in ends)
        found = correlation(group["train.loss"], group[sharpness], within=group["run"], resamples=0)
        words.append(
            f"{condition}: where the loss is smallest (at most {lowest[0]:.2g}, {loss:.2g} of its largest value), {name} is at "
            f"most {lowest[1]:.2g}, {top:.2g} of its largest value; along a training {found}, {counted(len(courses), 'run')}"
        )
        judged.append("cannot be told" if loss > VANISHED else "holds" if top <= VANISHED else "does not hold")
    text = (
        f"In the limit of training loss 0 the {'spectral norm' if sharpness == TOP else name} of the Hessian goes to 0"
    )
    why, runs = ". ".join(words) or f"{name} was not measured", tuple(table["run"].unique())
    return Claim(text=text, verdict=_common(judged or ["cannot be told"]), why=why, part="vanishing-loss", records=runs)


def _evaluation_mode(table: pd.DataFrame) -> Claim:
    """The sharpness of the regularised network over that of the unregularised one, seed by seed."""
    models = table[table["checkpoint"] == "final"]
    strong, none = (models[models["condition"] == name].set_index("seed")[TOP] for name in ("l2 5e-4", "l2 0"))
    ratios = sorted(ratio for ratio in strong / none if math.isfinite(ratio))
    shown = ", ".join(f"{ratio:.3g}" for ratio in ratios) or "not measured"
    why = f"λ₁ at L2 = 5e-4 over λ₁ without L2: {shown} (n = {counted(len(ratios), 'seed')})"
    verdict: Verdict = "cannot be told"
    if len(ratios) >= FEWEST and (ratios[0] >= 100 or ratios[-1] < 100):
        verdict = "holds" if ratios[0] >= 100 else "does not hold"
    text = "WideResNet, BatchNorm as it predicts: the regularised minimum is hundreds of times sharper (paper: nearly 1000)"
    return Claim(text=text, verdict=verdict, why=why, part=f"wideresnet28x10{EVAL}", records=tuple(models["run"]))
