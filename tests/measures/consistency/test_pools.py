"""Pools of models compared pair by pair: matrices by loops, error bars by simulation."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from torch import Tensor

from landscope.core.errors import DataError, EmptyDataError, OperandError
from landscope.measures.consistency import Consistency, disagreement, jensen_shannon, logit_cosine
from landscope.measures.consistency import pairs as pool
from landscope.measures.consistency.pairs import jackknife_over_models

FUNCTIONS = [disagreement, jensen_shannon, logit_cosine]


def models(count: int = 4, n: int = 30, classes: int = 3, seed: int = 0) -> Tensor:
    rng = torch.Generator().manual_seed(seed)
    return torch.randn(1, n, classes, generator=rng).double() + torch.randn(count, n, classes, generator=rng)


def by_loops(z: Tensor, value) -> np.ndarray:
    rows = z.numpy()
    return np.array([[np.mean([value(a, b) for a, b in zip(x, y, strict=True)]) for y in rows] for x in rows])


def softmax(z: np.ndarray) -> np.ndarray:
    return np.exp(z) / np.exp(z).sum()


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


@pytest.mark.parametrize(
    ("function", "value"),
    [
        (disagreement, lambda a, b: float(a.argmax() != b.argmax())),
        (jensen_shannon, lambda a, b: jensenshannon(softmax(a), softmax(b)) ** 2),
        (lambda z: jensen_shannon(z, normalised=True), lambda a, b: jensenshannon(softmax(a), softmax(b), base=2) ** 2),
        (logit_cosine, lambda a, b: cosine(a - a.mean(), b - b.mean())),
        (lambda z: logit_cosine(z, centred=False), cosine),
    ],
)
def test_matrices_are_their_definitions(function, value) -> None:
    z = models()
    found, expected = function(z), by_loops(z, value)
    np.testing.assert_allclose(found.matrix, expected, atol=1e-9)
    pairs = [expected[a, b] for a, b in combinations(range(4), 2)]
    assert found.mean == pytest.approx(np.mean(pairs), abs=1e-9)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_pieces_lists_and_arrays_give_the_same(function, monkeypatch: pytest.MonkeyPatch) -> None:
    z = models(5, 40)
    whole = function(z)
    monkeypatch.setattr(pool, "CHUNK", 5 * 3 * 7)
    for other in (function(z), function(list(z)), function(z.numpy()), function([one.numpy() for one in z])):
        np.testing.assert_allclose(other.matrix, whole.matrix, atol=1e-14)
        assert other.data_stderr == pytest.approx(whole.data_stderr)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_error_over_data_is_the_one_of_each_samples_mean_over_pairs(function) -> None:
    z = models(4, 50)
    each = [function(z[:, i : i + 1]).mean for i in range(50)]
    assert function(z).data_stderr == pytest.approx(np.std(each, ddof=1) / math.sqrt(50))


def test_the_jackknife_leaves_out_one_model_at_a_time() -> None:
    z = models(6)
    found = disagreement(z)
    without = [disagreement(z[[b for b in range(6) if b != a]]).mean for a in range(6)]
    assert found.stderr == pytest.approx(math.sqrt(5 / 6 * np.sum((without - np.mean(without)) ** 2)))


def test_for_a_sum_of_model_effects_the_error_is_the_one_of_a_mean() -> None:
    # d(a, b) = e_a + e_b: the mean over pairs is twice the mean of e
    e = np.random.default_rng(0).normal(size=9)
    matrix = e[:, None] + e[None, :]
    mean, stderr = jackknife_over_models(matrix)
    assert mean == pytest.approx(2 * e.mean())
    assert stderr == pytest.approx(2 * e.std(ddof=1) / 3)


def draw_pool(count: int, seed: int) -> Tensor:
    """Models of different quality at fixed samples."""
    samples = 1.5 * torch.randn(100, 4, generator=torch.Generator().manual_seed(12345))
    rng = torch.Generator().manual_seed(seed)
    quality = (0.5 * torch.randn(count, 1, 1, generator=rng)).exp()
    return samples + quality * torch.randn(count, 100, 4, generator=rng)


@pytest.mark.parametrize("count", [4, 8, 20])
def test_the_interval_covers_the_mean_over_all_models(count: int) -> None:
    exact = disagreement(draw_pool(300, 999)).mean
    found = [disagreement(draw_pool(count, seed)) for seed in range(150)]
    covered = np.mean([low <= exact <= high for low, high in (one.interval() for one in found)])
    assert 0.88 <= covered <= 1.0
    spread = np.std([one.mean for one in found])
    assert 0.85 < np.sqrt(np.mean([one.stderr**2 for one in found])) / spread < 1.35


def test_pairs_taken_for_independent_would_not() -> None:
    exact = disagreement(draw_pool(300, 999)).mean
    hits = 0
    for seed in range(100):
        found = disagreement(draw_pool(20, seed))
        pairs = found.matrix[np.triu_indices(20, 1)]
        hits += abs(found.mean - exact) < 1.96 * pairs.std(ddof=1) / math.sqrt(len(pairs))
    assert hits < 60


def test_limits() -> None:
    z = models()
    same = z[:1].expand(3, -1, -1)
    assert disagreement(same).mean == 0
    assert jensen_shannon(same).mean == pytest.approx(0, abs=1e-15)
    assert logit_cosine(same).mean == pytest.approx(1)
    assert logit_cosine(torch.stack([z[0], -z[0]])).mean == pytest.approx(-1)
    certain = torch.tensor([[[2000.0, 0.0]], [[0.0, 2000.0]]])
    assert jensen_shannon(certain).mean == pytest.approx(math.log(2))
    assert (np.diag(jensen_shannon(z).matrix) < 1e-15).all()


def test_a_logit_vector_without_direction_counts_as_zero() -> None:
    z = torch.tensor([[[1.0, 1.0], [1.0, 0.0]], [[1.0, 0.0], [1.0, 0.0]]])
    assert logit_cosine(z).mean == pytest.approx(0.5)


def test_a_shift_of_the_logits_changes_only_the_plain_cosine() -> None:
    z = models()
    shifted = z + torch.arange(4.0)[:, None, None]
    for function in FUNCTIONS:
        assert function(shifted).mean == pytest.approx(function(z).mean, abs=1e-12)
    assert logit_cosine(shifted, centred=False).mean != pytest.approx(logit_cosine(z, centred=False).mean, abs=1e-2)


def test_two_models_have_no_error_over_models() -> None:
    found = disagreement(models(2))
    assert found.stderr is None
    assert "one pair" in found.estimate.reason
    assert found.estimate.data_stderr is not None
    with pytest.raises(DataError, match="three"):
        found.interval()


def test_what_comes_out() -> None:
    found = disagreement(models())
    assert isinstance(found, Consistency)
    assert repr(found).startswith("Consistency(disagreement 0.")
    assert list(found.to_frame(["a", "b", "c", "d"]).columns) == ["a", "b", "c", "d"]
    assert found.estimate.details == {"models": 4, "pairs": 6, "samples": 30}
    assert type(found.estimate).from_json(found.estimate.to_json()) == found.estimate


@pytest.mark.parametrize("function", FUNCTIONS)
def test_refusals(function) -> None:
    with pytest.raises(OperandError, match="at least two"):
        function(models(1))
    with pytest.raises(OperandError, match="same samples"):
        function([torch.zeros(3, 2), torch.zeros(4, 2)])
    with pytest.raises(DataError, match="NaN"):
        function(torch.full((2, 3, 2), math.nan))
    with pytest.raises(EmptyDataError):
        function(torch.zeros(2, 0, 3))
