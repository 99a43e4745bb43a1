"""Figures 4 and 5 of the fourth paper: every way finds the same Hessian, times are times, claims follow them."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest
import torch
from study_runs import do_here
from torch import nn

from landscope import Probe
from landscope.core.estimate import Status
from landscope.papers import PAPERS
from landscope.papers.fam.timing import HessianTime, Way, layer_rows, timing_claims, ways
from landscope.papers.framework.claims import tell
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
    part = PAPERS["fam"].parts("tiny")["hessian-timing"]
    table = do_here(Study(part.study, tmp_path)).table()
    assert len(table) == 9
    assert (table[list(part.study.analysis.outcomes)] > 0).all(axis=None)
    found = tell(list(timing_claims()), {"hessian-timing": table})
    assert len(found) == 5
    assert all(one.answers and one.runs for one in found)
