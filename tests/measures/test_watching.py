"""Estimates while they get better: for programs, in a terminal, in a notebook."""

from __future__ import annotations

import io
import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch
from torch import nn

import landscope as ls
from landscope.measures import watching
from landscope.probe import points

NAMES = {"loss": {}, "hessian_top_eigenvalue": {}, "hessian_trace": {"tol": 0.1}, "l2_norm": {}}


@pytest.fixture
def point(monkeypatch: pytest.MonkeyPatch) -> ls.Probe:
    monkeypatch.setattr(points, "SMALL_WORK", 0)
    monkeypatch.setattr(watching, "OFTEN", 0.0)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    return ls.Probe(net, (torch.randn(600, 6), torch.arange(600) % 3))


def test_reports_get_better_and_end_with_what_measure_says(point: ls.Probe) -> None:
    *on_the_way, last = ls.progressive(point, measures=NAMES)
    assert list(last) == list(NAMES)
    seen = {name: [report[name].status for report in on_the_way] for name in NAMES}
    assert ls.Status.SKIPPED in seen["hessian_trace"]  # not measured yet
    assert seen["hessian_top_eigenvalue"].count(ls.Status.LOWER_BOUND) > 1
    assert {last[name].status for name in NAMES} <= {ls.Status.EXACT, ls.Status.CONVERGED}
    for name in NAMES:
        ended = seen[name].index(last[name].status)
        assert set(seen[name][ended:]) == {last[name].status}, "what has ended does not change"


def test_leaving_the_loop_ends_the_work(point: ls.Probe) -> None:
    for report in ls.progressive(point, measures=NAMES):
        if report["loss"].status.has_value:
            break
    spent = point.ledger.passes
    assert spent < 5
    assert report["hessian_trace"].status is not ls.Status.CONVERGED
    assert point.ledger.passes == spent


@pytest.mark.parametrize("often", [0.0, 1e9])
def test_a_notebook_updates_one_table(point: ls.Probe, monkeypatch: pytest.MonkeyPatch, often: float) -> None:
    monkeypatch.setattr(watching, "OFTEN", often)
    shown: list[ls.Report] = []

    def display(first: ls.Report, display_id: bool) -> SimpleNamespace:
        assert display_id
        shown.append(first)
        return SimpleNamespace(update=shown.append)

    ipython, inside = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(config={"IPKernelApp": {}})  # type: ignore[attr-defined]
    inside.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", inside)
    report = ls.measure(point, measures=NAMES, watch=True, seconds=300)
    assert not list(shown[0])
    assert len(shown) > (5 if often == 0 else 1)
    assert often or "s left" in shown[1].title
    assert "s left" not in shown[-1].title
    assert shown[-1].to_dict() == report.to_dict()


def test_a_terminal_shows_the_table_while_it_fills(point: ls.Probe, monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    ls.measure(point, measures=NAMES, watch=True, seconds=300)
    text = terminal.getvalue()
    assert text.count("hessian_trace") > 3
    assert "at least" in text
    assert "s left" in text
