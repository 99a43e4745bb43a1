"""What was measured at several steps of a training: which curves there are, and what is said of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from report_records import make_records

from landscope.core.estimate import Estimate
from landscope.measures import Report
from landscope.report import Claim, ReportOptions, figures, write_report
from landscope.report.data.cohorts import Cohorts
from landscope.report.page.blocks import Prose, Table
from landscope.report.page.figure import Figure
from landscope.report.sections.through_training import losses_of, step_axis, through_section, through_sentence, trends
from landscope.studies.record import MeasuredModel, Record

STEPS = (0, 1, 10, 100)
END = 1000


def trained(steps: Sequence[int] = STEPS, seeds: int = 3, *, ends: Sequence[int] = (END,)) -> list[Record]:
    """Two conditions whose loss falls and whose norm grows, measured at these steps and at the end."""
    found = []
    for run, record in enumerate(make_records(["a", "b"], seeds, extras=False, temperature=False)):
        end = ends[run % len(ends)]
        subjects = (_measured(run, end, "final"), *(_measured(run, step, f"step {step}") for step in steps))
        found.append(replace(record, subjects=subjects, history=({"epoch": 1, "step": end, "train_loss": 1.0},)))
    return found


def _measured(run: int, step: int, checkpoint: str) -> MeasuredModel:
    train = Report({"loss": Estimate(1.0 / (1 + run + step)), "l2_norm": Estimate(10.0 * (run + 1) + step)})
    return MeasuredModel(
        checkpoint=checkpoint, reports={"train": train, "test": Report({"error": Estimate(0.1 + run)})}
    )


def test_curves_run_over_the_steps_and_end_with_the_last_weights() -> None:
    loss, norm, *rest = trends(Cohorts.of(trained()))
    assert (loss.column, norm.column) == ("train.loss", "train.l2_norm")
    assert [each.column for each in rest] == ["test.error"]
    assert norm.steps == [*STEPS, END]
    middle, low, high = norm.by_condition[1]  # of runs 3, 4 and 5
    assert middle == pytest.approx(50.0 + np.array(norm.steps))
    assert low == pytest.approx(middle - 10)
    assert high == pytest.approx(middle + 10)
    over = losses_of([loss, norm], norm)
    assert over is not None
    assert over.by_condition[1][0] == pytest.approx(1 / (5.0 + np.array(norm.steps)))
    assert losses_of([loss, norm], loss) is None


def test_last_weights_of_other_steps_are_left_out() -> None:
    assert trends(Cohorts.of(trained(ends=(END, 2 * END))))[0].steps == list(STEPS)


@pytest.mark.parametrize("records", [make_records(["a"], 3), trained(steps=(1,))])
def test_two_steps_make_no_curve(records: list[Record]) -> None:
    study = Cohorts.of(records)
    assert not through_section(study).blocks
    assert not through_sentence(study)


def test_more_columns_than_can_be_drawn_are_in_the_table() -> None:
    many = []
    for record in trained():
        subjects = []
        for subject in record.subjects:
            named = Report({f"measure_{i}": subject.reports["train"]["loss"] for i in range(15)})
            subjects.append(replace(subject, reports={**subject.reports, "train": named}))
        many.append(replace(record, subjects=tuple(subjects)))
    section = through_section(Cohorts.of(many))
    panels, table, note = section.blocks
    assert isinstance(panels, Figure)
    assert isinstance(table, Table)
    assert isinstance(note, Prose)
    assert (len(panels.panels), len(table.rows)) == (12, 16)
    assert "first 12" in note.text


def test_step_0_has_a_place_on_a_logarithmic_axis() -> None:
    places, texts, logarithmic = step_axis([0, 100, 10_000, 2_500_000])
    assert logarithmic
    assert places.tolist() == [1, 100, 10_000, 2_500_000]
    assert texts == ["0", "100", "10k", "2.5M"]
    assert step_axis([0, 100, 200, 300])[0].tolist() == [0, 100, 200, 300]
    assert sum(map(bool, step_axis(range(50))[1])) == 8


def test_the_page_tells_and_draws_it(tmp_path: Path) -> None:
    for static in (False, True):
        options = ReportOptions(static=static)
        page = write_report(trained(), tmp_path / "report.html", options).read_text(encoding="utf-8")
        words = re.sub(r"</?abbr[^>]*>", "", page)
        assert "From step 0 to step 1,000: train loss fell in 6 of 6, ℓ₂ norm grew in 6 of 6" in words
        assert '<section id="through-training">' in page
    drawn = figures(trained(), tmp_path, ["png"])
    assert {"checkpoints", "over-loss"} <= {path.stem for path in drawn}


def test_where_no_correlation_could_tell_the_claims_answer(tmp_path: Path) -> None:
    claim = Claim("The norm grows", "holds")
    options = ReportOptions(claims=[claim])
    page = write_report(trained(seeds=2), tmp_path / "report.html", options).read_text(encoding="utf-8")
    assert '<p class="lead">The norm grows: holds.</p>' in page
    assert "none is defined (n = 2: at least 3 conditions with all values are needed)" in page
    study = trained(seeds=2)
    options = ReportOptions(measures=[], claims=[claim] * 2)
    none = write_report(study, tmp_path / "none.html", options).read_text(encoding="utf-8")
    assert '<p class="lead">Of 2 claims: 2 “holds”.</p>' in none
    assert "This study has no correlations to show" in none
