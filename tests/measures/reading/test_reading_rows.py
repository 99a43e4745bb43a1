"""The rows of a report: families, twins, digits."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from networks import BY_NAME
from torch import nn

from landscope import MEASURES, Estimate, Report, Status, measure
from landscope.measures.reading.rows import FAMILIES, Rows, value_text
from landscope.measures.resolve import CORE, resolve_measures

NET = BY_NAME["relu_mlp"]


def test_the_core_set_is_measured_where_nothing_is_asked_for() -> None:
    report = measure(NET.model(), NET.data(24))
    assert tuple(report) == CORE
    assert tuple(measure(NET.model(), NET.data(24), "core")) == CORE
    assert list(resolve_measures("all")) == list(MEASURES)
    assert set(CORE) < set(MEASURES)
    assert {MEASURES[name].family for name in CORE} == set(FAMILIES)


def test_what_says_the_same_is_shown_once_and_said_so() -> None:
    pairs = ["ggn_trace", "fisher_trace", "ggn_top_eigenvalue", "fisher_top_eigenvalue", "hessian_top_eigenvalue"]
    report = measure(NET.model(), NET.data(24), [*pairs, "hessian_spectrum", "loss", "nll", "error", "accuracy"])
    shown = [row.name for row in report.rows]
    assert shown == ["loss", "error", "hessian_top_eigenvalue", "ggn_trace", "ggn_top_eigenvalue"]
    printed = str(report)
    for message in ("Fisher matrix is the GGN", "nll is the loss", "accuracy is 1 − error", "drawn by report.plot()"):
        assert message in printed
    assert len(report) == len(pairs) + 5, "nothing is lost from the report itself"


def test_two_matrices_that_differ_are_both_shown() -> None:
    x, y = torch.randn(20, 3), torch.randn(20, 2)
    report = measure(nn.Linear(3, 2), (x, y), ["ggn_trace", "fisher_trace"], loss="mse")
    different = report["ggn_trace"].value != pytest.approx(report["fisher_trace"].value)
    assert (len(list(report.rows)) == 2) == different


def test_a_bound_that_says_nothing_is_a_dash_with_its_reason() -> None:
    found = {
        "sam_sharpness": Estimate(0.0, status=Status.LOWER_BOUND, reason="no step has been tried"),
        "average_sharpness": Estimate(-0.1, status=Status.LOWER_BOUND, reason="no loss is below zero"),
        "log_volume": Estimate(-90.0, status=Status.LOWER_BOUND, reason="after 9 products"),
        "hessian_bottom_eigenvalue": Estimate(-1.0, status=Status.UPPER_BOUND, reason="after 9 products"),
        "hessian_trace": Estimate.failed("no memory"),
        "ggn_trace": Estimate.failed("no memory"),
    }
    rows = {row.name: row.value for row in Rows.of(found)}
    assert rows.pop("log_volume") == "at least −90"
    assert rows.pop("hessian_bottom_eigenvalue") == "at most −1"
    assert set(rows.values()) == {"–"}
    notes = Report(found).notes()
    assert "No value: sam_sharpness (no step has been tried)." in notes
    assert "No value: average_sharpness (no loss is below zero)." in notes
    assert "Failed: hessian_trace, ggn_trace (no memory)." in notes
    assert "sam_sharpness" not in str(Report(found).reading[-1])


def test_zeros_do_not_make_two_matrices_one() -> None:
    zeros = {"ggn_bottom_eigenvalue": Estimate(0.0), "fisher_bottom_eigenvalue": Estimate(0.0)}
    assert len(list(Rows.of(zeros))) == 2


@pytest.mark.parametrize(
    ("estimate", "shown"),
    [
        (Estimate(0.0603751, 4e-7, 0.027), "0.060"),
        (Estimate(0.0033389, 1e-9, 0.0017, bracket=(0.0033389, 0.00333891)), "0.0033"),
        (Estimate(1234567.0, 2100.0), "1.235e+06"),
        (Estimate(159.7, 0.003, 30.0), "160"),
        (Estimate(1093.0, 21.0), "1090"),
        (Estimate(163.0, 300.0), "160"),
        (Estimate(3.2e-7, 5e-7), "3.2e−07"),
        (Estimate(-0.000321, 1.2e-5, 2.9e-4), "−0.00032"),
        (Estimate(0.0), "0"),
        (Estimate(1.0), "1"),
        (Estimate(0.0, 0.1), "0.00"),
        (Estimate(0.0, 9e-6), "0"),
        (Estimate(3.29e-5, 3e-6, status=Status.RUNNING, bracket=(2.59e-5, 3.99e-5)), "3.29e−05 (2.59e−05 to 3.99e−05)"),
        (Estimate(0.6, 5.0), "0.60"),
        (Estimate(3.2, status=Status.UPPER_BOUND), "at most 3.2"),
        (Estimate(31.58, 0.9, status=Status.RUNNING, bracket=(29.81, 34.27)), "31.6 (29.8 to 34.3)"),
        (Estimate.not_applicable("regression"), "–"),
    ],
)
def test_digits_by_the_larger_error(estimate: Estimate, shown: str) -> None:
    assert value_text(estimate) == shown


def test_what_does_not_apply_is_told_with_its_reason_and_takes_no_row() -> None:
    x = torch.randn(20, 3)
    report = measure(nn.Linear(3, 2), (x, x[:, :2]), loss="mse")
    assert {"error", "ece", "brier"}.isdisjoint(row.name for row in report.rows)
    assert "Not applicable: error, ece, brier (" in str(report)


def test_a_figure_has_a_panel_for_every_family_and_one_for_the_spectrum() -> None:
    report = measure(NET.model(), NET.data(24), ["loss", "hessian_top_eigenvalue", "hessian_spectrum", "l2_norm"])
    titles = [axes.get_title(loc="left") for axes in report.plot().axes if axes.get_visible()]
    assert titles == ["fit", "curvature", "weights", "Hessian spectrum"]
    assert Report({}, {}).plot() is not None


def test_a_log_volume_shares_no_axis_with_eigenvalues() -> None:
    report = Report({"hessian_trace": Estimate(9.0), "log_volume": Estimate(-11.7), "mine": Estimate(1.0)}, {})
    rows = {a.get_title(loc="left"): [t.get_text() for t in a.get_yticklabels()] for a in report.plot().axes}
    assert rows["curvature"] == ["Hessian trace"]
    assert rows["curvature, without a unit"] == ["log volume"]


def test_the_labels_of_a_narrow_logarithmic_axis_do_not_touch() -> None:
    figure = Report({"sam_sharpness": Estimate(0.067), "average_sharpness": Estimate(0.00204)}, {}).plot()
    figure.draw_without_rendering()
    (axes,) = (axes for axes in figure.axes if axes.get_visible())
    boxes = [label.get_window_extent() for label in axes.get_xticklabels(which="both") if label.get_text()]
    low, high = axes.bbox.x0, axes.bbox.x1
    inside = sorted((box for box in boxes if low <= (box.x0 + box.x1) / 2 <= high), key=lambda box: box.x0)
    assert len(inside) >= 2
    assert all(one.x1 < other.x0 for one, other in pairwise(inside))


def test_the_labels_of_small_values_do_not_touch() -> None:
    figure = Report({"loss": Estimate(0.00021, data_stderr=5e-5), "error": Estimate(0.0)}, {}).plot()
    figure.draw_without_rendering()
    (axes,) = (axes for axes in figure.axes if axes.get_visible())
    boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
    assert len(boxes) >= 3
    assert all(one.x1 < other.x0 for one, other in pairwise(boxes))


def test_html_is_escaped() -> None:
    page = Report({"<script>": Estimate(1.0)}, {"model": "<b>"})._repr_html_()
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
