"""What paper 5 claims, put to the test: adaptive sharpness and test loss of models that differ in their seed only.

Models of one training differ in nothing but their seed, so each model is a unit, and each training has its own correlation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from scipy.stats import t

from landscope.analysis import correlation, models_needed, partial_correlation
from landscope.recipes.adaptive_sharpness_families import AS_CODED, FAMILIES, RADII, Family, radius_name
from landscope.recipes.recipe import Claim, Verdict
from landscope.recipes.verdicts import RESAMPLES, in_words, judged

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["claims"]

STALE = "train.stale_statistics"
LENET5 = f"train.published.{FAMILIES['lenet5'].measure}"


def claims(tables: Mapping[str, pd.DataFrame]) -> Sequence[Claim]:
    """Of each family and training: is the correlation negative? And what the LeNet notebook measured."""
    found = []
    for key, family in FAMILIES.items():
        if key not in tables:
            continue
        if key == "lenet5-radii":
            found.append(_whatever_the_radius(tables[key]))
            continue
        for title, table in _by_training(family, tables[key]).items():
            for kind, meaning in (
                ("published", "as its notebook computed it"),
                ("corrected", "as its text describes it"),
            ):
                column = f"train.{kind}.{family.measure}"
                if column in table:
                    found.append(_negative(key, title, family.tau, table, column, meaning))
        if STALE in tables[key]:
            found.append(_stale(tables[key]))
    return found


def _by_training(family: Family, table: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """What to call the models of each training, and their rows."""
    if not family.trainings:
        return {family.title: table}
    return {
        f"{family.title}, trained {training}": table[table["condition"] == training] for training in family.trainings
    }


def _stale(table: pd.DataFrame) -> Claim:
    """What the LeNet notebook calls sharpness is the age of BatchNorm's statistics."""
    text = "Ours: more than half of what the LeNet notebook measured is the replacement of stale BatchNorm statistics"
    coded = table[table["condition"] == AS_CODED]
    share = coded[STALE] / coded[LENET5]
    by_training = ", ".join(
        f"{training} {float(rows[LENET5].mean()):.3f} ± {float(rows[LENET5].std()):.3f} (n = {len(rows)})"
        for training, rows in table.groupby("condition")
    )
    return _of_shares(
        text,
        "lenet5-notebook",
        coded,
        share,
        0.5,
        above=True,
        more=f"the notebook's measure by training: {by_training}",
    )


def _whatever_the_radius(table: pd.DataFrame) -> Claim:
    """The ball of the LeNet notebook does not bind: its first step is free, and the statistics are outside of it."""
    second = radius_name(RADII[1])
    text = (
        f"Ours: raising the radius tenfold, to {second}, raises what the LeNet notebook measured by less than a tenth"
    )
    coded = table[table["condition"] == AS_CODED]
    text_columns = (f"train.corrected.{FAMILIES['lenet5'].measure}", f"train.text {second}")
    if not {LENET5, f"train.notebook {second}", *text_columns} <= {*table}:
        return Claim(text=text, verdict="cannot be told", why="the measures are not there", part="lenet5-radii")
    described = coded[text_columns[1]] / coded[text_columns[0]]
    ratio = coded[f"train.notebook {second}"] / coded[LENET5]
    more = f"the measure of the text grows by a factor of {float(described.mean()):.1f} ± {float(described.std()):.1f}"
    return _of_shares(text, "lenet5-radii", coded, ratio, 1.1, above=False, more=more)


def _of_shares(
    text: str, part: str, table: pd.DataFrame, shares: pd.Series[float], bound: float, *, above: bool, more: str
) -> Claim:
    """Whether the mean of one number per model is above, or below, a bound: by its t interval."""
    found, records = shares.dropna(), tuple(table["run"])
    n = len(found)
    if n < 3:
        return Claim(text=text, verdict="cannot be told", why=f"n = {n} models", part=part, records=records)
    mean, half = float(found.mean()), float(t.ppf(0.975, n - 1) * found.std() / math.sqrt(n))
    larger, smaller = mean - half > bound, mean + half < bound
    shown, refuted = (larger, smaller) if above else (smaller, larger)
    verdict: Verdict = "holds" if shown else "does not hold" if refuted else "cannot be told"
    why = f"ratio {mean:.3f}, 95 % interval {mean - half:.3f} to {mean + half:.3f}, n = {n} models trained as coded; {more}"
    return Claim(text=text, verdict=verdict, why=why, part=part, records=records)


def _negative(key: str, title: str, tau: float, table: pd.DataFrame, column: str, meaning: str) -> Claim:
    text = f"{title}: adaptive sharpness, {meaning}, correlates negatively with test loss (paper: τ = {tau})"
    result = correlation(table[column], table["test.loss"], "kendall", resamples=RESAMPLES)
    records = tuple(table["run"])
    if result.value is None or result.p_value is None or result.low is None or result.high is None:
        return Claim(
            text=text, verdict="cannot be told", why=f"n = {result.n}: {result.reason}", part=key, records=records
        )
    given_loss = partial_correlation(table[column], table["test.loss"], table["train.loss"], "kendall")
    why = (
        f"τ = {result.value:.3f}, 95 % interval {result.low:.3f} to {result.high:.3f}, p = {result.p_value:.3g}, "
        f"n = {result.n} models; given the training loss {in_words(given_loss)}"
    )
    verdict = judged(result, -1)
    if verdict != "cannot be told":
        return Claim(text=text, verdict=verdict, why=why, part=key, records=records)
    needed = models_needed(result.value) if result.value else None
    more = f"; a τ of this size would need about {needed} models" if needed and needed > result.n else ""
    if result.low <= tau <= result.high:
        more += "; the paper's lies inside the interval"
    return Claim(text=text, verdict="cannot be told", why=why + more, part=key, records=records)
