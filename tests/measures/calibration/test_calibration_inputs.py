"""What calibration functions accept, what they refuse, and what they say for the smallest and oddest inputs."""

from __future__ import annotations

import math

import calibration_truths as truth
import numpy as np
import pytest
import torch

from landscope.core.errors import DataError, EmptyDataError, LabelRangeError, OperandError
from landscope.measures import calibration as cal

NAMES = ["nll", "brier", "ece", "ace", "mce", "classwise_ece", "accuracy", "error"]
EVERY = [getattr(cal, name) for name in NAMES] + [cal.reliability, cal.fit_temperature]


@pytest.mark.parametrize("function", EVERY, ids=lambda f: f.__name__)
class TestRefusals:
    def refuse(self, function, error, words, logits, labels):
        with pytest.raises(error, match=words):
            function(logits, labels)

    def test_no_samples(self, function):
        self.refuse(function, EmptyDataError, "no samples", torch.zeros(0, 3), torch.zeros(0, dtype=torch.long))

    @pytest.mark.parametrize("bad", [math.nan, math.inf])
    def test_logits_that_are_not_numbers(self, function, bad):
        z = torch.zeros(4, 3)
        z[2, 1] = bad
        self.refuse(function, DataError, r"1 of 4 samples .* number 2", z, torch.tensor([0, 1, 2, 0]))

    def test_a_sample_without_a_possible_class(self, function):
        z = torch.zeros(4, 3)
        z[2] = -math.inf
        self.refuse(function, DataError, r"1 of 4 samples .* number 2", z, torch.tensor([0, 1, 2, 0]))

    @pytest.mark.parametrize(("low", "high"), [(-1, 2), (0, 3)])
    def test_labels_out_of_range(self, function, low, high):
        self.refuse(function, LabelRangeError, f"from {low} to {high}", torch.zeros(2, 3), torch.tensor([low, high]))

    def test_labels_that_are_not_whole(self, function):
        self.refuse(function, LabelRangeError, "integers", torch.zeros(2, 3), torch.tensor([0.0, 1.0]))

    def test_label_distributions(self, function):
        self.refuse(function, OperandError, "human_", torch.zeros(2, 3), torch.ones(2, 3))

    def test_shapes(self, function):
        self.refuse(function, OperandError, "two classes", torch.zeros(4), torch.zeros(4, dtype=torch.long))
        self.refuse(function, OperandError, "stack", torch.zeros(4, 1), torch.zeros(4, dtype=torch.long))
        self.refuse(function, OperandError, r"\(4,\)", torch.zeros(4, 2), torch.zeros(3, dtype=torch.long))

    def test_kinds(self, function):
        self.refuse(function, OperandError, "real numbers", torch.zeros(4, 2, dtype=torch.long), torch.zeros(4).long())
        self.refuse(function, OperandError, "got a list", [[0.0, 1.0]], torch.zeros(1).long())
        self.refuse(function, OperandError, "array of <U1", np.array([["a", "b"]]), np.zeros(1, dtype=int))


@pytest.mark.parametrize("name", NAMES)
def test_tensors_and_arrays_of_every_precision(name: str) -> None:
    z, y = truth.drawn(60)
    z = z.half()  # exactly representable in all of them
    function = getattr(cal, name)
    expected = function(z.double(), y)
    for logits in (z, z.float(), z.double().numpy(), z.numpy(), z.float().requires_grad_()):
        for labels in (y, y.int(), y.to(torch.uint8), y.numpy(), y.numpy().astype(np.uint16)):
            assert function(logits, labels) == expected


@pytest.mark.parametrize("name", NAMES)
def test_one_sample_has_a_value_and_no_error_bar(name: str) -> None:
    estimate = getattr(cal, name)(torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([1]))
    assert estimate.data_stderr is None
    assert estimate.stderr == 0
    assert math.isfinite(estimate.value)


def test_values_for_one_sample() -> None:
    z, y = torch.tensor([[2.0, 0.0, 0.0]], dtype=torch.float64), torch.tensor([1])
    p = math.exp(2) / (math.exp(2) + 2)
    for name in ("ece", "ace", "mce"):
        assert getattr(cal, name)(z, y).value == pytest.approx(p)
    assert cal.classwise_ece(z, y, resamples=0).value == pytest.approx((p + (1 - (1 - p) / 2) + (1 - p) / 2) / 3)


@pytest.mark.parametrize("name", NAMES)
def test_absent_classes_count_as_classes(name: str) -> None:
    z, y = truth.drawn(50, 4)
    wide = torch.cat([z, torch.full((50, 2), -700.0, dtype=torch.float64)], 1)  # two classes more, of probability 0
    narrow, more = (getattr(cal, name)(logits, y).value for logits in (z, wide))
    assert more == pytest.approx(narrow * 4 / 6 if name == "classwise_ece" else narrow, abs=1e-12)


def test_a_class_that_is_predicted_but_never_right() -> None:
    z, y = torch.tensor([[0.0, 50.0]] * 3), torch.zeros(3, dtype=torch.long)
    assert cal.classwise_ece(z, y, resamples=0).value == pytest.approx(1.0)


@pytest.mark.parametrize("n_bins", [0, -1, 2.5, True])
@pytest.mark.parametrize("name", ["ece", "ace", "mce", "classwise_ece", "reliability", "brier"])
def test_numbers_of_bins(name: str, n_bins: object) -> None:
    with pytest.raises(ValueError, match="n_bins"):
        getattr(cal, name)(*truth.drawn(5), n_bins)


def test_tied_confidences_share_a_bin_whatever_their_order() -> None:
    z = torch.tensor([[1.0, 0.0]]).repeat(6, 1)
    y = torch.tensor([0, 0, 0, 1, 1, 1])
    p = float(torch.sigmoid(torch.tensor(1.0, dtype=torch.float64)))
    assert cal.ace(z, y, 3, resamples=0).value == pytest.approx(p - 0.5)
    assert cal.ace(z, y.flip(0), 3, resamples=0).value == pytest.approx(p - 0.5)


def test_an_estimate_reads_as_a_number_and_survives_json() -> None:
    estimate = cal.ece(*truth.drawn(100))
    assert float(estimate) == estimate.value
    assert "±" in str(estimate)
    assert type(estimate).from_json(estimate.to_json()) == estimate
