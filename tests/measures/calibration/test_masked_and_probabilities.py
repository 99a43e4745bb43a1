"""Classes that are masked out with logits of −∞, and probabilities in place of logits."""

from __future__ import annotations

import math

import calibration_truths as truth
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from landscope import MEASURES, Probe, Status
from landscope.core.errors import DataError, EmptyDataError, NotApplicableError, OperandError
from landscope.measures import calibration as cal
from landscope.measures.consistency import disagreement, jensen_shannon, logit_cosine
from landscope.papers.explicit_regularisation.as_published import unconverged_temperature

NAMES = ["nll", "brier", "ece", "ace", "mce", "classwise_ece", "accuracy", "error"]


def masked(n: int = 200) -> tuple[Tensor, Tensor, Tensor]:
    """Logits with −∞ for some classes, the same with −1000 (probability 0 in float64), and possible labels."""
    z, _ = truth.drawn(n)
    rng = torch.Generator().manual_seed(3)
    hidden = torch.rand(z.shape, generator=rng) < 0.3
    hidden[:, 0] = False
    low = z.masked_fill(hidden, -1000.0)
    y = torch.multinomial((low / 2).softmax(1), 1, generator=rng)[:, 0]
    return z.masked_fill(hidden, -math.inf), low, y


@pytest.mark.parametrize("name", NAMES)
def test_a_masked_class_has_probability_zero(name: str) -> None:
    z, low, y = masked()
    function = getattr(cal, name)
    found, same = function(z, y), function(low, y)
    assert found.value == pytest.approx(same.value, rel=1e-12)
    assert found.stderr == pytest.approx(same.stderr, rel=1e-9)
    assert all(math.isfinite(v) for v in found.details.values() if isinstance(v, float))


@pytest.mark.parametrize("classwise", [True, False])
def test_adaptive_bins_with_masked_classes(classwise: bool) -> None:
    z, low, y = masked()
    assert cal.ace(z, y, classwise=classwise).value == pytest.approx(cal.ace(low, y, classwise=classwise).value)


def test_reliability_and_parts_with_masked_classes() -> None:
    z, low, y = masked()
    np.testing.assert_allclose(cal.reliability(z, y).confidence, cal.reliability(low, y).confidence, rtol=1e-12)
    parts, same = cal.brier_parts(z, y), cal.brier_parts(low, y)
    assert parts.score == pytest.approx(same.score)
    assert parts.score == pytest.approx(parts.reliability - parts.resolution + parts.uncertainty + parts.within_bins)


def test_a_label_that_is_masked_out() -> None:
    z, y = torch.tensor([[0.0, -math.inf], [1.0, 0.0]]), torch.tensor([1, 0])
    with pytest.raises(NotApplicableError, match="the label of 1 of 2 samples has probability 0"):
        cal.nll(z, y)
    with pytest.raises(NotApplicableError, match="at every temperature"):
        cal.fit_temperature(z, y)
    assert cal.brier(z, y).value == pytest.approx((2.0 + 2 * (1 - 1 / (1 + math.exp(-1))) ** 2) / 2)
    assert cal.ece(z, y).value > 0


def test_a_temperature_with_masked_classes_is_the_optimum() -> None:
    z, _, y = masked(1000)
    fit = cal.fit_temperature(z, y)
    assert fit.converged

    def nll_at(temperature: float) -> float:
        return cal.nll(z / temperature, y).value

    assert fit.nll_after == pytest.approx(nll_at(fit.temperature), rel=1e-12)
    assert fit.nll_before == pytest.approx(nll_at(1.0), rel=1e-12)
    assert all(nll_at(fit.temperature * factor) > fit.nll_after for factor in (0.99, 1.01))
    assert math.isfinite(fit.log_stderr_robust)
    assert torch.equal(fit.scale(z) == -math.inf, z == -math.inf)
    assert cal.calibrated(z[:500], y[:500], z[500:]).logits.shape == (500, z.shape[1])


def test_limits_of_a_temperature_with_masked_classes() -> None:
    hidden = -math.inf
    equal = cal.fit_temperature(torch.tensor([[0.0, 0.0, hidden], [hidden, 1.0, 1.0]]), torch.tensor([0, 1]))
    assert equal.status is Status.SATURATED
    right = cal.fit_temperature(torch.tensor([[2.0, 0.0, hidden]]), torch.tensor([0]))
    assert right.temperature == 0.0
    wrong = cal.fit_temperature(torch.tensor([[2.0, 0.0, hidden]]), torch.tensor([1]))
    assert wrong.temperature == math.inf
    assert wrong.nll_after == pytest.approx(math.log(2))  # of the two that are possible


def test_people_and_masked_classes() -> None:
    z = torch.tensor([[0.0, 0.0, -math.inf], [1.0, -math.inf, 0.0]])
    possible, impossible = torch.tensor([[3, 1, 0], [1, 0, 1]]), torch.tensor([[3, 1, 1], [1, 0, 1]])
    low = z.masked_fill(z == -math.inf, -1000.0)
    for function in (
        cal.human_cross_entropy,
        cal.human_kl,
        cal.human_distance,
        cal.human_entropy_error,
        cal.human_ece,
    ):
        assert function(z, possible).value == pytest.approx(function(low, possible).value, rel=1e-12)
    for function in (cal.human_cross_entropy, cal.human_kl):
        with pytest.raises(NotApplicableError, match="a label that people gave of 1 of 2 samples"):
            function(z, impossible)
    assert math.isfinite(cal.human_distance(z, impossible).value)


def test_models_that_mask_classes_can_be_compared() -> None:
    z, low, _ = masked(50)
    pair, same = torch.stack([z, z.flip(0)]), torch.stack([low, low.flip(0)])
    assert jensen_shannon(pair).mean == pytest.approx(jensen_shannon(same).mean, rel=1e-12)
    assert disagreement(pair).mean == disagreement(same).mean
    with pytest.raises(DataError, match="finite logits"):
        logit_cosine(pair)


def test_the_fit_of_a_paper_says_that_it_fails() -> None:
    z, _, y = masked()
    assert unconverged_temperature(z, y).status is Status.FAILED


class Masking(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.head = nn.Linear(4, 5)

    def forward(self, x: Tensor) -> Tensor:
        out = self.head(x)
        hidden = torch.zeros_like(out, dtype=torch.bool)
        hidden[:, 3:] = True
        return out.masked_fill(hidden, -math.inf)


def test_a_model_that_masks_its_outputs_has_every_calibration_measure() -> None:
    x, y = torch.randn(30, 4, generator=torch.Generator().manual_seed(0)), torch.arange(30) % 3
    probe, model = Probe(Masking(), (x, y)), Masking()
    for name in NAMES:
        found = MEASURES[name]()(probe)
        assert found.status is Status.EXACT, (name, found.reason)
        share = 3 / 5 if name == "classwise_ece" else 1.0  # two classes without a gap count in its mean
        truth_of_three = getattr(cal, name)(model.head(x)[:, :3], y).value
        assert found.value == pytest.approx(share * truth_of_three, rel=1e-5)


# Probabilities


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", [torch.float64, torch.float32, "numpy"])
def test_probabilities_give_what_their_logits_give(name: str, kind: torch.dtype | str) -> None:
    z, y = truth.drawn(120)
    p = z.softmax(1)
    given = p.numpy() if kind == "numpy" else p.to(kind)  # type: ignore[arg-type]
    function = getattr(cal, name)
    found, expected = function(cal.probabilities(given), y), function(z, y)
    assert found.value == pytest.approx(expected.value, rel=1e-5)
    assert found.stderr == pytest.approx(expected.stderr, rel=1e-3)


def test_every_other_function_takes_probabilities_too() -> None:
    z, y = truth.drawn(300)
    p = cal.probabilities(z.softmax(1))
    assert cal.fit_temperature(p, y).temperature == pytest.approx(cal.fit_temperature(z, y).temperature, rel=1e-9)
    np.testing.assert_allclose(cal.reliability(p, y).confidence, cal.reliability(z, y).confidence)
    counts = torch.nn.functional.one_hot(y, z.shape[1])
    assert cal.human_kl(p, counts).value == pytest.approx(cal.human_kl(z, counts).value)
    assert cal.brier_parts(p, y).score == pytest.approx(cal.brier_parts(z, y).score)


def test_a_confidence_on_an_edge_belongs_to_the_bin_below() -> None:
    """(lo, hi]: as NumPy's decimals mean it, with no rounding through logarithms."""
    for edge in (0.6, 0.7, 0.8, 0.9):
        p = np.array([[edge, 1 - edge], [edge, 1 - edge]])
        table = cal.reliability(cal.probabilities(p), np.array([0, 0]), n_bins=10)
        assert int(table.counts.argmax()) == round(10 * edge) - 1
    sure = cal.reliability(cal.probabilities(torch.tensor([[1.0, 0.0]])), torch.tensor([0]), n_bins=10)
    assert int(sure.counts.argmax()) == 9


def test_rows_of_a_hard_classifier() -> None:
    p, y = cal.probabilities(torch.eye(3)), torch.tensor([0, 1, 1])
    assert cal.ece(p, y).value == pytest.approx(1 / 3)
    assert cal.accuracy(p, y).value == pytest.approx(2 / 3)
    with pytest.raises(NotApplicableError, match="1 of 3"):
        cal.nll(p, y)


@pytest.mark.parametrize(
    ("p", "error", "words"),
    [
        (torch.zeros(0, 3), EmptyDataError, "no samples"),
        (torch.rand(4), OperandError, "stack"),
        (torch.rand(4, 1), OperandError, "two classes"),
        (torch.ones(2, 2, dtype=torch.long), OperandError, "real numbers"),
        (torch.tensor([[0.5, 0.5], [0.5, 0.4]]), DataError, r"1 of 2 samples do not add up to 1 \(number 1: 0.9\)"),
        (torch.tensor([[1.2, -0.2]]), DataError, "negative"),
        (torch.tensor([[0.5, math.nan]]), DataError, "NaN"),
        (torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), DataError, "Pass logits as they are"),
        ([[0.5, 0.5]], OperandError, "got a list"),
    ],
)
def test_what_are_not_probabilities(p: object, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        cal.probabilities(p)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float32])
def test_rounding_of_every_precision_is_allowed(kind: torch.dtype) -> None:
    p = torch.randn(50, 100, generator=torch.Generator().manual_seed(0)).softmax(1)
    assert cal.probabilities(p.to(kind)).p.dtype == torch.float64
    assert cal.probabilities(torch.tensor([[0.3333, 0.3333, 0.3333]])).p.shape == (1, 3)
