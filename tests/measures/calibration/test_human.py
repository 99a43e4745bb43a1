"""Calibration against people's label distributions, by loops and by limits."""

from __future__ import annotations

import math

import calibration_truths as truth
import numpy as np
import pytest
import torch
from scipy.stats import entropy

from landscope.core.errors import DataError, LabelRangeError, OperandError
from landscope.measures import calibration as cal

FUNCTIONS = [cal.human_cross_entropy, cal.human_kl, cal.human_distance, cal.human_entropy_error, cal.human_ece]


def people(z: torch.Tensor, count: int = 50, seed: int = 0) -> torch.Tensor:
    """Counts of labels that `count` people draw from the softmax of z."""
    rng = torch.Generator().manual_seed(seed)
    draws = torch.multinomial(z.softmax(1), count, replacement=True, generator=rng)
    return torch.nn.functional.one_hot(draws, z.shape[1]).sum(1)


def test_against_loops() -> None:
    z, _ = truth.drawn(40, 4)
    counts = people(2 * z, 7)
    p, q = z.softmax(1).numpy(), (counts / 7).double().numpy()
    cross = np.mean([entropy(a) + entropy(a, b) for a, b in zip(q, p, strict=True)])
    assert cal.human_cross_entropy(z, counts).value == pytest.approx(cross)
    assert cal.human_kl(z, counts).value == pytest.approx(np.mean([entropy(a, b) for a, b in zip(q, p, strict=True)]))
    assert cal.human_distance(z, counts).value == pytest.approx(
        np.mean([abs(a - b).sum() / 2 for a, b in zip(q, p, strict=True)])
    )
    gaps = np.array([entropy(b) - entropy(a) for a, b in zip(q, p, strict=True)])
    assert cal.human_entropy_error(z, counts).value == pytest.approx(np.abs(gaps).mean())
    assert cal.human_entropy_error(z, counts, signed=True).value == pytest.approx(gaps.mean())
    pairs = [(float(b.max()), float(a[b.argmax()])) for a, b in zip(q, p, strict=True)]
    expected = sum(k * g for k, g in truth.gaps(pairs, 15).values()) / 40
    assert cal.human_ece(z, counts).value == pytest.approx(expected)


def test_counts_and_shares_are_the_same() -> None:
    z, _ = truth.drawn(30)
    counts = people(z)
    for function in FUNCTIONS:
        assert function(z, counts).value == pytest.approx(function(z.numpy(), (counts / 50).numpy()).value, rel=1e-6)


def test_one_label_each_gives_the_usual_measures() -> None:
    z, y = truth.drawn(200)
    single = torch.nn.functional.one_hot(y, 5)
    assert cal.human_cross_entropy(z, single).value == pytest.approx(cal.nll(z, y).value)
    assert cal.human_kl(z, single).value == pytest.approx(cal.nll(z, y).value)
    assert cal.human_ece(z, single).value == pytest.approx(cal.ece(z, y, resamples=0).value)


def test_every_person_as_a_sample_gives_the_same_ece() -> None:
    z, _ = truth.drawn(60, 3)
    counts = people(z, 9)
    rows = [(i, c) for i in range(60) for c in range(3) for _ in range(int(counts[i, c]))]
    repeated, labels = z[[i for i, _ in rows]], torch.tensor([c for _, c in rows])
    assert cal.human_ece(z, counts).value == pytest.approx(cal.ece(repeated, labels, resamples=0).value)


def test_a_model_that_predicts_as_people_vote_is_perfect() -> None:
    counts = people(truth.drawn(50, 4)[0]) + 1
    z = counts.double().log()
    for function in FUNCTIONS[1:]:
        assert abs(function(z, counts).value) < 1e-12
    assert cal.human_cross_entropy(z, counts).value == pytest.approx(np.mean(entropy(counts.numpy(), axis=1)))


def test_more_people_bring_it_closer() -> None:
    z, _ = truth.drawn(300)
    few, many = (cal.human_distance(z, people(z, count)).value for count in (5, 500))
    assert many < few / 4


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda f: f.__name__)
def test_refusals(function) -> None:
    z = torch.zeros(3, 2)
    with pytest.raises(OperandError, match="For one label per sample"):
        function(z, torch.tensor([0, 1, 1]))
    with pytest.raises(OperandError, match=r"\(3, 3\)"):
        function(z, torch.ones(3, 3))
    with pytest.raises(LabelRangeError, match="negative"):
        function(z, torch.tensor([[1, -1]] * 3))
    with pytest.raises(DataError, match="1 samples have no labels"):
        function(z, torch.tensor([[1, 1], [0, 0], [1, 0]]))
    with pytest.raises(DataError, match="NaN"):
        function(z, torch.tensor([[1.0, math.nan]] * 3))
