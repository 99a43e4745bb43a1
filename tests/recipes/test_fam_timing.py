"""Figures 4 and 5 of the fourth paper: every way finds the same Hessian, times are times, claims follow them."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pandas as pd
import pytest
import torch
from study_runs import do_here
from torch import nn

from landscope import Probe
from landscope.core.estimate import Status
from landscope.recipes.fam_timing import HessianTime, Way, layer_rows, ways
from landscope.recipes.fam_timing_part import timing_claims, timing_part
from landscope.studies.study import Study


@pytest.mark.parametrize("activation", [nn.ReLU, nn.Tanh])
def test_all_ways_agree(activation):
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(5, 7), activation(), nn.Linear(7, 4)).double()
    x, y = torch.randn(24, 5, dtype=torch.float64), torch.arange(24) % 4
    every = ways(net, x, y, probes=50)
    hessians = [every[name]().detach() for name in get_args(Way) if name.startswith("hessian")]
    for other in hessians[1:]:
        torch.testing.assert_close(other, hessians[0], rtol=1e-9, atol=1e-12)
    trace = hessians[0].trace()
    for name in ("trace.functional", "trace.exact"):
        torch.testing.assert_close(every[name](), trace, rtol=1e-9, atol=1e-12)
    for name in ("trace.hutchinson", "trace.one_probe"):
        draws = torch.stack([every[name]() for _ in range(200)])
        assert abs(draws.mean() - trace) < 5 * draws.std() / len(draws) ** 0.5


def test_a_time_has_an_error_bar_and_its_rounds():
    net = nn.Sequential(nn.Linear(6, 6), nn.ReLU(), nn.Linear(6, 10))
    probe = Probe(net, layer_rows(6)["train"])
    found = {way: HessianTime(way=way, rounds=4)(probe) for way in get_args(Way)}
    for estimate in found.values():
        assert estimate.status is Status.CONVERGED
        assert len(estimate.details["seconds"]) == 4
        assert estimate.value == np.median(estimate.details["seconds"]) > 0
        assert 0 < estimate.stderr < 4 * max(estimate.details["seconds"])
    again = HessianTime(way="hessian.loop", rounds=4)(probe)
    assert again.value == found["hessian.loop"].value  # all ways were timed together, once


def test_what_cannot_be_timed_says_why():
    with pytest.raises(ValueError, match="way must be one of hessian.loop, "):
        HessianTime(way="hessian.magic")
    conv = nn.Sequential(nn.Conv2d(1, 10, 8), nn.Flatten())
    found = HessianTime()(Probe(conv, (torch.randn(4, 1, 8, 8), torch.arange(4))))
    assert found.status is Status.NOT_APPLICABLE
    assert "no linear layer" in found.reason
    other = Probe(nn.Linear(6, 1), (torch.randn(4, 6), torch.randn(4, 1)), "mse")
    assert "cross_entropy" in HessianTime()(other).reason


def test_tiny_runs_from_end_to_end(tmp_path):
    part = timing_part("tiny")
    table = do_here(Study(part.study, tmp_path)).table()
    assert len(table) == 9
    assert (table[list(part.study.analysis.outcomes)] > 0).all(axis=None)
    found = timing_claims(table)
    assert all(claim.part == "hessian-timing" and claim.why and claim.records for claim in found)


def _table(**seconds: list[float]) -> pd.DataFrame:
    rows = {"run": ["a", "b", "c"], "axis.units": ["8 units", "64 units", "64 units"]}
    return pd.DataFrame(rows | {f"train.seconds_to_{name.replace('__', '.')}": own for name, own in seconds.items()})


def test_claims_follow_the_times():
    loop, batched = [1.0, 1000.0, 1000.0], [0.5, 1.0, 2.0]
    faster, orders, *_ = timing_claims(_table(Hessian__loop=loop, Hessian__batched=batched))
    assert (faster.verdict, orders.verdict) == ("holds", "holds")
    assert "64 units: 1.5 s against 1e+03 s, which is 500 to 1e+03 times as long" in orders.why
    assert faster.records == ("a", "b", "c")
    assert orders.records == ("b", "c")
    swapped = timing_claims(_table(Hessian__loop=[1000.0, 1.0, 1.0], Hessian__batched=[1.0, 0.5, 0.5]))
    assert swapped[1].verdict == "holds"  # "up to" is said of the layer that gains most
    assert swapped[1].records == ("a",)
    _, orders, *rest = timing_claims(_table(Hessian__loop=loop, Hessian__batched=[0.5, 1.0, 20.0]))
    assert orders.verdict == "cannot be told"
    assert all(claim.verdict == "cannot be told" and claim.why == "not timed" for claim in rest)
    faster, orders, *_ = timing_claims(_table(Hessian__loop=loop, Hessian__batched=[2.0, 2000.0, 2000.0]))
    assert (faster.verdict, orders.verdict) == ("does not hold", "cannot be told")
    assert "RTX A6000" in orders.why  # another machine cannot refute it
    assert timing_claims(pd.DataFrame()) == []
