"""Granulated coefficients and Simpson's paradox: hand-made grids, direct loops."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from landscope.analysis import correlation, granulated_kendall, simpson
from landscope.core.errors import OperandError, UnknownNameError


def grid(seed: int, *, tied: bool = False, seeds: int = 3) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rows = [
        {"lr": lr, "batch": batch, "decay": decay, "seed": s}
        for lr, batch, decay, s in itertools.product((0.1, 0.01, 0.001), (32, 64), (0.0, 1e-4), range(seeds))
    ]
    frame = pd.DataFrame(rows)
    frame["measure"], frame["gap"] = rng.normal(size=(2, len(frame)))
    frame["gap"] += frame["measure"]
    return frame.round(0 if tied else 9)


@pytest.mark.parametrize("tied", [False, True])
def test_granulated_is_the_mean_over_groups_and_axes(tied: bool) -> None:
    frame = grid(0, tied=tied)
    axes = ["lr", "batch", "decay"]
    found = granulated_kendall(frame, "measure", "gap", axes)
    psi = []
    for axis, result in zip(axes, found.axes, strict=True):
        others = [a for a in axes if a != axis]
        taus = [stats.kendalltau(g["measure"], g["gap"]).statistic for _, g in frame.groupby(others)]
        assert result.value == pytest.approx(np.nanmean(taus), abs=1e-12)
        assert result.groups == np.isfinite(taus).sum()
        assert result.skipped == np.isnan(taus).sum()
        psi.append(result.value)
    assert found.value == pytest.approx(np.mean(psi), abs=1e-12)
    assert found.low is not None
    assert found.high is not None
    assert found.low < found.value < found.high


def test_granulated_by_hand_with_the_formula_of_the_paper() -> None:
    frame = pd.DataFrame({
        "lr": [1, 1, 2, 2, 3, 3], "batch": [1, 2] * 3, "m": [1, 2, 3, 3, 5, 1], "gap": [1, 2, 2, 4, 3, 0]
    })  # fmt: skip
    # lr at batch 1: (1,1) (3,2) (5,3): 1; at batch 2: (2,2) (3,4) (1,0): 1. batch at lr 1: 1; lr 2: tied; lr 3: 1
    a, b = (granulated_kendall(frame, "m", "gap", ["lr", "batch"], ties=ties) for ties in ("a", "b"))
    assert [axis.value for axis in a.axes] == pytest.approx([1, 2 / 3])
    assert [axis.value for axis in b.axes] == pytest.approx([1, 1])
    assert b.axes[1].skipped == 1
    assert a.value == pytest.approx(5 / 6)


def test_granulated_sees_through_a_confounder() -> None:
    """The learning rate moves both columns; with it fixed nothing is left."""
    frame = grid(1, seeds=12)
    noise = np.random.default_rng(5).normal(size=(2, len(frame)))
    frame["measure"], frame["gap"] = noise + 5 * np.log10(frame["lr"].to_numpy())
    overall = correlation(frame["measure"], frame["gap"]).value
    found = granulated_kendall(frame, "measure", "gap", ["lr", "batch", "decay", "seed"])
    by_name = {axis.name: axis.value for axis in found.axes}
    assert overall is not None
    assert overall > 0.5
    assert (by_name["lr"] or 0) > 0.9
    assert all(abs(by_name[name] or 0) < 0.4 for name in ("batch", "decay", "seed"))


def test_granulated_without_groups_says_why() -> None:
    frame = pd.DataFrame({"a": [1, 2, 3], "b": [1, 2, 3], "m": [1.0, 2, 3], "g": [1.0, 2, 3]})
    found = granulated_kendall(frame, "m", "g", ["a", "b"])
    assert found.status == "undefined"
    assert "one axis only" in found.reason
    json.dumps(found.to_dict(), allow_nan=False)
    alone = granulated_kendall(frame, "m", "g", ["a"])
    assert alone.value == 1
    assert alone.low is None
    assert "one group" in alone.interval


def test_granulated_drops_missing_numbers_but_not_unset_axes() -> None:
    frame = grid(2)
    frame.loc[4, "gap"] = np.nan
    frame["decay"] = frame["decay"].where(frame["decay"] > 0)
    found = granulated_kendall(frame, "measure", "gap", ["lr", "decay"])
    assert found.dropped == 1
    assert found.n == len(frame) - 1
    assert found.axes[0].groups == 2
    with pytest.raises(OperandError, match="axes"):
        granulated_kendall(frame, "measure", "gap", [])
    with pytest.raises(OperandError, match="axes"):
        granulated_kendall(frame, "measure", "gap", ["gap"])
    with pytest.raises(UnknownNameError, match="did you mean 'batch'"):
        granulated_kendall(frame, "measure", "gap", ["batches"])


# Simpson


def paradox(n: int = 12) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    group = np.repeat([0, 1, 2, 3], n)
    x = rng.normal(size=4 * n)
    y = -x + 0.3 * rng.normal(size=4 * n)
    return pd.DataFrame({"condition": [f"c{g}" for g in group], "sharpness": x + 6 * group, "gap": y + 6 * group})


@pytest.mark.parametrize("method", ["kendall", "spearman", "pearson"])
def test_the_paradox_is_shown(method: str) -> None:
    found = simpson(paradox(), "sharpness", "gap", "condition", method, permutations=999)
    assert found.overall.value is not None
    assert found.pooled.value is not None
    assert found.between.value == pytest.approx(1, abs=0.01)
    assert found.overall.value > 0.4 > -0.5 > found.pooled.value
    assert found.within_mean is not None
    assert found.within_mean < -0.5
    assert found.paradox
    assert found.reversed_groups == ("c0", "c1", "c2", "c3")
    assert found.sentence.startswith(
        "Simpson's paradox: over all models gap goes up with sharpness, inside condition it goes down"
    )
    assert "4 of 4 groups" in found.sentence
    assert "chance" not in found.sentence
    json.dumps(found.to_dict(), allow_nan=False)


def test_no_paradox_where_signs_agree() -> None:
    frame = paradox()
    frame["gap"] = frame["sharpness"] + 0.1 * frame["gap"]
    found = simpson(frame, "sharpness", "gap", "condition")
    assert not found.paradox
    assert found.reversed_groups == ()
    assert found.sentence.startswith("The sign is the same overall and inside condition")


def test_a_paradox_that_could_be_chance_is_called_so() -> None:
    frame = pd.DataFrame({"g": list("aabb"), "x": [1, 2, 3, 4.0], "y": [2, 1, 4, 3.0]})
    found = simpson(frame, "x", "y", "g")
    assert found.paradox
    assert "could be chance" in found.sentence


def test_pieces_are_the_plain_correlations() -> None:
    frame = paradox()
    found = simpson(frame, "sharpness", "gap", "condition")
    for name, group in frame.groupby("condition"):
        assert found.within[str(name)] == correlation(group["sharpness"], group["gap"])
    means = frame.groupby("condition")[["sharpness", "gap"]].mean()
    assert found.between.value == correlation(means["sharpness"], means["gap"]).value
    assert found.overall.value == correlation(frame["sharpness"], frame["gap"]).value


def test_groups_that_say_nothing_have_reasons() -> None:
    frame = pd.DataFrame({"g": ["a", "a", "a", "b", None], "x": [1, 2, 3, 4, 5.0], "y": [1, 2, np.nan, 4, 5.0]})
    found = simpson(frame, "x", "y", "g")
    assert found.within["b"].status == "undefined"
    assert found.overall.dropped == 2
    assert found.between.reason.startswith("n = 2")
    lonely = pd.DataFrame({"g": list("abcd"), "x": [1, 2, 3, 4.0], "y": [1, 2, 3, 5.0]})
    assert simpson(lonely, "x", "y", "g").sentence.startswith("Nothing is known inside g")
    assert "no correlation" in simpson(lonely.assign(y=1.0), "x", "y", "g").sentence
