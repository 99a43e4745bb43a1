"""Outcomes along an axis of numbers: means and spreads by hand, which axes are shown, what the page and the figures have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from report_records import make_records

from landscope.core.estimate import Estimate
from landscope.measures import Report
from landscope.report import ReportOptions, figures, write_report
from landscope.report.data.cohorts import Cohorts
from landscope.report.page.figure import Figure
from landscope.report.sections.axes import axis_curves, axis_section
from landscope.studies.record import MeasuredModel, Record


def _record(number: int, axes: dict[str, object], **values: float) -> Record:
    plain = make_records(["a"], seeds=1, extras=False, temperature=False)[0]
    names = {name.replace("__", "."): value for name, value in values.items()}
    splits = {"test": {"error"}, "train": set(names) - {"error"}}
    reports = {s: Report({n: Estimate(names[n]) for n in names if n in own}) for s, own in splits.items()}
    condition = " · ".join(map(str, axes.values()))
    subject = MeasuredModel(checkpoint="final", temperature=1.0, reports=reports)
    return replace(plain, run=f"{number:012x}", condition=condition, axes=axes, seed=number, subjects=(subject,))  # type: ignore[arg-type]


def _swept(rates: list[object], others: list[str]) -> list[Record]:
    cells = [(rate, other, again) for rate in rates for other in others for again in (0.0, 1.0)]
    return [
        _record(number, {"rate": rate, "optimizer": other}, error=number + again, time__fast=1.0, time__slow=2.0)
        for number, (rate, other, again) in enumerate(cells)
    ]


def test_a_line_for_every_setting_of_the_other_axes() -> None:
    records = _swept([0.01, 0.1, 1.0], ["sgd", "adam"])
    [error] = axis_curves(Cohorts.of(records, [], ["test.error"]))
    assert (error.axis, error.outcome, error.n) == ("rate", "test.error", 12)
    assert [line.name for line in error.lines] == ["sgd", "adam"]
    # models 0 and 1 of each pair have errors number and number + 1 + 1
    np.testing.assert_allclose(error.lines[1].mean, [2 + 1.0, 6 + 1.0, 10 + 1.0])
    np.testing.assert_allclose(error.lines[1].spread, np.sqrt(2.0))
    assert error.settings == [0.01, 0.1, 1.0]
    assert error.logarithmic


def test_lines_that_are_left_out_are_counted() -> None:
    study = Cohorts.of(_swept([0.01, 0.1, 1.0], [f"way {number}" for number in range(14)]), [], ["test.error"])
    [figure] = axis_curves(study)
    assert (len(figure.lines), figure.left_out) == (12, 2)
    [drawn] = axis_section(study).blocks
    assert isinstance(drawn, Figure)
    assert drawn.panels[0].caption.endswith("2 more lines are left out.")


def test_kinds_of_one_thing_are_lines_of_one_figure() -> None:
    records = _swept(["8 units", "16 units", "24 units"], ["sgd"])
    [figure] = axis_curves(Cohorts.of(records, [], ["train.time.fast", "train.time.slow"]))
    assert figure.outcome == "train.time"
    assert [line.name for line in figure.lines] == ["sgd · fast", "sgd · slow"]
    assert figure.settings == [8.0, 16.0, 24.0]
    assert not figure.logarithmic


def test_other_axes_may_be_lists() -> None:
    records = [_record(number, {"rate": float(number), "widths": [8, 8]}, error=1.0) for number in range(3)]
    [figure] = axis_curves(Cohorts.of(records, [], ["test.error"]))
    assert [line.name for line in figure.lines] == ["[8, 8]"]


@pytest.mark.parametrize("rates", [[0.01, 0.1], ["8-8", "16-16", "32-32"], ["low", 1, 2], [True, 1, 2]])
def test_what_is_no_axis_of_numbers_is_not_shown(rates: list[object]) -> None:
    study = Cohorts.of(_swept(rates, ["sgd"]), [], ["test.error"])
    assert axis_curves(study) == []
    assert not axis_section(study).blocks


def test_the_page_and_the_figures_have_it(tmp_path: Path) -> None:
    records = _swept([0.01, 0.1, 1.0], ["<blink>", "$adam$"])
    options = ReportOptions(measures=[], outcomes=["test.error"])
    drawn = figures(records, tmp_path, ["svg"], options)
    assert [path.name for path in drawn] == ["axes.svg", "training.svg"]
    assert "$adam$" in (tmp_path / "axes.svg").read_text()
    for static in (True, False):
        page = write_report(records, tmp_path / "page.html", replace(options, static=static)).read_text()
        assert "Along an axis" in page
        assert "<blink>" not in page
        assert ("Model by model" in page) is not static  # without measures there are points for the script only
