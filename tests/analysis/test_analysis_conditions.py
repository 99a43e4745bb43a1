"""The condition as the unit: means, slopes of the mixed model, Simpson's paradox."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from landscope.analysis import (
    between,
    condition_means,
    correlation,
    partial_between,
    partial_correlation,
    simpson,
    slopes,
)
from landscope.core.errors import OperandError


def paradox(conditions: int = 8, runs: int = 12) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(conditions), runs)
    x = rng.normal(size=len(group))
    y = -x + 0.3 * rng.normal(size=len(group))
    return pd.DataFrame({"condition": [f"c{g}" for g in group], "sharpness": x + 6 * group, "gap": y + 6 * group})


def test_between_is_the_correlation_of_means() -> None:
    frame = paradox()
    frame.loc[3, "gap"] = np.nan
    found = between(frame["sharpness"], frame["gap"], frame["condition"])
    means = frame.dropna().groupby("condition")[["sharpness", "gap"]].mean()
    truth = correlation(means["sharpness"], means["gap"])
    assert (found.value, found.p_value, found.low, found.high) == (truth.value, truth.p_value, truth.low, truth.high)
    assert (found.n, found.models, found.unit, found.dropped) == (8, 95, "condition", 1)
    assert found.units == "8 conditions (95 models)"
    assert "n = 8 conditions (95 models)" in str(found)
    few = between([1, 2, 3], [1, 2, 3], ["a", "a", "b"])
    assert few.reason == "n = 2: at least 3 conditions with all values are needed"
    assert condition_means({"x": [1.0, 2.0]}, ["a", None])[1:] == (1, 1)


def test_many_runs_of_four_conditions_show_nothing() -> None:
    """Whatever the seeds: even a perfect order of four means has p = 0.083."""
    found = between(np.repeat([0, 1, 2, 3], 50) + 0.0, np.repeat([0, 1, 2, 3], 50) + 1.0, np.repeat(list("abcd"), 50))
    assert found.value == 1
    assert found.p_value == pytest.approx(2 / 24)


def test_runs_of_shared_conditions_hold_the_level_by_conditions_only() -> None:
    naive, right = [], []
    for seed in range(300):
        rng = np.random.default_rng(seed)
        group = np.repeat(np.arange(12), 3)
        x, y = rng.normal(size=(2, 12))[:, group] + 0.33 * rng.normal(size=(2, 36))
        naive.append((correlation(x, y).p_value or 1) <= 0.05)
        right.append((between(x, y, group).p_value or 1) <= 0.05)
    assert np.mean(naive) > 0.12
    assert np.mean(right) < 0.05 + 3 * math.sqrt(0.05 * 0.95 / 300)


def test_partial_between_is_the_partial_of_means() -> None:
    frame = paradox().assign(loss=lambda f: f["sharpness"] + np.sin(np.arange(len(f))))
    frame.loc[5, "loss"] = np.nan
    given, errors = {"loss": frame["loss"]}, {"loss": np.full(len(frame), 4.0)}
    found = partial_between(frame["sharpness"], frame["gap"], given, frame["condition"], "pearson", errors=errors)
    means = frame.dropna().groupby("condition")[["sharpness", "gap", "loss"]].mean()
    truth = partial_correlation(
        means["sharpness"], means["gap"], {"loss": means["loss"]}, "pearson", errors={"loss": np.full(8, 4.0)}
    )
    assert (found.value, found.p_value, found.low, found.high) == (truth.value, truth.p_value, truth.low, truth.high)
    assert (found.units, found.dropped) == ("8 conditions (95 models)", 1)


# Slopes


def test_balanced_slopes_are_regressions_of_means_and_of_what_is_left() -> None:
    frame = paradox()
    x, y, group = frame["sharpness"], frame["gap"], frame["condition"]
    found = slopes(x, y, group)
    means = frame.groupby("condition")[["sharpness", "gap"]].mean()
    line = stats.linregress(means["sharpness"], means["gap"])
    assert found.between is not None
    assert found.between.value == pytest.approx(line.slope, rel=1e-9)
    assert found.between.stderr == pytest.approx(line.stderr, rel=1e-4)
    assert found.between.freedom == 6
    centred = frame[["sharpness", "gap"]] - means.loc[group].to_numpy()
    assert found.within is not None
    assert found.within.value == pytest.approx(
        (centred["sharpness"] @ centred["gap"]) / (centred["sharpness"] @ centred["sharpness"]), rel=1e-9
    )
    assert found.within.value == pytest.approx(-1, abs=0.1)
    assert found.between.value == pytest.approx(1, abs=0.1)
    assert found.differ is not None
    assert found.differ < 1e-4


def test_unbalanced_slopes_are_those_of_restricted_likelihood() -> None:
    """Against the likelihood of the whole covariance matrix, maximised on a grid."""
    rng = np.random.default_rng(4)
    sizes = np.array([1, 2, 3, 8, 2, 5])
    group = np.repeat(np.arange(6), sizes)
    x = rng.normal(size=6)[group] + 0.5 * rng.normal(size=len(group))
    y = 0.7 * x + 0.8 * rng.normal(size=6)[group] + 0.4 * rng.normal(size=len(group))
    found = slopes(x, y, group).between
    assert found is not None
    mean = (np.bincount(group, x) / sizes)[group]
    design = np.column_stack([np.ones(len(x)), mean, x - mean])
    same = np.equal.outer(group, group)

    def fit(ratio: float) -> tuple[float, np.ndarray, np.ndarray]:
        inverse = np.linalg.inv(np.eye(len(x)) + ratio * same)
        square = design.T @ inverse @ design
        beta = np.linalg.solve(square, design.T @ inverse @ y)
        rest = y - design @ beta
        variance = rest @ inverse @ rest / (len(x) - 3)
        likelihood = (len(x) - 3) * math.log(variance) - np.linalg.slogdet(inverse)[1] + np.linalg.slogdet(square)[1]
        return likelihood, beta, variance * np.linalg.inv(square)

    best = min((fit(math.exp(v)) for v in np.linspace(-6, 6, 2401)), key=lambda each: each[0])
    assert found.value == pytest.approx(best[1][1], rel=1e-3)
    assert found.stderr == pytest.approx(math.sqrt(best[2][1, 1]), rel=2e-3)


def test_slopes_have_units() -> None:
    frame = paradox()
    plain, large = (slopes(frame["sharpness"], unit * frame["gap"], frame["condition"]) for unit in (1.0, 1e200))
    assert plain.within is not None
    assert large.within is not None
    assert large.within.value == pytest.approx(1e200 * plain.within.value)
    assert large.within.p_value() == pytest.approx(plain.within.p_value())


def test_slopes_that_cannot_be_known() -> None:
    one_run_each = slopes([1.0, 2.0, 3.0, 5.0], [1.0, 3.0, 2.0, 4.0], list("abcd"))
    assert one_run_each.within is None
    assert one_run_each.between is not None
    assert one_run_each.between.value == pytest.approx(stats.linregress([1, 2, 3, 5], [1, 3, 2, 4]).slope)
    assert slopes([1.0, 2.0, 3.0, 5.0], [1.0, 3.0, 2.0, 4.0], list("aabb")).between is None
    with pytest.raises(OperandError, match="finite"):
        slopes([1.0, math.inf, 2.0], [1.0, 2.0, 3.0], list("abc"))


# Simpson


@pytest.mark.parametrize("method", ["kendall", "spearman", "pearson"])
def test_the_paradox_is_shown(method: str) -> None:
    found = simpson(paradox(), "sharpness", "gap", "condition", method, permutations=999)
    assert found.between.value == pytest.approx(1, abs=0.01)
    assert found.within.value is not None
    assert found.within.value < -0.5
    assert found.paradox
    assert "Simpson's paradox: between condition gap goes up with sharpness, inside them it goes down" in found.sentence
    json.dumps(found.to_dict(), allow_nan=False)


def test_no_paradox_without_both_shown() -> None:
    frame = paradox()
    same = frame.assign(gap=frame["sharpness"] + 0.1 * frame["gap"])
    assert not simpson(same, "sharpness", "gap", "condition").paradox
    four = frame[frame["condition"].isin(["c0", "c1", "c2", "c3"])]  # four conditions show nothing between them
    found = simpson(four, "sharpness", "gap", "condition")
    assert (found.between.value or 0) * (found.within.value or 0) < 0
    assert not found.paradox
    assert "paradox" not in found.sentence


def test_pieces_are_the_plain_correlations() -> None:
    frame = paradox()
    found = simpson(frame, "sharpness", "gap", "condition")
    assert found.between == between(frame["sharpness"], frame["gap"], frame["condition"])
    assert found.within == correlation(frame["sharpness"], frame["gap"], within=frame["condition"])
    assert found.overall == correlation(frame["sharpness"], frame["gap"]).value


def test_groups_that_say_nothing_have_reasons() -> None:
    frame = pd.DataFrame({"g": ["a", "a", "a", "b", None], "x": [1, 2, 3, 4, 5.0], "y": [1, 2, np.nan, 4, 5.0]})
    found = simpson(frame, "x", "y", "g")
    assert found.between.dropped == 2
    assert found.between.reason.startswith("n = 2")
    lonely = pd.DataFrame({"g": list("abcd"), "x": [1, 2, 3, 4.0], "y": [1, 2, 3, 5.0]})
    assert "inside g x does not vary inside any group" in simpson(lonely, "x", "y", "g").sentence
