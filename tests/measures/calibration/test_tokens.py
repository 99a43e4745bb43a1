"""Scores of tokens: values against brute force, bars over sequences, whatever the batches."""

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from landscope import measure
from landscope.core.estimate import Status
from landscope.measures.calibration import ece, nll
from landscope.measures.calibration.tokens import TokenScores
from landscope.probe.loss.answers import LabelScores, label_scores
from landscope.probe.loss.losses import LOSSES
from landscope.probe.loss.targets import IGNORED

N, T, V = 30, 9, 5
KEYS = ["accuracy", "error", "nll", "brier", "ece", "mce", "ace", "loss"]


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed, self.head = nn.Embedding(V, 4), nn.Linear(4, V)

    def forward(self, ids: Tensor) -> Tensor:
        return 3 * self.head(torch.tanh(self.embed(ids).cumsum(1)))


def drawn() -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(0)
    ids, labels = (torch.randint(0, V, (N, T), generator=g) for _ in range(2))
    lengths = torch.randint(1, T + 1, (N, 1), generator=g)
    return ids, labels.masked_fill(torch.arange(T) >= lengths, IGNORED)


def test_as_if_tokens_were_samples() -> None:
    """The values are those of all tokens in one heap."""
    net, (ids, labels) = Tagger().double(), drawn()
    z = net(ids)[labels != IGNORED].detach()
    found = measure(net, (ids, labels), KEYS)
    y = labels[labels != IGNORED]
    assert found["accuracy"].value == pytest.approx(float((z.argmax(1) == y).double().mean()))
    assert found["nll"].value == pytest.approx(float(F.cross_entropy(z, y)), rel=1e-9)
    assert found["nll"].value == pytest.approx(found["loss"].value, rel=1e-9)
    assert found["ece"].value == pytest.approx(ece(z, y).value, rel=1e-9)
    assert found["brier"].value == pytest.approx(
        float((z.softmax(1) - F.one_hot(y, V)).square().sum(1).mean()), rel=1e-9
    )
    assert found["accuracy"].details["tokens"] == len(y)
    assert found["accuracy"].details["samples"] == N


def test_by_sequence_each_counts_the_same() -> None:
    net, (ids, labels) = Tagger().double(), drawn()
    found = measure(net, (ids, labels), KEYS, per="sequence")
    log_p, kept = net(ids).detach().log_softmax(2), labels != IGNORED
    counts = kept.sum(1)
    right = ((log_p.argmax(2) == labels) & kept).sum(1) / counts
    losses = -(log_p.gather(2, labels.clamp(min=0)[..., None])[..., 0] * kept).sum(1) / counts
    assert found["accuracy"].value == pytest.approx(float(right.double().mean()))
    assert found["nll"].value == pytest.approx(float(losses.mean()), rel=1e-9)
    assert found["loss"].value == pytest.approx(float(losses.mean()), rel=1e-9)
    assert found["accuracy"].data_stderr == pytest.approx(float(right.double().std() / math.sqrt(N)), rel=1e-6)
    assert found["ece"].value != pytest.approx(measure(net, (ids, labels), ["ece"])["ece"].value, rel=1e-3)


@pytest.mark.parametrize("per", ["token", "sequence"])
def test_batches_and_their_order_change_nothing(per: str) -> None:
    net, (ids, labels) = Tagger().double(), drawn()
    whole = measure(net, (ids, labels), KEYS, per=per)
    order = torch.randperm(N, generator=torch.Generator().manual_seed(1))
    ragged = []
    for rows in order.split(4):
        longest = int((labels[rows] != IGNORED).sum(1).max())
        ragged.append((ids[rows, :longest], labels[rows, :longest]))
    cut = measure(net, ragged, KEYS, per=per)
    for key in KEYS:
        assert cut[key].value == pytest.approx(whole[key].value, rel=1e-9), key
    for key in ("accuracy", "ece", "brier"):
        assert cut[key].data_stderr == pytest.approx(whole[key].data_stderr, rel=1e-9), key


def test_single_classes_do_not_apply() -> None:
    found = measure(Tagger(), drawn(), ["classwise_ece"])["classwise_ece"]
    assert found.status is Status.NOT_APPLICABLE
    assert "every class" in found.reason


def _simulated(seed: int, sequences: int) -> tuple[LabelScores, float]:
    """Sequences of different lengths whose tokens are right together: the share of right tokens of the whole world is ½."""
    g = torch.Generator().manual_seed(seed)
    counts = torch.randint(1, 20, (sequences,), generator=g)
    skill = torch.rand(sequences, generator=g).repeat_interleave(counts)
    right = (torch.rand(len(skill), generator=g) < skill).double()
    values = torch.stack([torch.full_like(right, 0.5), right, torch.full_like(right, -0.7), right], 1)
    return LabelScores(counts, torch.zeros(len(right), dtype=torch.long), values), 0.5


@pytest.mark.parametrize("by_sequence", [False, True])
def test_error_bars_cover_where_tokens_are_alike(by_sequence: bool) -> None:
    inside = 0
    for seed in range(400):
        scores, truth = _simulated(seed, 40)
        tokens = TokenScores.of(scores, by_sequence)
        found = tokens.mean(tokens.correct)
        inside += abs(found.value - truth) <= 1.96 * found.stderr
    assert 0.915 < inside / 400 < 0.98


def test_bars_of_binned_errors_are_over_sequences() -> None:
    values, bars = [], []
    for seed in range(150):
        tokens = TokenScores.of(_simulated(seed, 40)[0])
        found = ece(tokens, tokens.labels, resamples=100)
        signed = float((tokens.correct - tokens.confidence).mean())  # one bin: |mean gap|
        values.append(signed)
        bars.append(found.stderr if abs(signed) > 2 * found.stderr else math.nan)
    spread = float(torch.tensor(values).std())
    known = torch.tensor(bars)[~torch.tensor(bars).isnan()]
    assert len(known) > 3
    assert float(known.mean()) == pytest.approx(spread, rel=0.25)


def test_tokens_of_many_classes_are_scored_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    net, (ids, labels) = Tagger().double(), drawn()
    loss = LOSSES["cross_entropy"].with_classes_last()
    whole = label_scores(loss, net(ids).detach(), labels)
    monkeypatch.setattr("landscope.probe.loss.answers.AT_ONCE", 7)
    cut = label_scores(loss, net(ids).detach(), labels)
    assert whole is not None
    assert cut is not None
    assert torch.equal(whole.values, cut.values)
    tokens = TokenScores.of(whole)
    assert nll(tokens, tokens.labels).value == pytest.approx(
        float(F.cross_entropy(net(ids).flatten(0, 1), labels.flatten()))
    )


JACKKNIFED: dict[str, dict[str, object]] = {
    "loss": {},
    "accuracy": {},
    "hessian_top_eigenvalue": {"tol": 1e-7},
    "fisher_rao": {},
    "gradient_norm": {},
    "relative_flatness": {"layer": "head"},
}


def test_errors_over_the_data_are_those_of_leaving_sequences_out() -> None:
    """Short and long sequences: what another sample would change is not how much their lengths differ."""
    n = 14
    net, (ids, labels) = Tagger().double(), (each[:n] for each in drawn())
    whole = measure(net, (ids, labels), JACKKNIFED)
    without = []
    for left_out in range(n):
        rows = torch.arange(n) != left_out
        without.append(measure(net, (ids[rows], labels[rows]), JACKKNIFED))
    for key in JACKKNIFED:
        values = torch.tensor([each[key].value for each in without], dtype=torch.float64)
        error = (n - 1) / math.sqrt(n) * float(values.std())
        assert whole[key].data_stderr == pytest.approx(error, rel=0.25), key
