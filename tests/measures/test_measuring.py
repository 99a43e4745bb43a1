"""`landscope.measure`: choosing, sharing, budgets, reports."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest
import torch
from networks import BY_NAME
from torch import Tensor, nn

from landscope import MEASURES, Estimate, Probe, Report, Status, errors, measure
from landscope.core.memory import GPU_SHARE
from landscope.curvature import operator
from landscope.measures.by_layer import by_layer
from landscope.measures.measuring import enough_data
from landscope.measures.resolve import resolve_measures
from landscope.measures.sharpness.gradients import L2Norm
from landscope.probe import points

NET = BY_NAME["relu_mlp"]


def probe(n: int = 30) -> Probe:
    return Probe(NET.model(), NET.data(n))


def test_names_settings_and_objects() -> None:
    by_name = measure(NET.model(), NET.data(), measures=["l2_norm", "gradient_norm"])
    assert list(by_name) == ["l2_norm", "gradient_norm"]
    with_settings = measure(
        NET.model(),
        NET.data(24),
        measures={
            "relative_flatness": {"layer": "4"},
            "igs": {"rank": 4, "batch_size": 8},
            "adaptive_sharpness": {"rho": 1e-3, "p": "inf", "batch_size": 8, "steps": 3, "restarts": 1},
        },
    )
    assert with_settings["igs"].settings["rank"] == 4
    assert all(e.status.has_value for e in with_settings.values())
    two = measure(probe(), measures={"a": MEASURES["l2_norm"](), "b": MEASURES["l2_norm"](squared=True)})
    assert two["b"].value == pytest.approx(two["a"].value ** 2)
    assert measure(probe(), measures=MEASURES["l2_norm"]())["l2_norm"].value == two["a"].value


OWN = """
from dataclasses import dataclass
from landscope import Estimate, Measure

@dataclass(frozen=True, kw_only=True)
class Rows(Measure):
    factor: float = 1.0

    def _measure(self, probe):
        return Estimate(self.factor * probe.n_samples)
"""


def test_a_measure_of_ones_own_by_where_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "measures_of_mine.py").write_text(OWN)
    monkeypatch.chdir(tmp_path)
    found = measure(probe(30), measures=["measures_of_mine:Rows", "l2_norm"])
    assert found["Rows"].value == 30
    found = measure(probe(30), measures={"measures_of_mine:Rows": {"factor": 2.0}})
    assert found["measures_of_mine:Rows"].value == 60
    with pytest.raises(errors.SpecError, match="no function 'Columns'"):
        measure(probe(30), measures=["measures_of_mine:Columns"])
    with pytest.raises(errors.SpecError, match="measures_of_mine:dataclass is not a measure"):
        measure(probe(30), measures=["measures_of_mine:dataclass"])
    with pytest.raises(errors.LandscopeError, match="did you mean 'factor'"):
        measure(probe(30), measures={"measures_of_mine:Rows": {"fctor": 2.0}})


def test_bad_wishes() -> None:
    with pytest.raises(errors.UnknownNameError, match="did you mean 'hessian_trace'"):
        measure(NET.model(), NET.data(), measures=["hesian_trace"])
    with pytest.raises(errors.LandscopeError, match="did you mean 'tol'"):
        measure(NET.model(), NET.data(), measures={"hessian_trace": {"tolerance": 1}})
    with pytest.raises(errors.LandscopeError, match="asked for twice"):
        measure(NET.model(), NET.data(), measures=["l2_norm", "l2_norm"])
    with pytest.raises(errors.LandscopeError, match="no data"):
        measure(NET.model())
    with pytest.raises(errors.LandscopeError, match="already"):
        measure(probe(), NET.data())
    with pytest.raises(ValueError, match="tol"):
        measure(NET.model(), NET.data(), measures={"hessian_trace": {"tol": -1}})


def test_what_does_not_apply_is_listed_and_what_fails_stops_nothing() -> None:
    class Plain(nn.Module):
        """No linear or convolutional layer."""

        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.ones(4, dtype=torch.float64))

        def forward(self, x: Tensor) -> Tensor:
            return x * self.scale

    x = torch.randn(12, 4, dtype=torch.float64)
    report = measure(Plain(), (x, x.square()), ["relative_flatness", "igs", "l2_norm"], loss="mse")
    assert report["relative_flatness"].status is Status.NOT_APPLICABLE
    assert "linear" in report["relative_flatness"].reason
    assert report["igs"].status is Status.NOT_APPLICABLE
    assert report["l2_norm"].value == pytest.approx(2.0)

    calls = []

    def loss(z: Tensor, y: Tensor) -> Tensor:
        calls.append(1)
        if len(calls) > 30:
            raise ZeroDivisionError("in the user's loss")
        return nn.functional.cross_entropy(z, y, reduction="none")

    broken = measure(NET.model(), NET.data(), ["hessian_spectrum", "l2_norm"], loss=loss)
    assert broken["l2_norm"].status.has_value
    assert broken["hessian_spectrum"].status is Status.LOWER_BOUND  # what was there when it raised
    assert "in the user's loss" in broken["hessian_spectrum"].reason


def test_one_spectrum_serves_both_names_of_a_matrix() -> None:
    together = measure(probe(), measures=["ggn_spectrum", "fisher_spectrum"])
    costs = sorted(estimate.cost.passes for estimate in together.values())
    assert costs[0] == 0 < costs[1]
    assert together["fisher_spectrum"].value == together["ggn_spectrum"].value


def test_a_value_does_not_depend_on_what_else_is_asked_for() -> None:
    together = measure(probe(), measures="all")
    backwards = measure(probe(), measures=list(reversed(list(together))))
    for name, estimate in together.items():
        for other in (backwards[name], measure(probe(), measures=[name])[name]):
            assert (other.status, str(other.value)) == (estimate.status, str(estimate.value)), name
            assert (other.stderr, other.data_stderr) == (estimate.stderr, estimate.data_stderr), name


@pytest.mark.slow
@pytest.mark.parametrize("early", [False, True], ids=["passes are cheap", "early answers"])
def test_a_value_does_not_depend_on_what_else_is_asked_for_in_any_pair(
    early: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if early:
        monkeypatch.setattr(points, "SMALL_WORK", 0)
        monkeypatch.setattr(operator, "is_small", lambda _: True)  # no way to differentiate is chosen by a clock
    net, data = (
        NET.model().double(),
        tuple(part.double() if part.is_floating_point() else part for part in NET.data(100)),
    )
    names = list(MEASURES)

    def said(wanted: list[str]) -> dict[str, tuple[object, ...]]:
        report = measure(Probe(net, data), measures=wanted)
        return {name: (e.status, str(e.value), e.stderr, e.data_stderr, e.bracket) for name, e in report.items()}

    alone = {name: said([name])[name] for name in names}
    assert said(names) == said(names[::-1]) == alone
    for first, second in combinations(names, 2):
        assert said([second, first]) == {second: alone[second], first: alone[first]}, (first, second)


def test_a_budget_of_passes_is_kept() -> None:
    point = probe()
    before = point.ledger.passes
    report = measure(point, measures="all", passes=120)
    assert point.ledger.passes - before <= 120 + 24  # a block of products on all rows is one piece
    spent = [e for e in report.values() if e.status in (Status.BUDGET_SPENT, Status.FAILED)]
    assert spent
    assert all(e.reason for e in spent)
    assert report["l2_norm"].status is Status.EXACT


def test_a_budget_of_seconds_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: clock[0])

    class Slow(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = NET.model()

        def forward(self, x: Tensor) -> Tensor:
            clock[0] += 0.03
            return self.inner(x)

    report = measure(
        Slow(), NET.data(), ["hessian_spectrum", "hessian_trace", "l2_norm", "gradient_norm"], seconds=2.0, seed=0
    )
    assert clock[0] < 4.0
    assert report["gradient_norm"].status.has_value
    assert any("budget" in e.reason or e.status is Status.BUDGET_SPENT for e in report.values())


def test_report_as_table_frame_file_and_figure(tmp_path: Path) -> None:
    report = measure(probe(), measures=["l2_norm", "hessian_spectrum", "hessian_trace", "igs", "relative_flatness"])
    text = str(report)
    assert "relative_flatness" in text
    assert "48 parameters" in text or "73 parameters" in text
    frame = report.to_frame()
    assert frame.loc["l2_norm", "value"] == report["l2_norm"].value
    assert Report.load(report.save(tmp_path / "report.json")) == report
    assert json.loads((tmp_path / "report.json").read_text())["about"]["loss"] == "cross_entropy"
    report.plot().savefig(tmp_path / "report.png")
    assert (tmp_path / "report.png").stat().st_size > 5_000


def test_progress_lines_in_a_log(capsys: pytest.CaptureFixture[str]) -> None:
    measure(probe(), measures=["l2_norm", "gradient_norm"], progress=True)
    lines = capsys.readouterr().err.splitlines()
    assert [line.split("]")[0] for line in lines] == ["[1/2", "[2/2"]
    measure(probe(), measures=["l2_norm"])
    assert capsys.readouterr().err == ""
    report = measure(probe(), measures=["adaptive_sharpness", "hessian_top_eigenvalue"], progress=True, seconds=60)
    lines = sorted(line.split("] ")[1] for line in capsys.readouterr().err.splitlines())
    for (name, estimate), line in zip(report.items(), lines, strict=True):  # the last of each, not the first
        assert line.startswith(f"{name}: {estimate} ({estimate.status}), ")


def test_layers_one_by_one(tmp_path: Path) -> None:
    from landscope import Hessian

    point = probe()
    report = by_layer(point)
    frame = report.to_frame()
    assert list(frame.index) == ["0", "2", "4"]
    for layer, block in Hessian(point).blocks().items():
        values = torch.linalg.eigvalsh(block.dense())
        top = report["hessian_top_eigenvalue"][layer]
        assert top.value == pytest.approx(float(values[-1]), abs=2 * top.stderr + 1e-9)
        trace = report["hessian_trace"][layer]
        assert trace.value == pytest.approx(float(values.sum()), abs=4 * trace.stderr + 1e-9)
    assert frame["relative_flatness"].notna().all()
    report.plot().savefig(tmp_path / "layers.png")


def test_a_budget_gives_every_layer_a_first_estimate_before_any_is_refined(monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []

    def refine(one: L2Norm, point: Probe) -> Iterator[Estimate | None]:
        begun.append(f"first {one.layer}")
        yield Estimate(1.0, 0.5, status=Status.RUNNING)
        begun.append(f"last {one.layer}")
        yield Estimate(1.0)

    monkeypatch.setattr(L2Norm, "refine", refine)
    point = probe()
    by_layer(point, ["l2_norm"], seconds=60.0)
    layers = sorted(point.layers())
    assert begun == [f"{when} {layer}" for when in ("first", "last") for layer in layers]


@pytest.mark.slow
def test_enough_data_is_what_sampling_needs() -> None:
    """A prediction from 200 samples holds on sets of the size it names."""
    torch.manual_seed(0)
    model = NET.model()
    x = torch.randn(40_000, 4, dtype=torch.float64)
    y = torch.randint(0, 3, (40_000,))
    needed = enough_data("relative_flatness", Probe(model, (x[:2000], y[:2000])), rel=0.1)
    truth = MEASURES["relative_flatness"]()(Probe(model, (x, y))).value
    parts = [slice(a, a + needed) for a in range(0, 40_000 - needed, needed)][:200]
    one = MEASURES["relative_flatness"]()
    errors_ = [abs(one(Probe(model, (x[s], y[s]))).value / truth - 1) for s in parts]
    spread = (sum(e**2 for e in errors_) / len(errors_)) ** 0.5
    assert 0.07 < spread < 0.14
    with pytest.raises(errors.NotApplicableError, match="no error over the data"):
        enough_data("l2_norm", Probe(model, (x[:50], y[:50])))


def test_the_seed_of_the_probe_reaches_the_measures() -> None:
    assert resolve_measures(["hessian_trace"], seed=7)["hessian_trace"].seed == 7


@pytest.mark.parametrize("neighbours_leave_room", [True, False])
def test_a_measure_that_its_part_of_a_card_is_too_small_for_takes_what_is_free(
    neighbours_leave_room: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a CPU: the card is played; that torch obeys the fraction is torch's own matter."""
    allowed: list[float] = []
    monkeypatch.setenv(GPU_SHARE, "0.113")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: None)
    monkeypatch.setattr("torch.cuda.set_per_process_memory_fraction", allowed.append)
    plain = L2Norm._measure

    def hungry(self: L2Norm, probe: Probe) -> Estimate:
        if not neighbours_leave_room or GPU_SHARE in os.environ:
            raise errors.OutOfMemoryError("one sample does not fit into the memory of cuda")
        return plain(self, probe)

    monkeypatch.setattr(L2Norm, "_measure", hungry)
    net = nn.Linear(2, 2)
    found = measure(net, (torch.randn(4, 2), torch.arange(4) % 2), ["l2_norm", "loss"], device="cpu")
    assert (found["l2_norm"].status is Status.EXACT) is neighbours_leave_room
    assert found["loss"].status is Status.EXACT
    assert allowed == [1.0, 0.113]
    assert os.environ[GPU_SHARE] == "0.113"
    if not neighbours_leave_room:
        assert "does not fit" in found["l2_norm"].reason
        assert found["l2_norm"].details["out_of_memory"] is True


class Squeezed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x).squeeze()


def test_outputs_that_are_squeezed() -> None:
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(0))
    report = measure(Squeezed(), (x, x[:, 0]), loss="mse", measures=["fisher_trace", "igs", "relative_flatness"])
    assert report["fisher_trace"].status.has_value
    assert report["relative_flatness"].status.has_value
