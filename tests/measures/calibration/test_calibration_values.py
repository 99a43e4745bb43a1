"""Calibration errors against loops in plain Python, numbers worked out by hand, scikit-learn and torchmetrics."""

from __future__ import annotations

import math

import calibration_truths as truth
import numpy as np
import pytest
import torch
from torch import Tensor

from landscope.measures import calibration as cal
from landscope.measures.calibration import scores as bins

BINNED = ["ece", "mce", "classwise_ece"]


def logits_of(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64).log()


@pytest.mark.parametrize("name", BINNED)
@pytest.mark.parametrize("n_bins", [1, 2, 10, 15, 40])
@pytest.mark.parametrize("classes", [2, 5])
def test_binned_errors_are_their_definitions(name: str, n_bins: int, classes: int) -> None:
    z, y = truth.drawn(300, classes, spread=3, seed=n_bins)
    assert getattr(cal, name)(z, y, n_bins).value == pytest.approx(getattr(truth, name)(z, y, n_bins), abs=1e-12)


@pytest.mark.parametrize("n", [7, 150, 151])
def test_equal_mass_errors_are_their_definitions(n: int) -> None:
    z, y = truth.drawn(n, 4, seed=n)
    assert cal.ace(z, y, 15, resamples=0).value == pytest.approx(truth.ace(truth.top_pairs(z, y), 15), abs=1e-12)
    classwise = sum(truth.ace(truth.class_pairs(z, y, c), 15) for c in range(4)) / 4
    assert cal.ace(z, y, 15, classwise=True, resamples=0).value == pytest.approx(classwise, abs=1e-12)


def test_proper_scores_are_their_definitions() -> None:
    z, y = truth.drawn(200, 6)
    assert cal.nll(z, y).value == pytest.approx(truth.nll(z, y), abs=1e-13)
    assert cal.brier(z, y).value == pytest.approx(truth.brier(z, y), abs=1e-13)
    right = sum(row.index(max(row)) == label for row, label in zip(z.tolist(), y.tolist(), strict=True)) / 200
    assert cal.accuracy(z, y).value == right
    assert cal.error(z, y).value == pytest.approx(1 - right)


def test_an_example_by_hand() -> None:
    # confidences 0.6 (right), 0.7 (wrong), 0.9 (right), 0.95 (right) in bins (0.5, 0.75] and (0.75, 1] of four
    z = logits_of([0.6, 0.4], [0.7, 0.3], [0.1, 0.9], [0.05, 0.95])
    y = torch.tensor([0, 1, 1, 1])
    first, last = abs(0.5 - 0.65), abs(1 - 0.925)
    assert cal.ece(z, y, 4, resamples=0).value == pytest.approx((2 * first + 2 * last) / 4)
    assert cal.mce(z, y, 4, resamples=0).value == pytest.approx(first)
    assert cal.mce(z, y, 4).details["worst_bin_samples"] == 2
    assert cal.brier(z, y).value == pytest.approx(2 * (0.4**2 + 0.7**2 + 0.1**2 + 0.05**2) / 4)
    table = cal.reliability(z, y, 4)
    assert table.counts.tolist() == [0, 0, 2, 2]
    np.testing.assert_allclose(table.confidence[2:], [0.65, 0.925])
    np.testing.assert_allclose(table.accuracy[2:], [0.5, 1.0])


@pytest.mark.parametrize("k", range(8, 16))
def test_a_confidence_on_an_edge_belongs_to_the_bin_below(k: int) -> None:
    edge = k / 15
    found = bins.find_bins(
        torch.tensor([np.nextafter(edge, 0), edge, np.nextafter(edge, 2)]), bins.equal_width_edges(15)
    )
    assert found.tolist() == [k - 1, k - 1, min(k, 14)]


def test_confidence_exactly_one_and_zero() -> None:
    z = torch.tensor([[800.0, 0.0, 0.0], [0.0, 900.0, 0.0]])
    y = torch.tensor([0, 2])
    assert cal.reliability(z, y).counts.tolist() == [0] * 14 + [2]
    assert cal.ece(z, y, resamples=0).value == 0.5
    # class 0: (1, right), (0, right); class 1: (0, right), (1, wrong); class 2: (0, right), (0, wrong) share a bin
    assert cal.classwise_ece(z, y, resamples=0).value == pytest.approx((0 + 0.5 + 0.5) / 3)
    assert cal.nll(z, y).value == pytest.approx(450.0)


def test_scores_do_not_depend_on_a_shift_of_the_logits() -> None:
    z, y = truth.drawn(200)
    for name in (*BINNED, "ace", "nll", "brier"):
        before, after = (getattr(cal, name)(logits, y).value for logits in (z, z + 100 * torch.arange(200)[:, None]))
        assert after == pytest.approx(before, abs=1e-10)


@pytest.mark.parametrize("n_bins", [1, 5, 15])
def test_the_parts_of_a_brier_score_add_up(n_bins: int) -> None:
    z, y = truth.drawn(400, 4, spread=3)
    parts = cal.brier_parts(z, y, n_bins)
    total = parts.reliability - parts.resolution + parts.uncertainty + parts.within_bins
    assert total == pytest.approx(parts.score, abs=1e-12)
    assert parts.score == pytest.approx(truth.brier(z, y), abs=1e-12)
    assert cal.brier(z, y, n_bins).details["resolution"] == parts.resolution


def test_murphys_parts_by_hand() -> None:
    # two forecasts only, so nothing varies within bins: 0.8 was right in 1 of 2, 0.4 in 1 of 2
    z, y = logits_of([0.8, 0.2], [0.8, 0.2], [0.4, 0.6], [0.4, 0.6]), torch.tensor([0, 1, 0, 1])
    parts = cal.brier_parts(z, y, 10)
    assert parts.reliability == pytest.approx(2 * (0.3**2 + 0.1**2) / 2)
    assert parts.resolution == pytest.approx(0, abs=1e-15)
    assert parts.uncertainty == pytest.approx(0.5)
    assert parts.within_bins == pytest.approx(0, abs=1e-15)


def test_a_calibrated_model_has_little_reliability_and_a_sharp_one_resolution() -> None:
    z, y = truth.drawn(20000, 4, spread=2)
    good, bad = cal.brier_parts(z, y), cal.brier_parts(4 * z, y)
    assert good.reliability < 0.002 < 0.05 < bad.reliability
    assert good.resolution > 0.1


def test_agrees_with_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    curves = pytest.importorskip("sklearn.calibration")
    z, y = truth.drawn(500, 4)
    p = z.softmax(1).numpy()
    assert cal.nll(z, y).value == pytest.approx(metrics.log_loss(y.numpy(), p), abs=1e-12)
    assert cal.accuracy(z, y).value == metrics.accuracy_score(y.numpy(), p.argmax(1))
    each = sum(metrics.brier_score_loss(y.numpy() == c, p[:, c]) for c in range(4))
    assert cal.brier(z, y).value == pytest.approx(each, abs=1e-12)
    table = cal.reliability(z, y)
    right, stated = curves.calibration_curve(p.argmax(1) == y.numpy(), p.max(1), n_bins=15)
    held = table.counts > 0
    np.testing.assert_allclose(table.accuracy[held], right, atol=1e-12)
    np.testing.assert_allclose(table.confidence[held], stated, atol=1e-12)


def test_differs_from_scikit_learn_where_it_clips() -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    z, y = torch.tensor([[0.0, 100.0], [0.0, 1.0]], dtype=torch.float64), torch.tensor([0, 1])
    assert cal.nll(z, y).value == pytest.approx((100 + math.log(1 + math.exp(-1))) / 2)
    assert metrics.log_loss(y.numpy(), z.softmax(1).numpy()) < 20


def test_agrees_with_torchmetrics_away_from_edges() -> None:
    functional = pytest.importorskip("torchmetrics.functional.classification", reason="torchmetrics is not installed")
    z, y = truth.drawn(500, 4, spread=2)
    for n_bins in (10, 15):
        for norm, ours in (("l1", cal.ece), ("max", cal.mce)):
            theirs = functional.multiclass_calibration_error(z.softmax(1), y, num_classes=4, n_bins=n_bins, norm=norm)
            assert ours(z, y, n_bins, resamples=0).value == pytest.approx(
                float(theirs), abs=1e-6
            )  # theirs adds up in float32


def test_differs_from_torchmetrics_at_confidence_one() -> None:
    functional = pytest.importorskip("torchmetrics.functional.classification", reason="torchmetrics is not installed")
    z = torch.tensor([[800.0, 0.0], [0.0, 3.0]], dtype=torch.float64)  # both in the last of 15 bins: 1.0 and 0.953
    y = torch.tensor([1, 1])
    theirs = functional.multiclass_calibration_error(z.softmax(1), y, num_classes=2, n_bins=15)
    stated = 1 / (1 + math.exp(-3))
    assert cal.ece(z, y, resamples=0).value == pytest.approx(abs(0.5 - (1 + stated) / 2))
    assert float(theirs) == pytest.approx((1 + (1 - stated)) / 2)
