"""Budgets, Ctrl-C and errors: whatever ends the work, the best estimates so far stand, and nothing has `failed` for it."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from networks import BY_NAME
from torch import Tensor, nn

from landscope import Estimate, Loss, Measure, Probe, Status, errors, measure
from landscope.measures.by_layer import by_layer
from landscope.measures.measuring import FIRST_LOOK, Budget
from landscope.planes import landscape, line
from landscope.probe import points
from landscope.probe.totals import Ledger, PieceSize, checked_limit

NET = BY_NAME["relu_mlp"]
ROWS = 48


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The time of the tests that are not about real time: a busy machine does not spend their budgets."""
    held = Clock()
    monkeypatch.setattr("time.monotonic", held)
    return held


class Clock:
    """Microseconds between two looks, and what a test adds."""

    def __init__(self) -> None:
        self.seconds = 1000.0

    def __call__(self) -> float:
        self.seconds += 1e-6
        return self.seconds


def probe() -> Probe:
    return Probe(NET.model(), NET.data(30))


def mlp(outputs: int) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, outputs))


def inputs() -> Tensor:
    return torch.randn(ROWS, 5, generator=torch.Generator().manual_seed(1))


class Named(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = mlp(3)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        return {"found": self.inner(x)}


def named_loss(outputs: dict[str, Tensor], y: Tensor) -> Tensor:
    return (outputs["found"] - y).square().mean(1)


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
def test_a_budget_where_accuracy_does_not_apply(kind: str, clock: Clock) -> None:
    model, data, loss = kinds()[kind]
    report = measure(model, data, "all", loss=loss, seconds=300.0, progress=False)  # type: ignore[arg-type]
    assert report["accuracy"].status is Status.NOT_APPLICABLE
    assert [name for name, e in report.items() if e.status is Status.FAILED] == []
    assert sum(e.status.has_value for e in report.values()) > len(report) / 2


def test_nothing_fails_where_the_loss_alone_knows_which_output_it_takes(clock: Clock) -> None:
    real = torch.randn(ROWS, 3, generator=torch.Generator().manual_seed(2))
    report = measure(Named(), (inputs(), real), "all", loss=named_loss, seconds=300.0)
    plain = measure(Named().inner, (inputs(), real), ["hessian_trace"], loss="mse")
    assert [name for name, e in report.items() if e.status is Status.FAILED] == []
    for name in ("accuracy", "ece", "nll"):
        assert report[name].status is Status.NOT_APPLICABLE
        assert "the model returns a dict" in report[name].reason
    assert report["hessian_trace"].value == pytest.approx(plain["hessian_trace"].value, rel=1e-3)


@dataclass(frozen=True, kw_only=True)
class Raising(Measure):
    """Spends time on every piece, and raises in the one that is named."""

    key = "aaa"
    clock: Clock
    at: int = 0

    def _measure(self, probe: Probe) -> Estimate:
        seen: list[int] = []

        def piece(batch: object) -> tuple[Tensor, ...]:
            seen.append(1)
            if len(seen) > self.at:
                self.clock.seconds += 0.02
                raise ZeroDivisionError("in a measure of one's own")
            return (torch.zeros(()),)

        probe.total(piece, load=0.25)
        raise AssertionError("it raises before")


@pytest.mark.parametrize("at", [0, 2])
def test_a_measure_that_raises_says_nothing_about_the_rate(at: int, clock: Clock) -> None:
    point = probe()
    point._piece_sizes[0.25] = PieceSize(10)
    before = point.ledger.passes_per_second
    report = measure(point, measures={"aaa": Raising(clock=clock, at=at)}, seconds=60.0)
    assert "ZeroDivisionError" in report["aaa"].reason
    if at == 0:  # pieces that were done count, the one that raised does not
        assert point.ledger.passes_per_second == before
    report = measure(
        point, measures={"aaa": Raising(clock=clock, at=at), "gradient_norm": {}, "hessian_trace": {}}, seconds=60.0
    )
    assert report["gradient_norm"].status.has_value
    assert report["hessian_trace"].status.has_value
    assert point.ledger.passes_per_second is not None


def test_the_rate_is_that_of_work_done_to_its_end(clock: Clock) -> None:
    ledger = Ledger()
    assert ledger.passes_per_second is None
    with pytest.raises(KeyError), ledger.timed(torch.device("cpu")):
        clock.seconds += 5.0
        raise KeyError
    assert ledger.passes_per_second is None
    with ledger.timed(torch.device("cpu")):
        clock.seconds += 2.0
        ledger.add(6.0)
    with pytest.raises(KeyError), ledger.timed(torch.device("cpu")):
        ledger.add(0.5)
        clock.seconds += 1000.0
        raise KeyError
    assert ledger.passes_per_second == pytest.approx(3.0, rel=1e-5)
    assert ledger.passes == 6.5


def test_after_the_end_of_a_budget_no_work_is_done() -> None:
    point = Probe(NET.model(), NET.data(30))
    over = Budget(point, time.monotonic() - 1.0, 1e-9, None)
    assert over.spent
    with over.share(3), pytest.raises(errors.BudgetSpentError):
        while True:  # the least share is a nanosecond
            point.value()


def test_checks_that_take_long_leave_time_for_a_first_look(clock: Clock) -> None:
    point = Probe(NET.model(), NET.data(30))
    start = clock()
    clock.seconds += 100.0  # of checks on a busy machine
    budget = Budget(point, start, 60.0, None)
    assert not budget.spent
    with budget.share(1):
        assert point.ledger.seconds_left() == pytest.approx(FIRST_LOOK * 100.0, rel=1e-5)


def test_what_costs_nothing_is_said_after_the_end_of_a_budget() -> None:
    report = measure(Probe(NET.model(), NET.data(30)), None, ["l2_norm", "adaptive_sharpness", "loss"], seconds=1e-9)
    assert [report[name].status for name in report] == [Status.EXACT, Status.LOWER_BOUND, Status.SKIPPED]


def test_outputs_that_bounds_have_read_are_said_after_the_end_of_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(points, "SMALL_WORK", 0)
    net = nn.Sequential(nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 3))
    data = torch.randn(400, 5), torch.arange(400) % 3
    report = measure(
        Probe(net, data), None, ["loss", "accuracy", "hessian_trace", "hessian_top_eigenvalue"], seconds=1e-9
    )
    assert report["hessian_top_eigenvalue"].status is Status.LOWER_BOUND
    assert report["loss"].status.has_value
    assert report["accuracy"].status.has_value


# What a budget promises


@dataclass(frozen=True, kw_only=True)
class Steps(Measure):
    """1, 1/2, 1/4 … with the error bars that they have, and then what is asked for."""

    key = "steps"
    stop_at: int = 3
    error: type[BaseException] = ZeroDivisionError

    def refine(self, probe: Probe) -> Iterator[Estimate | None]:
        for k in range(10):
            if k == self.stop_at:
                raise self.error("in the middle")
            yield Estimate(0.5**k, 0.5**k, status=Status.RUNNING)


def test_ctrl_c_keeps_what_is_there(clock: Clock) -> None:
    report = measure(
        probe(), measures={"loss": {}, "steps": Steps(error=KeyboardInterrupt), "zzz": Steps(stop_at=99)}, seconds=300.0
    )
    assert report["loss"].status is Status.EXACT
    assert (report["steps"].value, report["steps"].stderr) == (0.25, 0.25)
    assert report["steps"].status is Status.INTERRUPTED
    assert report["zzz"].status is Status.INTERRUPTED
    assert report["zzz"].value == 1.0


def test_ctrl_c_before_a_first_estimate_leaves_it_skipped() -> None:
    report = measure(probe(), measures={"steps": Steps(stop_at=0, error=KeyboardInterrupt), "zzz": Steps(stop_at=99)})
    assert {e.status for e in report.values()} == {Status.SKIPPED}


def test_an_error_in_a_refinement_keeps_the_best_estimate() -> None:
    report = measure(probe(), measures={"steps": Steps(), "loss": {}})
    assert (report["steps"].value, report["steps"].status) == (0.25, Status.INTERRUPTED)
    assert "ZeroDivisionError: in the middle" in report["steps"].reason
    assert report["loss"].status is Status.EXACT


def test_an_error_before_a_first_estimate_has_failed() -> None:
    report = measure(probe(), measures={"steps": Steps(stop_at=0)})
    assert report["steps"].status is Status.FAILED


def test_a_stream_that_ends_above_its_tolerance_says_so() -> None:
    (found,) = measure(probe(), measures={"steps": Steps(stop_at=99)}).values()
    assert found.status is Status.BUDGET_SPENT
    assert found.value == 0.5**9


@pytest.mark.parametrize("passes", [0.1, 1.0, 5.0, 50.0])
def test_nothing_has_failed_for_want_of_passes(passes: float) -> None:
    report = measure(probe(), passes=passes, progress=False)
    assert [(name, e.reason) for name, e in report.items() if e.status is Status.FAILED] == []
    assert all(e.status.has_value or e.reason for e in report.values())


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [1.0, 3.0])
@pytest.mark.parametrize("rows", [200, 5000])
def test_a_second_is_enough_for_something(seconds: float, rows: int) -> None:
    report = measure(NET.model(), NET.data(rows), seconds=seconds, progress=False)
    assert [(name, e.reason) for name, e in report.items() if e.status is Status.FAILED] == []
    assert sum(e.status.has_value for e in report.values()) > 5


SENSELESS = [
    -1,
    0,
    0.0,
    -0.5,
    math.nan,
    -math.inf,
    "60",
    "abc",
    True,
    [60.0],
    torch.ones(2),
    np.array([1.0, 2.0]),
    1j,
    10**400,
]


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
def test_every_kind_of_number_is_a_budget(limit: float, clock: Clock) -> None:
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
        assert estimate.status is Status.SKIPPED
        assert "budget" in estimate.reason or "not measured" in estimate.reason


def test_every_layer_gets_something_of_a_budget(clock: Clock) -> None:
    report = by_layer(probe(), ["l2_norm", "gradient_norm"], seconds=60.0)
    assert all(e.status is Status.EXACT for layers in report.estimates.values() for e in layers.values())
    alone = by_layer(probe(), ["gradient_norm"])
    for layer, estimate in alone["gradient_norm"].items():
        assert estimate.value == report["gradient_norm"][layer].value
