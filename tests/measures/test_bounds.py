"""A worst case that a search found is a bound: status, bar, table, frame and page say so, and no value is lost."""

from __future__ import annotations

import json
import math
from dataclasses import fields, replace
from pathlib import Path

import pytest
import torch
from papers_made import measures_of
from perturbation_nets import probe_of, slow_losses
from torch import nn

from landscope import MEASURES, Estimate, Loss, Probe, Report, Status, measure
from landscope.measures import Measure
from landscope.measures.by_layer import LayerReport
from landscope.measures.consistency import loss_barrier
from landscope.measures.robustness import fgsm, pgd
from landscope.measures.sharpness.random_noise import RandomSharpness
from landscope.measures.sharpness.worst_case import AdaptiveSharpness, KeskarSharpness, SAMSharpness
from landscope.papers.explicit_regularisation.state_noise import StateNoiseSharpness
from landscope.report import write_report
from landscope.studies.record import MeasuredModel, Record, long_table, wide_table

SEARCHES = [key for key in MEASURES if {"steps", "restarts"} <= {f.name for f in fields(MEASURES[key])}]


def hard_probe() -> Probe:
    torch.manual_seed(2)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)).double()
    return Probe(net, (torch.randn(24, 4).double(), torch.arange(24) % 3))


def assert_bound(estimate: Estimate) -> None:
    assert estimate.status is Status.LOWER_BOUND
    assert estimate.stderr is None
    assert str(estimate).startswith("at least ")
    assert "ascent" in estimate.reason


def test_the_searches_are_those_that_are_known() -> None:
    assert set(SEARCHES) == {"adaptive_sharpness", "keskar_sharpness", "sam_sharpness"}


def test_restarts_find_more_and_one_ascent_does_not_claim_the_maximum() -> None:
    probe = hard_probe()
    one, ten = (AdaptiveSharpness(rho=0.5, batch_size=None, restarts=n)(probe) for n in (1, 10))
    assert ten.value > 1.05 * one.value
    assert_bound(one)
    assert_bound(ten)
    assert "1 ascent of 20 steps" in one.reason
    assert "10 ascents of 20 steps" in ten.reason
    assert one.data_stderr is not None


@pytest.mark.parametrize("batch_size", [None, 4])
@pytest.mark.parametrize("settings", [{"steps": 3}, {"steps": 1, "restarts": 2}, {"steps": 3, "restarts": 2}], ids=str)
@pytest.mark.parametrize("key", SEARCHES)
def test_every_search_gives_a_lower_bound(key: str, settings: dict[str, int], batch_size: int | None) -> None:
    options = {"batch_size": batch_size} if key != "keskar_sharpness" else {}
    assert_bound(MEASURES[key](**settings, **options)(probe_of("mlp")))


@pytest.mark.parametrize("name", ["mlp", "conv", "transformer"])
def test_one_step_of_sam_is_defined_by_the_step(name: str) -> None:
    probe = probe_of(name)
    estimate = SAMSharpness(rho=0.1)(probe)
    assert estimate.status is Status.EXACT
    assert estimate.stderr == 0.0
    leaves = {k: v.clone().requires_grad_() for k, v in probe.params.items()}
    with probe.measuring():
        loss = sum(probe.loss_sum(leaves, batch) for batch in probe.batches()) / probe.n_samples
        slope = torch.cat([g.reshape(-1) for g in torch.autograd.grad(loss, list(leaves.values()))])
    rise = slow_losses(name, 0.1 * slope / slope.norm()).mean() - slow_losses(name, torch.zeros_like(slope)).mean()
    assert estimate.value == pytest.approx(float(rise), rel=1e-9)
    assert SAMSharpness(rho=0.1, batch_size=4)(probe).status is Status.EXACT


@pytest.mark.parametrize("batch_size", [None, 2])
def test_where_the_gradient_is_zero_the_step_is_random_and_the_value_a_bound(batch_size: int | None) -> None:
    net = nn.Linear(2, 1, bias=False).double()
    nn.init.zeros_(net.weight)
    probe = Probe(net, (torch.randn(6, 2).double(), torch.zeros(6, 1).double()), "mse")
    assert_bound(SAMSharpness(batch_size=batch_size)(probe))


def test_a_ball_that_is_a_point_has_an_exact_maximum() -> None:
    net = nn.Linear(2, 2, bias=False).double()
    nn.init.zeros_(net.weight)
    estimate = AdaptiveSharpness(batch_size=None)(Probe(net, (torch.randn(6, 2).double(), torch.arange(6) % 2)))
    assert (estimate.value, estimate.stderr, estimate.status) == (0.0, 0.0, Status.EXACT)


def test_a_spent_budget_has_no_bar_either_and_says_that_there_may_be_more() -> None:
    probe = probe_of("conv")
    with probe.ledger.limited(passes=8.0):
        estimate = KeskarSharpness(steps=30)(probe)
    assert estimate.status is Status.LOWER_BOUND
    assert estimate.stderr is None
    assert "may be larger" in estimate.reason


def test_the_largest_of_some_directions_has_no_error_bar() -> None:
    probe = probe_of("mlp")
    assert RandomSharpness(statistic="max")(probe).stderr is None
    assert RandomSharpness(statistic="mean")(probe).stderr
    assert StateNoiseSharpness(statistic="max")(probe).stderr is None
    assert StateNoiseSharpness(statistic="mean_abs")(probe).stderr


def corrected() -> list[Measure]:
    return list(measures_of("adaptive-sharpness", "corrected").values())


def test_the_ascent_of_a_paper_is_a_bound_as_well() -> None:
    for one in corrected():
        assert_bound(replace(one, batch_size=4)(probe_of("mlp")))


def test_the_accuracy_under_a_search_is_an_upper_bound_of_the_robust_one() -> None:
    torch.manual_seed(0)
    net, x, y = nn.Linear(3, 2), torch.rand(40, 3), torch.arange(40) % 2
    searched = pgd(net, x, y, eps=0.02, steps=3).accuracy
    assert searched.status is Status.UPPER_BOUND
    assert searched.stderr is None
    assert searched.data_stderr is not None
    assert str(searched).startswith("at most ")
    step = fgsm(net, x, y, eps=0.02)
    assert step.accuracy.status is Status.UPPER_BOUND
    assert step.clean_accuracy.status is Status.EXACT
    assert pgd(net, x, y, eps=1.0, clip=None, steps=9).accuracy.status is Status.EXACT  # none right: it cannot be lower


def test_a_barrier_between_points_may_be_higher() -> None:
    def ends(value: float) -> Probe:
        net = nn.Linear(1, 1, bias=False).double()
        nn.init.constant_(net.weight, value)
        bump = Loss(lambda z, y: torch.exp(-((z - y) ** 2) / 0.02).sum(1), "per_sample")
        return Probe(net, (torch.ones(4, 1).double(), torch.full((4, 1), 0.3).double()), bump)

    a, b = ends(0.0), ends(1.0)
    few, many = loss_barrier(a, b, points=3).estimate, loss_barrier(a, b, points=41).estimate
    assert many.value > few.value
    assert few.status is Status.LOWER_BOUND
    assert "3 points" in few.reason


def report() -> Report:
    return measure(probe_of("mlp"), measures={"adaptive_sharpness": {"batch_size": 4, "steps": 3}, "loss": {}})


def test_table_frame_json_and_figure_show_the_bound(tmp_path: Path) -> None:
    found = report()
    bound = found["adaptive_sharpness"]
    assert f"at least {bound.value:.2g}"[:13] in str(found)
    assert "A bound and not the value: adaptive_sharpness." in str(found)
    frame = found.to_frame().loc["adaptive_sharpness"]
    assert frame["value"] == bound.value
    assert math.isnan(frame["stderr"])
    plain = json.loads(found.to_json())["estimates"]["adaptive_sharpness"]
    assert (plain["status"], plain["stderr"]) == ("lower bound", None)
    assert Report.from_json(found.to_json()) == found
    found.plot().savefig(tmp_path / "report.png")
    layers = LayerReport({"adaptive_sharpness": {"0": bound, "2": bound}})
    assert layers.to_frame()["adaptive_sharpness"].notna().all()
    assert layers.to_frame()["adaptive_sharpness_stderr"].isna().all()
    layers.plot().savefig(tmp_path / "layers.png")


def test_a_study_keeps_the_values_and_its_page_names_the_bound(tmp_path: Path) -> None:
    found = report()
    records = [
        Record(
            run=f"{seed:02x}c0ffee",
            condition="plain",
            axes={},
            seed=seed,
            spec={},
            subjects=(
                MeasuredModel(
                    checkpoint="final", reports={"train": found, "test": Report({"error": Estimate(0.1 + seed)})}
                ),
            ),
            history=(),
            environment={},
            seconds=1.0,
            peak_memory=0,
        )
        for seed in range(2)
    ]
    column = "train.adaptive_sharpness"
    assert wide_table(records)[column].tolist() == [found["adaptive_sharpness"].value] * 2
    rows = long_table(records)
    rows = rows[rows["measure"] == "adaptive_sharpness"]
    assert rows["value"].notna().all()
    assert rows["stderr"].isna().all()
    page = write_report(records, tmp_path / "page.html").read_text()
    assert f"at least {found['adaptive_sharpness'].value:.6g}" in page
    assert "lower bound" in page
