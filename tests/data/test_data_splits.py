"""Draws of rows and labels."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from landscope.core.errors import LandscopeError, OperandError
from landscope.data import load
from landscope.data.loading import draw, noisy_labels, uniform_labels
from landscope.data.sets.circles import circles
from landscope.data.sets.functions import TEST_FUNCTIONS


@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.floats(0, 1), st.integers(0, 5))
@example([0, 1, 2, 2, 2, 2, 2, 2, 2, 2, 3], 0.625, 0)  # class 2 gets more than a row less than its share
@settings(max_examples=60, deadline=None)
def test_draws_partition_and_keep_proportions(labels: list[int], share: float, seed: int) -> None:
    y = torch.tensor(labels)
    n = round(share * len(y))
    drawn, rest = draw(y, n, seed, "test")
    assert sorted(drawn.tolist() + rest.tolist()) == list(range(len(y)))
    assert len(drawn) == n
    sizes = {k: labels.count(k) for k in labels}
    counts = {k: int((y[drawn] == k).sum()) for k in sizes}
    # one share, times the size of a class, rounds to what was drawn of it
    assert max((counts[k] - 0.5) / sizes[k] for k in sizes) <= min((counts[k] + 0.5) / sizes[k] for k in sizes) + 1e-9
    assert all(abs(counts[k] - n * sizes[k] / len(y)) <= 0.5 + len(sizes) * sizes[k] / len(y) / 2 + 1e-9 for k in sizes)
    fewer = draw(y, n // 2, seed, "test")[0]
    assert set(fewer.tolist()) <= set(drawn.tolist())


def test_draws_depend_on_seed_and_stream() -> None:
    y = torch.zeros(100, dtype=torch.int64)
    one = draw(y, 50, 0, "a")[0]
    assert torch.equal(one, draw(y, 50, 0, "a")[0])
    assert not torch.equal(one, draw(y, 50, 1, "a")[0])
    assert not torch.equal(one, draw(y, 50, 0, "b")[0])
    with pytest.raises(OperandError):
        draw(y, 101, 0, "a")


def test_noise_is_uniform_over_the_other_classes() -> None:
    n, classes = 30_000, 5
    y = torch.full((n,), 2)
    noisy = noisy_labels(y, 0.4, classes, seed=0)
    counts = torch.bincount(noisy, minlength=classes)
    assert int(counts[2]) == n - round(0.4 * n)
    expected = 0.4 * n / (classes - 1)
    chi2 = float(((counts[[0, 1, 3, 4]] - expected) ** 2 / expected).sum())
    assert chi2 < 16.3  # 0.999 quantile with 3 degrees of freedom
    with pytest.raises(OperandError):
        noisy_labels(y, 1.2, classes, seed=0)


def test_random_labels_ignore_the_labels() -> None:
    a = uniform_labels(torch.zeros(10_000, dtype=torch.int64), 10, seed=0)
    b = uniform_labels(torch.ones(10_000, dtype=torch.int64), 10, seed=0)
    assert torch.equal(a, b)
    counts = torch.bincount(a, minlength=10)
    assert float((counts - 1000).abs().max()) < 5 * math.sqrt(900)


def test_random_labels_of_a_set() -> None:
    clean, random = load("circles"), load("circles", random_labels=True)
    assert not torch.equal(clean.train.y, random.train.y)
    assert torch.equal(clean.test.y, random.test.y)


def test_digits_are_stratified() -> None:
    data = load("digits")
    for split in (data.train, data.validation, data.test):
        shares = torch.bincount(split.y, minlength=10) / len(split.y)
        assert float((shares - 0.1).abs().max()) < 0.012


def test_circles_match_scikit_learn() -> None:
    from sklearn.datasets import make_circles

    theirs, labels = make_circles(100, shuffle=False, noise=None, factor=0.5)
    ours = circles(100, 0.0, 0.5, seed=0, stream="train")
    assert torch.allclose(ours.x, torch.tensor(theirs, dtype=torch.float32), atol=1e-6)
    assert ours.y.tolist() == labels.tolist()
    noisy = circles(10_000, 0.1, 0.5, seed=0, stream="train").x - circles(10_000, 0.0, 0.5, seed=0, stream="train").x
    assert float(noisy.std()) == pytest.approx(0.1, rel=0.03)


MINIMA = {
    "sphere": (0.0, 0.0), "booth": (1.0, 3.0), "three_hump_camel": (0.0, 0.0), "himmelblau": (3.0, 2.0),
    "rosenbrock": (1.0, 1.0), "beale": (3.0, 0.5), "rastrigin": (0.0, 0.0),
}  # fmt: skip
ELSEWHERE = {
    "sphere": 5.0, "booth": 4 + 1, "three_hump_camel": 2 - 1.05 + 1 / 6 + 2 + 4, "himmelblau": 64 + 4,
    "rosenbrock": 100.0, "beale": 2.5**2 + 5.25**2 + 9.625**2, "rastrigin": 5.0,
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(TEST_FUNCTIONS))
def test_functions_at_known_points(name: str) -> None:
    function = TEST_FUNCTIONS[name]
    minimum = torch.tensor([MINIMA[name]], dtype=torch.float64, requires_grad=True)
    value = function(minimum)
    assert float(value.detach()) == pytest.approx(0, abs=1e-12)
    (slope,) = torch.autograd.grad(value.sum(), minimum)
    assert float(slope.abs().max()) < 1e-12
    assert float(function(torch.tensor([[1.0, 2.0]], dtype=torch.float64))) == pytest.approx(ELSEWHERE[name])


def test_functions_as_a_set() -> None:
    data = load("functions", function="beale")
    assert data.card.counts == {"train": 10_000, "validation": 10_000, "test": 10_000}
    assert float(data.train.x.abs().max()) <= 3.5
    assert data.train.y.shape == (10_000, 1)
    assert torch.allclose(data.train.y[:, 0], TEST_FUNCTIONS["beale"](data.train.x.double()).float(), rtol=1e-3)
    with pytest.raises(LandscopeError, match="did you mean 'beale'"):
        load("functions", function="beal")


def test_seeds_change_drawn_splits() -> None:
    a, b = load("abalone", seed=0), load("abalone", seed=1)
    assert not torch.equal(a.indices["test"], b.indices["test"])
    assert a.card.counts == {"train": 3342, "validation": 417, "test": 418}


def test_bad_settings_are_refused() -> None:
    with pytest.raises(OperandError, match="validation"):
        load("digits", validation="third")
    with pytest.raises(LandscopeError, match="pixels"):
        load("digits", pixels="unitt")
    with pytest.raises(LandscopeError, match="symmetric"):
        load("abalone", pixels="symmetric")
    assert float(load("digits", pixels="symmetric").train.x.min()) == -1.0


def test_standardised_columns_use_training_rows_only() -> None:
    data = load("abalone", pixels="standard")
    assert float(data.train.x.double().mean(0).abs().max()) < 1e-6
    assert float(data.test.x.double().mean(0).abs().max()) > 1e-4


def test_moving_to_a_device() -> None:
    moved = load("cora").to("meta")
    assert moved.train.x.device.type == moved.extra["features"].device.type == "meta"
