"""Coefficients of many samples at once, against SciPy on each sample by itself."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from landscope.analysis.coefficients import COEFFICIENTS, kendall_between
from landscope.analysis.inputs import all_permutations, generator, random_permutations

SCIPY = {"kendall": stats.kendalltau, "spearman": stats.spearmanr, "pearson": stats.pearsonr}
EPS = np.finfo(float).eps


def columns(seed: int, n: int, *, tied: bool) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.normal(size=n)
    y = 0.6 * x + rng.normal(size=n)
    return (np.round(x), np.round(2 * y)) if tied else (x, y)


@pytest.mark.parametrize("method", SCIPY)
@pytest.mark.parametrize("tied", [False, True])
def test_every_permutation_is_what_scipy_says_of_it(method: str, tied: bool) -> None:
    x, y = columns(3, 12, tied=tied)
    block = np.zeros(12, dtype=int)
    drawn = random_permutations(block, 40, generator(0))
    found = COEFFICIENTS[method].permuted(x, y, drawn, block)
    truth = [SCIPY[method](x, y[p]).statistic for p in drawn]
    assert np.abs(found - truth).max() < 100 * EPS


def pairs_truth(x: np.ndarray, y: np.ndarray, block: np.ndarray, kind: str) -> float:
    """Sums over pairs of the same block, by loops: signs for τ, differences for r."""
    cross = left = right = 0.0
    for label in np.unique(block):
        members = np.flatnonzero(block == label)
        scale = 1 / len(members) if kind == "pearson" else 1.0  # Σ_{i<j} (x_i − x_j)² = n Σ (x_i − x̄)²
        for i in members:
            for j in members:
                a, b = (x[i] - x[j], y[i] - y[j])
                if kind == "kendall":
                    a, b = np.sign(a), np.sign(b)
                cross, left, right = cross + scale * a * b, left + scale * a * a, right + scale * b * b
    return cross / math.sqrt(left * right)


@pytest.mark.parametrize("tied", [False, True])
def test_blocks_compare_models_of_the_same_block_only(tied: bool) -> None:
    for seed in range(6):
        x, y = columns(seed, 23, tied=tied)
        block = np.random.default_rng(seed).integers(0, 4, 23)
        x, y = x + 3 * block, y - 2 * block
        for kind in ("kendall", "pearson"):
            assert COEFFICIENTS[kind].of(x, y, block) == pytest.approx(pairs_truth(x, y, block, kind), abs=1e-13)
        ranked = [np.empty(23), np.empty(23)]
        for label in np.unique(block):
            for values, ranks in zip((x, y), ranked, strict=True):
                ranks[block == label] = stats.rankdata(values[block == label])
        assert COEFFICIENTS["spearman"].of(x, y, block) == pytest.approx(
            pairs_truth(*ranked, block, "pearson"), abs=1e-13
        )
        permutation = random_permutations(block, 5, generator(seed))
        assert (block[permutation] == block).all()
        for kind in SCIPY:
            again = COEFFICIENTS[kind].permuted(x, y, permutation, block)
            assert again == pytest.approx([COEFFICIENTS[kind].of(x, y[p], block) for p in permutation], abs=1e-13)


def test_kendall_between_allows_ties_that_change_from_row_to_row() -> None:
    rng = np.random.default_rng(0)
    lefts, rights = rng.integers(0, 4, (3, 15)).astype(float), rng.integers(0, 3, (7, 15)).astype(float)
    truth = [[stats.kendalltau(a, b).statistic for b in rights] for a in lefts]
    assert np.abs(kendall_between(lefts, rights, np.zeros(15, dtype=int)) - truth).max() < 100 * EPS


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = columns(1, 30, tied=True)
    block = np.zeros(30, dtype=int)
    drawn = random_permutations(block, 50, generator(0))
    for method, coefficient in ((name, COEFFICIENTS[name]) for name in COEFFICIENTS):
        whole = coefficient.permuted(x, y, drawn, block)
        with monkeypatch.context() as patch:
            patch.setattr("landscope.analysis.coefficients.CHUNK", 7 * 30)
            parts = coefficient.permuted(x, y, drawn, block)
        assert np.abs(whole - parts).max() < 10 * EPS, method


@pytest.mark.parametrize(("method", "truth"), [("kendall", 0.5), ("spearman", 0.6), ("pearson", -0.7)])
def test_spreads_are_those_of_normal_columns(method: str, truth: float) -> None:
    """1,500 samples of 60: the spread is right to 10 %, and `centred` makes it what it is without a link."""
    r = {"kendall": math.sin(math.pi * truth / 2), "spearman": 2 * math.sin(math.pi * truth / 6), "pearson": truth}[
        method
    ]
    rng, block = np.random.default_rng(0), np.zeros(60, dtype=int)
    coefficient = COEFFICIENTS[method]
    found = []
    for _ in range(1500):
        x, noise = rng.normal(size=(2, 60))
        found.append(coefficient.of(x, r * x + math.sqrt(1 - r * r) * noise, block))
    assert np.std(found) == pytest.approx(coefficient.spread(truth, 60), rel=0.1)
    moved = [coefficient.centred(value, truth, 60) for value in found]
    assert np.std(moved) == pytest.approx(coefficient.spread(0.0, 60), rel=0.1)
    assert coefficient.centred(0.3, 0.0, 60) == pytest.approx(0.3)


def test_pearson_survives_offsets_and_scales() -> None:
    x, y = columns(2, 20, tied=False)
    block = np.zeros(20, dtype=int)
    truth = COEFFICIENTS["pearson"].of(x, y, block)
    assert COEFFICIENTS["pearson"].of(1e6 + x, y, block) == pytest.approx(truth, abs=1e-9)
    assert COEFFICIENTS["pearson"].of(1e200 * x, 1e-200 * y, block) == pytest.approx(truth, abs=1e-13)


def test_all_permutations_are_there_once() -> None:
    drawn = all_permutations(np.array([0, 0, 1, 0, 1]), 1000)
    assert drawn is not None
    assert len(drawn) == len({tuple(p) for p in drawn.tolist()}) == math.factorial(3) * math.factorial(2)
