"""What the answer counts: tests that were run, models that were used, temperatures that were fitted, one task."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from report_records import make_records

from landscope.analysis import smallest_significant
from landscope.core.errors import UnknownNameError
from landscope.core.estimate import Estimate
from landscope.core.text import significant
from landscope.measures import Report
from landscope.report import ReportOptions, figures, write_report
from landscope.report.data.associations import associate
from landscope.report.data.cohorts import Cohorts
from landscope.report.of_study import options_of
from landscope.report.page.blocks import Prose, Table
from landscope.report.page.figure import Figure
from landscope.report.sections.answer import answer_section
from landscope.report.sections.conditions import condition_section
from landscope.specs.schema import parse
from landscope.studies.record import MeasuredModel, Record
from landscope.studies.spec import StudySpec


def made(number: int, train: dict[str, float], test: dict[str, float | None], condition: str = "a") -> Record:
    def report(values: dict[str, float] | dict[str, float | None]) -> Report:
        return Report({k: Estimate.failed("it diverged") if v is None else Estimate(v) for k, v in values.items()})

    subject = MeasuredModel(checkpoint="final", reports={"train": report(train), "test": report(test)})
    return Record(run=f"r{number}", condition=condition, axes={}, seed=number, spec={}, subjects=(subject,))


def answer(records: list[Record]) -> tuple[str, str]:
    """The first sentence, and the caption of the figure."""
    study = Cohorts.of(records, outcomes=["test.error"])
    lead, *_, forest = answer_section(study, associate(study, study.main)).blocks
    assert isinstance(lead, Prose)
    assert isinstance(forest, Figure)
    return lead.text, forest.caption


def test_constant_columns_are_no_tests() -> None:
    constants = {f"c{i}": float(i) for i in range(20)}
    records = [made(i, {"m": float(i), **constants}, {"error": 0.1 + 0.01 * i}) for i in range(6)]
    lead, caption = answer(records)
    assert lead.startswith("Higher m goes with higher test error (τ = 1.00")
    assert "after adjusting for 1 test." in caption
    lead, _ = answer([made(i, constants, {"error": 0.1 * i}) for i in range(6)])
    assert "none is defined (c0 is constant (0 for all 6 models))" in lead


def test_models_without_the_outcome_do_not_count() -> None:
    errors = [0.1, 0.3, 0.2, 0.7, 0.5, 0.6, 0.4]
    values = [3.0, 1.0, 2.0, 5.0, 4.0, 7.0, 6.0]
    lead, caption = answer([made(i, {"m": values[i % 7]}, {"error": errors[i] if i < 7 else None}) for i in range(40)])
    bar = smallest_significant(7, 0.05)
    assert f"over 7 models, after adjusting for 1 test. To be significant, τ would have to reach ±{bar:.2f}." in lead
    assert "n = 7 of 40 models." in caption
    lead, _ = answer([made(i, {"m": values[i % 7]}, {"error": errors[i] if i < 4 else None}) for i in range(40)])
    assert "no τ of 4 models could count as more than chance" in lead


@pytest.mark.parametrize("large", [3e200, 1.7e308, 1e-300])
@pytest.mark.usefixtures("undrawn")
def test_numbers_of_any_size_are_shown(tmp_path: Path, large: float) -> None:
    records = [
        made(
            i,
            {"loss": large if i == 3 else 0.1 * i, "m": large * ((1 + i) / 12)},
            {"error": 0.1 * i, "loss": i + 0.5},
            "ab"[i % 2],
        )
        for i in range(12)
    ]
    history = [{"epoch": 0, "loss": 1.0}, {"epoch": 1, "loss": large}]
    records = [replace(record, history=tuple(history)) for record in records]
    for static in (False, True):
        assert write_report(records, tmp_path / "r.html", ReportOptions(static=static)).stat().st_size > 1000
    assert figures(records, tmp_path / "figures", formats=("png",))


def test_the_smallest_and_the_largest_number_as_people_write_them() -> None:
    assert (significant(5e-324), significant(1.7976e308)) == ("4.94×10⁻³²⁴", "1.80×10³⁰⁸")


def spec_of(**analysis: object) -> StudySpec:
    return parse(StudySpec, {"name": "s", "training": {"model": "mlp"}, "analysis": analysis})


def written(spec: StudySpec, records: list[Record], folder: Path) -> str:
    return write_report(records, folder / "r.html", replace(options_of(spec, records), static=True)).read_text()


@pytest.mark.usefixtures("undrawn")
def test_a_name_that_no_record_has_is_told(tmp_path: Path) -> None:
    records = make_records(["a", "b"], seeds=3, extras=False, temperature=False)
    spec = spec_of(
        outcomes=["test.error", "test.ecce"], measures=["train.l2_norm", "train.hesian_trace"], given="train.los"
    )
    text = written(spec, records, tmp_path).replace("&#39;", "'")
    for message in (
        "unknown outcome 'test.ecce'; did you mean 'test.ece'?",
        "unknown measure 'train.hesian_trace'; did you mean 'train.hessian_trace'?",
        "unknown column to account for 'train.los'; did you mean 'train.loss'?",
    ):
        assert f"Left out, because no record has it: {message}" in text
    text = written(spec_of(), records, tmp_path)
    assert "Left out" not in text


@pytest.mark.parametrize("analysis", [{"outcomes": ["test.eror"]}, {"measures": ["train.l2norm"]}])
@pytest.mark.usefixtures("undrawn")
def test_where_nothing_that_was_asked_exists_there_is_no_report(tmp_path: Path, analysis: dict[str, object]) -> None:
    records = make_records(["a"], seeds=3, extras=False, temperature=False)
    with pytest.raises(UnknownNameError, match=r"did you mean '(test\.error|train\.l2_norm)'"):
        written(spec_of(**analysis), records, tmp_path)


def unfitted(subject: MeasuredModel) -> MeasuredModel:
    reports = {**subject.reports, "calibration": Report({"temperature": Estimate.failed("it ran away")})}
    return replace(subject, temperature=1.0, reports=reports)


def test_a_model_without_its_temperature_is_no_scaled_one() -> None:
    records = make_records(["a", "b"], seeds=3, extras=False)
    both = [replace(r, subjects=(r.subjects[0], unfitted(r.subjects[1]))) for r in records[:2]] + records[2:]
    study = Cohorts.of(both)
    assert {c.name: len(c) for c in study.cohorts} == {"final": 6, "final, temperature-scaled": 4}
    message = (
        "No temperature could be fitted to 2 of 6 models (final), left out of the temperature-scaled ones: it ran away."
    )
    assert study.notes == (message,)
    fitted = Cohorts.of([replace(r, subjects=r.subjects[1:]) for r in both])
    assert {c.name: len(c) for c in fitted.cohorts} == {"final, temperature-scaled": 4}
    assert fitted.notes == study.notes
    none = Cohorts.of([replace(r, subjects=(unfitted(r.subjects[1]),)) for r in records])
    assert {c.name: len(c) for c in none.cohorts} == {"final": 6}
    assert none.notes == (
        "No temperature could be fitted to any model (final), shown as they were trained: it ran away.",
    )
    assert Cohorts.of(records).notes == ()


def test_conditions_of_different_data_are_not_ranked() -> None:
    def marks(data: str) -> set[str]:
        records = [
            replace(r, spec={"training": {"data": data.format(r.condition)}})
            for r in make_records(["a", "b"], seeds=3, extras=False, temperature=False)
        ]
        [table] = condition_section(Cohorts.of(records)).blocks
        assert isinstance(table, Table)
        assert bool(re.search("trained on different data", table.caption)) == ("{}" in data)
        return {cell.mark for row in table.rows for cell in row}

    assert marks("digits") == {"", "best", "worst"}
    assert marks("function {}") == {""}


def test_models_that_do_not_fit_are_counted_and_the_others_asked_again() -> None:
    """The link is one of models that are on their way; among those at minima there is none."""
    order = [3, 0, 4, 1, 5, 2, 7, 6]
    records = [
        made(
            i, {"m": float(i), "error": 0.2 if i < 20 else 0.0}, {"error": 0.01 * (i if i < 20 else 20 + order[i - 20])}
        )
        for i in range(28)
    ]
    study = Cohorts.of(records, outcomes=["test.error"])
    words = " ".join(str(block) for block in answer_section(study, associate(study, study.main)).blocks)
    assert "8 of 28 models fit 99 % of their training rows; the others may not be at minima." in words
    assert "Among those that fit, 8 models, 0 of 1 pair go together (p not adjusted)." in words
    none = [made(i, {"m": float(i), "error": 0.5}, {"error": 0.1 * i}) for i in range(8)]
    study = Cohorts.of(none, outcomes=["test.error"])
    words = " ".join(str(block) for block in answer_section(study, associate(study, study.main)).blocks)
    assert "No model fits 99 % of its training rows: these may not be minima." in words
