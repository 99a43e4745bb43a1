"""Figures for papers: of every format, without surprises from names, the same twice."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure as Drawn
from report_records import HOSTILE, make_records

from landscope.core.errors import UnknownNameError
from landscope.core.estimate import Estimate
from landscope.measures import Report
from landscope.report import ReportOptions, figures
from landscope.report.data.associations import associate
from landscope.report.data.cohorts import Cohorts
from landscope.report.page.blocks import Panels, Plot, Section
from landscope.report.page.figure import Bars, Curve, Figure
from landscope.report.page.matplotlib import on_paper, save
from landscope.report.page.plotly import in_browser
from landscope.report.sections.correlations import scatter_section
from landscope.report.sections.histories import histories, history_section, mean_curves
from landscope.report.sections.landscapes import landscape_section
from landscope.report.sections.layers import layer_section
from landscope.report.write import StudyReport

COLUMNS = ReportOptions(measures=["train.hessian_trace", "train.l2_norm"], outcomes=["test.error", "test.ece"])
CORRELATED = ["baseline", "forest", "correlations", "redundancy", "scatter", "within-between", "within"]
MODELS = ["reliability", "corruptions", "spectra", "landscape", "training", "layers", "igs"]
BEGINNINGS = {".png": b"\x89PNG\r\n", ".svg": b"<?xml", ".pdf": b"%PDF-"}


def described(section: Section) -> Figure:
    return next(block for block in section.blocks if isinstance(block, Figure))


def drawn_scatter(study: Cohorts) -> Drawn:
    found = associate(study, study.main, given=None)
    return on_paper(described(scatter_section(study, found)), study.conditions)


def drawn_training(study: Cohorts) -> Drawn:
    return on_paper(described(history_section(study)), study.conditions)


def test_every_figure_in_every_format(tmp_path: Path) -> None:
    written = figures(make_records([*"abcde"], seeds=3), tmp_path / "deep" / "folder", options=COLUMNS)
    assert [path.name for path in written] == [
        f"{name}.{suffix}" for name in CORRELATED + MODELS for suffix in ("png", "svg", "pdf")
    ]
    for path in written:
        assert path.read_bytes().startswith(BEGINNINGS[path.suffix])


def test_text_stays_text_and_dollars_dollars(tmp_path: Path) -> None:
    names = [*HOSTILE[:3], "costs 5 $ or $\\frac"]
    study = Cohorts.of(make_records(names, seeds=3))
    save(described(history_section(study)), study.conditions, tmp_path, ["svg"])
    root = ElementTree.parse(tmp_path / "training.svg").getroot()
    texts = "".join(root.itertext())
    for name in names:
        assert name in texts
    assert not [element for element in root.iter() if element.tag.endswith("script")]


def test_what_has_no_data_is_not_drawn() -> None:
    plain = [replace(record, history=()) for record in make_records([*"abcde"], seeds=3, extras=False)]
    assert [figure.name for figure in StudyReport.of(plain, COLUMNS).figures] == [*CORRELATED, "igs"]
    assert [figure.name for figure in StudyReport.of(make_records(["a"], seeds=1)).figures] == MODELS


def test_training_curves_of_many_runs_are_means_of_conditions() -> None:
    records = make_records(["a", "b"], seeds=31, extras=False)
    short = replace(records[0], history=records[0].history[:3])
    study = Cohorts.of([short, *records[1:]], None, None)
    loss, error, rate = histories(study)
    assert [each.name for each in (loss, error, rate)] == ["train loss", "test error", "learning rate"]
    assert loss.by_condition
    first, second = mean_curves(study, loss)
    assert (first.n, second.n) == (31, 31)
    message = np.array([[row["train_loss"] for row in record.history] for record in records[1:31]], dtype=float)
    assert first.mean[3:] == pytest.approx(message.mean(0)[3:])  # the run that ended is out
    assert first.spread[3:] == pytest.approx(message.std(0, ddof=1)[3:])
    panel = drawn_training(study).axes[0]
    assert [line.get_ydata()[-1] for line in panel.lines] == pytest.approx([first.mean[-1], second.mean[-1]])
    assert len(drawn_training(Cohorts.of(records[:4], None, None)).axes[0].lines) == 4


@pytest.mark.parametrize(("conditions", "named"), [(2, 1), (24, 1), (25, 0)])
def test_a_legend_names_all_conditions_or_none(conditions: int, named: int) -> None:
    drawn = drawn_training(Cohorts.of(make_records([f"c{i}" for i in range(conditions)], seeds=1), None, None))
    assert len(drawn.legends) == named


def test_no_two_conditions_of_a_legend_look_the_same() -> None:
    study = Cohorts.of(make_records([f"a rather long name of condition {i}" for i in range(24)], seeds=1), None, None)
    curves, points = drawn_training(study), drawn_scatter(study)
    for figure in (curves, points):
        handles = figure.legends[0].legend_handles
        looks = {(h.get_color(), h._unscaled_dash_pattern, h.get_marker(), h.get_fillstyle()) for h in handles}
        assert len(looks) == 24
        figure.draw_without_rendering()
        assert figure.legends[0].get_window_extent().x1 <= figure.bbox.x1
    drawn = {(line.get_color(), line._unscaled_dash_pattern) for line in curves.axes[0].lines}
    assert len(drawn) == 24


def test_texts_under_scatter_plots_do_not_meet() -> None:
    long = ["adaptive sharpness of a network by the authors", "relative flatness of all of the layers together"]
    records = []
    for number, record in enumerate(make_records(["a", "b"], seeds=5, extras=False, temperature=False)):
        [subject] = record.subjects
        small = Report(
            {name: Estimate(4e-4 + 4.2e-5 * (number if place else -number)) for place, name in enumerate(long)}
        )
        records.append(replace(record, subjects=(replace(subject, reports={**subject.reports, "train": small}),)))
    figure = drawn_scatter(Cohorts.of(records, [f"train.{name}" for name in long], ["test.error"]))
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    for axes in figure.axes:
        boxes = [label.get_window_extent() for label in axes.get_xticklabels() if label.get_text()]
        shown = [box for box in boxes if axes.bbox.x0 - 1 <= (box.x0 + box.x1) / 2 <= axes.bbox.x1 + 1]
        assert len(shown) > 1
        assert all(one.x1 < other.x0 for one, other in pairwise(shown))
    names = [axes.xaxis.label.get_window_extent() for axes in figure.axes]
    assert all(one.x1 < other.x0 for one, other in pairwise(names))


def test_planes_share_one_scale_whose_kind_is_told() -> None:
    records = make_records(["a", "b", "c"], seeds=1)
    [first] = [dict(subject.extras) for subject in records[0].subjects if subject.temperature == 1.0]
    plane = cast("dict[str, Any]", first["landscape"])
    higher = {**plane, "values": {**plane["values"], "loss": (1e4 * np.ones((21, 21))).tolist()}}
    subject = replace(records[0].subjects[0], extras={**first, "landscape": higher})
    study = Cohorts.of([replace(records[0], subjects=(subject,)), *records[1:]], None, None)
    landscape = described(landscape_section(study))
    figure = on_paper(landscape, study.conditions)
    *panels, bar = figure.axes
    norms = [axes.collections[0].norm for axes in panels]
    assert len(panels) == 6
    assert {type(norm).__name__ for norm in norms} == {"LogNorm"}
    assert len({(norm.vmin, norm.vmax) for norm in norms}) == 1
    assert bar.get_ylabel() == "loss, logarithmic scale"
    beside, alone = (block for block in landscape_section(study).blocks if isinstance(block, Figure))
    assert (beside.kind, alone.kind) == ("grid", "landscape")
    assert alone.paper_panels == []
    [plot] = in_browser(alone)
    assert isinstance(plot, Plot)
    assert plot.spec["log"]
    assert plot.spec["ends"] == pytest.approx([0.01, 1e4], rel=1)


@pytest.mark.parametrize(("conditions", "kind"), [(20, Bars), (21, Curve)])
def test_many_bars_are_points(conditions: int, kind: type) -> None:
    study = Cohorts.of(make_records([f"c{i}" for i in range(conditions)], seeds=1, temperature=False), None, None)
    layers = described(layer_section(study))
    assert {type(mark) for mark in layers.panels[0].marks} == {kind}
    names = [tick.get_text() for tick in on_paper(layers, study.conditions).axes[0].get_xticklabels()]
    assert names == ["conv1", "conv2", "fc1", "fc2"]
    [panels] = in_browser(layers)
    assert isinstance(panels, Panels)
    assert len(panels.plots) == 2


def test_the_same_study_gives_the_same_file(tmp_path: Path) -> None:
    once, again = (
        figures(make_records(["a"], seeds=3, extras=False), tmp_path / name, ["svg"], COLUMNS) for name in "ab"
    )
    for first, second in zip(once, again, strict=True):
        assert first.read_bytes() == second.read_bytes()


def test_an_unknown_format_is_named(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'svg'"):
        figures(make_records(seeds=1), tmp_path, ["svgg"])
