"""`landscope.compare`: differences with true errors, what is called real, and how alike models are."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

import landscope as ls
from landscope.comparison.differences import Difference, Verdict, by_groups
from landscope.core.errors import OperandError
from landscope.measures.consistency import disagreement, jensen_shannon, linear_cka
from landscope.measures.measuring import measured
from landscope.measures.resolve import resolve_measures


def rows(n: int = 120, seed: int = 0) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 4, generator=rng, dtype=torch.float64)
    return x, (x[:, 0] + 0.5 * torch.randn(n, generator=rng, dtype=torch.float64) > 0).long()


def net(seed: int = 0, width: int = 6) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, width), nn.ReLU(), nn.Linear(width, 2)).double()


def moved(model: nn.Module, by: float) -> nn.Module:
    other = copy.deepcopy(model)
    with torch.no_grad():
        for p in other.parameters():
            p.add_(by * torch.randn(p.shape, generator=torch.Generator().manual_seed(5), dtype=p.dtype))
    return other


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x), y, reduction="none").detach()


def test_a_difference_of_means_has_the_error_of_its_pairs() -> None:
    """By hand: the spread over the same sixteen groups of the paired difference of losses."""
    x, y = rows()
    first, other = net(), moved(net(), 0.02)
    found = ls.compare({"a": first, "b": other}, (x, y), ["loss"])
    (difference,) = found["loss"]
    apart = losses(other, x, y) - losses(first, x, y)
    groups = torch.stack([apart[g::16].mean() for g in range(16)])
    assert difference.paired
    assert difference.value == pytest.approx(float(apart.mean()), rel=1e-6)
    assert difference.data == pytest.approx(float(groups.std()) / 4, rel=1e-6)
    alone = math.hypot(difference.first.data_stderr or 0, difference.other.data_stderr or 0)
    assert difference.data < 0.3 * alone, "pairs show what the values by themselves cannot"


def test_measures_that_are_no_means_are_not_paired() -> None:
    x, y = rows()
    found = ls.compare({"a": net(), "b": net(1)}, (x, y), ["gradient_norm", "hessian_top_eigenvalue", "l2_norm"])
    assert not any(difference.paired for difference in found)
    (norm,) = found["gradient_norm"]
    assert norm.data == pytest.approx(math.hypot(norm.first.data_stderr or 0, norm.other.data_stderr or 0))
    (weights,) = found["l2_norm"]
    assert weights.data is None
    assert weights.verdict is Verdict.REAL


def test_what_is_no_mean_here_is_found_out() -> None:
    """The gradient norm asked for as if it were a mean over rows: its mean over groups is not its value."""
    probe = ls.Probe(net(), rows())
    chosen = {"loss": resolve_measures("gradient_norm")["gradient_norm"]}
    assert by_groups(probe, chosen, measured(probe, chosen)) == {}


@pytest.mark.parametrize(
    ("first", "other", "own", "data", "verdict"),
    [
        (ls.Estimate(1.0), ls.Estimate(1.0), 0.0, None, Verdict.SAME),
        (ls.Estimate(1.0), ls.Estimate(2.0), 0.1, 0.1, Verdict.REAL),
        (ls.Estimate(1.0), ls.Estimate(2.0), 0.1, 2.0, Verdict.HERE),
        (ls.Estimate(1.0), ls.Estimate(2.0), 2.0, 0.1, Verdict.OPEN),
        (ls.Estimate(1.0, status=ls.Status.LOWER_BOUND), ls.Estimate(9.0), 0.0, 0.1, Verdict.OPEN),
    ],
)
def test_verdicts(first: ls.Estimate, other: ls.Estimate, own: float, data: float | None, verdict: Verdict) -> None:
    difference = Difference("loss", "b", first, other, own, data, False, math.inf, 1)
    assert difference.verdict is verdict
    many = Difference("loss", "b", first, other, own, data, True, 3.0, 100)
    assert many.quantile > 3 * difference.quantile > 5


def test_models_that_are_the_same_differ_in_nothing() -> None:
    found = ls.compare({"a": net(), "b": net()}, rows(), ["loss", "hessian_trace", "fisher_rao", "l2_norm"])
    assert {difference.verdict for difference in found} <= {Verdict.SAME, Verdict.OPEN}
    alike = found.agreements["b"]
    assert (alike.disagreement.value, alike.divergence.value) == (0.0, 0.0)
    assert alike.cka.value == pytest.approx(1.0)
    assert alike.line is not None
    assert alike.line.height == 0


def test_agreement_is_that_of_the_library() -> None:
    x, y = rows()
    one, two = net(), net(1)
    alike = ls.compare({"a": one, "b": two}, (x, y), ["loss"]).agreements["b"]
    logits = torch.stack([one(x), two(x)]).detach()
    features = [model[1](model[0](x)).detach() for model in (one, two)]
    assert alike.disagreement.value == pytest.approx(disagreement(logits).mean)
    assert alike.divergence.value == pytest.approx(jensen_shannon(logits).mean)
    assert alike.cka.value == pytest.approx(linear_cka(features, debiased=True).mean)
    assert alike.disagreement.data_stderr == pytest.approx(disagreement(logits).data_stderr)


def test_tokens_without_a_label_do_not_count() -> None:
    class Tokens(nn.Module):
        def __init__(self, seed: int) -> None:
            super().__init__()
            torch.manual_seed(seed)
            self.table = nn.Embedding(5, 3)

        def forward(self, x: Tensor) -> Tensor:
            return self.table(x).transpose(1, 2)

    x = torch.arange(40).reshape(10, 4) % 5
    y = x % 3
    y[:, 3] = -100
    one, two = Tokens(0), Tokens(1)
    alike = ls.compare({"a": one, "b": two}, (x, y), ["loss"]).agreements["b"]
    truth = (one(x[:, :3]).argmax(1) != two(x[:, :3]).argmax(1)).double().mean()
    assert alike.disagreement.value == pytest.approx(float(truth))
    assert "no linear or convolutional layer" in alike.cka.reason


def test_other_architectures_have_no_line_and_are_warned_of() -> None:
    found = ls.compare({"a": net(), "b": net(width=9)}, rows(), ["loss", "l2_norm"])
    assert found.agreements["b"].line is None
    printed = str(found)
    assert "There is no line between them" in printed
    assert "must not be compared (l2_norm)" in printed
    assert {d.measure: d.verdict is Verdict.APART for d in found} == {"loss": False, "l2_norm": True}
    assert "l2_norm" not in printed.partition("What differs")[2].partition("How alike")[0]
    assert found.title == "a (44 parameters), b (65 parameters) · 120 samples · cross_entropy · eval"
    assert found.plot() is not None


def test_each_model_is_compared_as_far_as_its_own_architecture_goes() -> None:
    """Of three, the second is like the first; what is unchanged by rescaled layers is compared with all."""
    models = {"a": net(), "b": net(1), "wide": net(width=9)}
    found = ls.compare(models, rows(), ["loss", "hessian_top_eigenvalue", "fisher_rao"])
    apart = {(d.model, d.measure) for d in found if d.verdict is Verdict.APART}
    assert apart == {("wide", "hessian_top_eigenvalue")}
    topics = [remark.topic for remark in found.reading if "must not be compared" in remark.text]
    assert topics == ["Caution: wide"]


def test_models_of_other_classes_are_compared_in_what_they_share() -> None:
    wider = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3)).double()
    found = ls.compare({"a": net(), "b": wider}, rows(), ["loss"])
    assert found.agreements["b"].disagreement.reason == "the models predict 2 and 3 classes"
    assert [d.measure for d in found] == ["loss"]
    assert "disagree" not in str(found)


def test_a_shuffled_loader_is_read_once_and_paired() -> None:
    x, y = rows()
    loader = DataLoader(TensorDataset(x, y), batch_size=20, shuffle=True)
    shuffled = ls.compare({"a": net(), "b": net(1)}, loader, ["loss", "error"])
    straight = ls.compare({"a": net(), "b": net(1)}, (x, y), ["loss", "error"])
    for one, two in zip(shuffled, straight, strict=True):
        assert one.value == pytest.approx(two.value)
        assert one.paired
    assert shuffled.agreements["b"].disagreement.value == straight.agreements["b"].disagreement.value


def test_regression_several_models_and_probes(tmp_path: Path) -> None:
    x, _ = rows()
    data = (x, x[:, :2])
    probes = {name: ls.Probe(net(seed), data, "mse") for seed, name in enumerate("abc")}
    found = ls.compare(probes, measures=["loss", "hessian_trace"])
    assert [d.model for d in found] == ["b", "b", "c", "c"]
    assert "not one of classes" in found.agreements["b"].disagreement.reason
    assert "loss barrier" in found.agreements["c"].items()
    frame = found.to_frame()
    assert frame.loc[0, "difference"] == found.differences[0].value
    plain = json.loads(found.save(tmp_path / "c.json").read_text())
    assert plain["differences"][0]["verdict"] in {v.value for v in Verdict}
    assert np.isfinite(plain["agreements"]["b"]["line"]["loss"]).all()
    assert "<table" in found._repr_html_()
    found.plot().savefig(tmp_path / "c.png")


def test_refusals() -> None:
    x, y = rows()
    probe = ls.Probe(net(), (x, y))
    with pytest.raises(OperandError, match="at least two models"):
        ls.compare({"a": net()}, (x, y))
    with pytest.raises(OperandError, match="no data"):
        ls.compare({"a": net(), "b": net()})
    with pytest.raises(OperandError, match="not some of each"):
        ls.compare({"a": net(), "b": probe})
    with pytest.raises(OperandError, match="hold their data already"):
        ls.compare({"a": probe, "b": probe}, (x, y))
    with pytest.raises(OperandError, match="different numbers of samples"):
        ls.compare({"a": probe, "b": ls.Probe(net(), (x[:50], y[:50]))})
