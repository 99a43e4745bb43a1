"""Granulated coefficients: hand-made grids, direct loops."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from landscope.analysis import correlation, granulated_kendall
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
    assert "one axis" in alone.reason


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


def test_the_axes_are_the_units() -> None:
    frame = grid(0)
    axes = ["lr", "batch", "decay"]
    found = granulated_kendall(frame, "measure", "gap", axes)
    psi = [axis.value for axis in found.axes]
    truth = stats.ttest_1samp(psi, 0.0)
    assert found.p_value == pytest.approx(truth.pvalue)
    low, high = truth.confidence_interval()
    assert (found.low, found.high) == (pytest.approx(max(low, -1)), pytest.approx(min(high, 1)))
    for axis in found.axes:
        rest = [other.value for other in found.axes if other is not axis]
        assert axis.without == pytest.approx(np.mean(rest))
    assert found.steady == all((axis.without or 0) * (found.value or 0) > 0 for axis in found.axes)
    assert "without one axis" in str(found)
