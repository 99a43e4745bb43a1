"""Budgets of seconds and passes: which are refused, and that one measure that does not apply costs the others nothing."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks import BY_NAME
from torch import Tensor, nn

from landscope import Estimate, Loss, Measure, Probe, Status, errors, measure
from landscope.measures.by_layer import by_layer
from landscope.measures.measuring import Budget
from landscope.planes import landscape, line
from landscope.probe.totals import Ledger, PieceSize, checked_limit

NET = BY_NAME["relu_mlp"]
ROWS = 48


def probe() -> Probe:
    return Probe(NET.model(), NET.data(30))


def mlp(outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, outputs))


def inputs() -> Tensor:
    return torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(1))


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = nn.Embedding(7, 4), nn.Linear(4, 7)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.tanh(self.embedding(tokens)))


def token_loss(z: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(z.transpose(1, 2), y, reduction="none").mean(1)


def own_loss(z: Tensor, y: Tensor) -> Tensor:
    return (z - y).abs().pow(1.5).sum(1)


def kinds() -> dict[str, tuple[nn.Module, tuple[Tensor, Tensor], object]]:
    rng = torch.Generator().manual_seed(2)
    x = inputs()
    tokens = torch.randint(0, 7, (ROWS, 4), generator=rng)
    real = torch.randn(ROWS, 3, generator=rng)
    return {
        "multi-label": (mlp(3), (x, (real > 0).float()), "binary_cross_entropy"),
        "Huber": (mlp(3), (x, real), nn.HuberLoss()),
        "soft labels": (mlp(3), (x, real.softmax(1)), "cross_entropy"),
        "own loss": (mlp(3), (x, real), Loss(own_loss, "per_sample")),
        "language model": (Tokens(), (tokens, tokens.roll(-1, 1)), Loss(token_loss, "per_sample")),
        "auto-encoder": (mlp(5), (x, x), "mse"),
    }


@pytest.mark.parametrize("kind", list(kinds()))
def test_a_budget_where_accuracy_does_not_apply(kind: str) -> None:
    model, data, loss = kinds()[kind]
    report = measure(model, data, loss=loss, seconds=300.0, progress=False)  # type: ignore[arg-type]
    assert report["accuracy"].status is Status.NOT_APPLICABLE
    assert [name for name, e in report.items() if e.status is Status.FAILED] == []
    assert sum(e.status.has_value for e in report.values()) > len(report) / 2


@dataclass(frozen=True, kw_only=True)
class Raising(Measure):
    """Spends time on every piece, and raises in the one that is named."""

    key = "aaa"
    at: int = 0

    def passes(self, probe: Probe) -> float:
        return 0.1

    def _measure(self, probe: Probe) -> Estimate:
        seen: list[int] = []

        def piece(batch: object) -> tuple[Tensor, ...]:
            seen.append(1)
            if len(seen) > self.at:
                time.sleep(0.02)
                raise ZeroDivisionError("in a measure of one's own")
            return (torch.zeros(()),)

        probe.total(piece, load=0.25)
        raise AssertionError("it raises before")


@pytest.mark.parametrize("at", [0, 2])
def test_a_measure_that_raises_says_nothing_about_the_rate(at: int) -> None:
    point = probe()
    point._piece_sizes[0.25] = PieceSize(10)
    before = point.ledger.passes_per_second
    report = measure(point, measures={"aaa": Raising(at=at)}, seconds=60.0)
    assert "ZeroDivisionError" in report["aaa"].reason
    assert point.ledger.passes_per_second == before
    report = measure(point, measures={"aaa": Raising(at=at), "gradient_norm": {}, "hessian_trace": {}}, seconds=60.0)
    assert report["gradient_norm"].status.has_value
    assert report["hessian_trace"].status.has_value
    assert point.ledger.passes_per_second is not None


def test_the_rate_is_that_of_work_done_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("landscope.probe.totals.time.monotonic", lambda: clock[0])
    ledger = Ledger()
    assert ledger.passes_per_second is None
    with pytest.raises(KeyError), ledger.timed(torch.device("cpu")):
        clock[0] += 5.0
        raise KeyError
    assert ledger.passes_per_second is None
    with ledger.timed(torch.device("cpu")):
        clock[0] += 2.0
        ledger.add(6.0)
    with pytest.raises(KeyError), ledger.timed(torch.device("cpu")):
        ledger.add(0.5)
        clock[0] += 1000.0
        raise KeyError
    assert ledger.passes_per_second == 3.0
    assert ledger.passes == 6.5


def test_before_any_work_the_share_is_whole_and_after_the_end_there_is_none() -> None:
    point = Probe(NET.model(), NET.data(30))
    point.ledger = Ledger()
    assert Budget(point, time.monotonic(), 60.0, None).share([(5.0, 5.0)]) == math.inf
    over = Budget(point, time.monotonic() - 100.0, 60.0, None)
    with pytest.raises(errors.BudgetSpentError, match="0 passes are left"):
        over.share([(5.0, 5.0)])
    with over.limited(), pytest.raises(errors.BudgetSpentError):
        point.value()


SENSELESS = [-1, 0, 0.0, -0.5, math.nan, -math.inf, "60", "abc", True, [60.0], torch.ones(2), np.array([1.0, 2.0]), 1j]


@pytest.mark.parametrize("limit", SENSELESS, ids=repr)
def test_budgets_that_mean_nothing_are_refused_everywhere(limit: object) -> None:
    point = probe()
    for name in ("seconds", "passes"):
        with pytest.raises(errors.SpecError, match=f"{name} must be a positive number, got"):
            measure(point, measures=["l2_norm"], **{name: limit})  # type: ignore[arg-type]
        with pytest.raises(errors.SpecError, match=name), point.ledger.limited(**{name: limit}):  # type: ignore[arg-type]
            pass
    for function in (by_layer, landscape, line):
        with pytest.raises(errors.SpecError, match="seconds must be a positive number, got"):
            function(point, seconds=limit)  # type: ignore[operator]


def test_nothing_is_read_before_a_budget_is_refused() -> None:
    def rows() -> None:
        raise AssertionError("the data was read")

    with pytest.raises(errors.SpecError, match="seconds"):
        measure(NET.model(), rows, seconds=-1)  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [60, 60.0, np.float32(60), np.int64(60), torch.tensor(60.0)], ids=repr)
def test_every_kind_of_number_is_a_budget(limit: float) -> None:
    assert checked_limit("seconds", limit) == 60.0
    assert measure(probe(), measures=["gradient_norm"], seconds=limit)["gradient_norm"].status is Status.EXACT


def test_infinity_is_no_limit() -> None:
    point = probe()
    report = measure(point, measures=["gradient_norm"], seconds=math.inf, passes=math.inf)
    assert report["gradient_norm"].status is Status.EXACT
    assert landscape(point, resolution=5, seconds=math.inf).status is Status.EXACT


def test_layers_after_the_end_of_a_budget_say_so() -> None:
    report = by_layer(probe(), ["gradient_norm"], seconds=1e-6)
    for estimate in report["gradient_norm"].values():
        assert estimate.status is Status.FAILED
        assert "budget" in estimate.reason
