"""Conditions against the baseline: which is flatter, which is better, and what is said where nothing can be shown."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from report_records import make_records

from landscope.core.estimate import Estimate
from landscope.measures import Report
from landscope.report.data.cohorts import Cohorts
from landscope.report.data.contrasts import Contrasts, contrasts
from landscope.report.page.blocks import Prose
from landscope.report.sections.against_baseline import baseline_figure, baseline_table, baseline_words
from landscope.report.sections.answer import answer_section
from landscope.report.write import ReportOptions, StudyReport
from landscope.studies.record import MeasuredModel, Record

PLAIN, SAM = [5.5, 6.1, 7.0, 7.9], [2.8, 3.3, 3.9, 4.1]
"""λ₁ of a study that asked whether SAM finds flatter minima."""


def records(values: dict[str, dict[str, list[float]]], split: str = "train") -> list[Record]:
    """Columns by condition."""
    found = []
    for condition, columns in values.items():
        for seed in range(len(next(iter(columns.values())))):
            reports: dict[str, dict[str, Estimate]] = {}
            for column, numbers in columns.items():
                where, _, name = column.rpartition(".")
                reports.setdefault(where or split, {})[name] = Estimate(numbers[seed])
            subject = MeasuredModel(checkpoint="final", reports={name: Report(each) for name, each in reports.items()})
            name = f"{condition}{seed}"
            found.append(Record(run=name, condition=condition, axes={}, seed=seed, spec={}, subjects=(subject,)))
    return found


def against(values: dict[str, dict[str, list[float]]], baseline: str | None = "plain") -> Contrasts:
    found = contrasts(Cohorts.of(records(values)), baseline)
    assert found is not None
    return found


def test_four_seeds_are_enough_to_see_that_sam_is_flatter() -> None:
    found = against(
        {
            "plain": {"hessian_top_eigenvalue": PLAIN, "test.error": [0.10, 0.11, 0.12, 0.11]},
            "SAM": {"hessian_top_eigenvalue": SAM, "test.error": [0.11, 0.10, 0.12, 0.10]},
        }
    )
    lead, outcomes = baseline_words(found)[0]
    ratio = np.exp(np.log(SAM).mean() - np.log(PLAIN).mean())
    assert lead.startswith(f"SAM is flatter than plain by 1 of 1 measure (Hessian λ₁ −{round(100 * (1 - ratio))} % [")
    assert lead.endswith("Whether flatter is better is undecided: no outcome is shown to differ from plain.")
    assert outcomes == "No difference from plain can be shown in test error."


def test_sharpness_of_models_that_have_not_learnt_is_not_compared() -> None:
    losses = {"plain": [0.1, 0.2, 0.1, 0.2], "SAM": [0.2, 0.1, 0.2, 0.1], "stuck": [0.1, 2.2, 0.2, 2.3]}
    values = {
        name: {"hessian_trace": SAM if name == "SAM" else PLAIN, "loss": own, "test.error": own}
        for name, own in losses.items()
    }
    start = {"epoch": 0, "train_loss": 2.3, "train_error": 0.9}
    history = tuple(start | {"epoch": epoch} for epoch in range(2))
    study = Cohorts.of([replace(record, history=history) for record in records(values)])
    found = contrasts(study, "plain")
    assert found is not None
    assert found.stuck == {"stuck": "2 of 4 models have not learnt"}
    assert [each.reason for each in found.sharpness if each.effect is None] == ["stuck: 2 of 4 models have not learnt"]
    assert all(each.effect is not None for each in found.outcomes)  # it is worse, whatever it is
    lead = baseline_words(found)[0][0]
    assert lead.startswith("SAM is flatter than plain")
    assert " Not compared in sharpness: stuck (2 of 4 models have not learnt)." in lead
    other = contrasts(study, "stuck")
    assert other is not None
    assert baseline_words(other)[0][0] == "Sharpness cannot be compared with stuck: 2 of 4 models have not learnt."


def test_the_answer_comes_before_the_correlations() -> None:
    values = {name: {"hessian_trace": own, "test.error": own} for name, own in (("plain", PLAIN), ("SAM", SAM))}
    study = Cohorts.of(records(values))
    first, second, *_ = answer_section(study, None, contrasts(study, "plain")).blocks
    assert isinstance(first, Prose)
    assert isinstance(second, Prose)
    assert first.tone == "lead"
    assert first.text.startswith("SAM is flatter than plain")
    assert second.text.startswith("Test error is better for SAM")


def test_which_way_is_flatter_is_the_measures_own_word() -> None:
    found = against(
        {
            "plain": {"pac_bayes_sigma": SAM, "hessian_trace": SAM},
            "b": {"pac_bayes_sigma": PLAIN, "hessian_trace": PLAIN},
        }
    )
    towards = {each.column: each.towards for each in found.sharpness}
    assert towards == {"train.hessian_trace": -1}, "the core set answers where it was measured"
    found = against({"plain": {"pac_bayes_sigma": SAM}, "b": {"pac_bayes_sigma": PLAIN}})
    assert [each.towards for each in found.sharpness] == [1]


def test_smaller_weights_and_another_loss_are_named() -> None:
    small = {"hessian_trace": SAM, "l2_norm": [5.0, 5.1, 5.2, 5.1], "loss": [0.2, 0.21, 0.19, 0.2]}
    large = {"hessian_trace": PLAIN, "l2_norm": [9.0, 9.1, 9.2, 9.1], "loss": [0.01, 0.011, 0.009, 0.01]}
    _, (item,) = baseline_words(against({"plain": large, "decay": small}))
    assert item.endswith("against plain, decay (ℓ₂ norm −44 %, train loss × 20).")


LOW, MIDDLE, HIGH = [1.0, 1.1, 0.9, 1.05], [2.0, 2.1, 1.9, 2.05], [4.0, 4.1, 3.9, 4.05]


@pytest.mark.parametrize(
    ("trace", "error", "message"),
    [
        ((LOW, HIGH), (LOW, HIGH), "Being flatter goes with better test error."),
        ((LOW, HIGH), (HIGH, LOW), "Being flatter goes with worse test error."),
        ((LOW, HIGH), (LOW, LOW), "Being flatter does not decide test error: conditions go both ways."),
        ((LOW, MIDDLE), (LOW, HIGH), "Being flatter goes with better test error (one condition)."),
        (
            (LOW, HIGH),
            (MIDDLE, MIDDLE),
            "Whether flatter is better is undecided: no outcome is shown to differ from plain.",
        ),
        ((MIDDLE, MIDDLE), (LOW, HIGH), "Whether flatter is better cannot be decided from that."),
    ],
)
def test_the_second_sentence_says_whether_flatter_is_better(
    trace: tuple[list[float], list[float]], error: tuple[list[float], list[float]], message: str
) -> None:
    columns = {"plain": (MIDDLE, MIDDLE), "a": (trace[0], error[0]), "b": (trace[1], error[1])}
    jitter = [1.0, 1.01, 0.99, 1.0]
    values = {
        name: {"hessian_trace": list(np.multiply(own, jitter)), "test.error": outcome}
        for name, (own, outcome) in columns.items()
    }
    assert baseline_words(against(values))[0][0].endswith(message)


def test_ratios_and_differences() -> None:
    gaps = {"plain": {"test.gap": [-0.1, 0.1, 0.0, 0.05]}, "b": {"test.gap": [1.0, 1.1, 1.2, 1.1]}}
    study = Cohorts.of(records(gaps), outcomes=["test.gap"])
    found = contrasts(study, "plain")
    assert found is not None
    (each,) = found.outcomes
    assert not each.ratio
    assert each.change.startswith("+1.1 (+")
    assert baseline_figure(study, found) == []
    assert [cell.text for cell in baseline_table(study, found).rows[0]][2:] == ["0.0125", "+1.1"]


def test_nothing_is_compared_without_a_baseline_or_with_one_run_each() -> None:
    one = {name: {"hessian_trace": [1.0]} for name in "ab"}
    assert contrasts(Cohorts.of(records(one)), "a") is None
    many = {str(n): {"hessian_trace": PLAIN} for n in range(9)}
    assert contrasts(Cohorts.of(records(many)), None) is None
    assert contrasts(Cohorts.of(records({"a": {"hessian_trace": PLAIN}})), None) is None
    few = against({"first": {"hessian_trace": PLAIN}, "b": {"hessian_trace": SAM}}, None)
    assert few.baseline == "first"
    assert baseline_words(few)[0][-1].startswith("The baseline is the first condition")


def test_runs_that_are_all_alike_or_missing_are_told() -> None:
    found = against({"plain": {"hessian_trace": [1.0, 1.0]}, "b": {"hessian_trace": [2.0, 2.0]}})
    (each,) = found.sharpness
    assert each.effect is None
    assert "runs that differ" in each.reason
    assert not each.sure
    assert baseline_words(found)[0][0].startswith("Neither flatter nor sharper than plain as far as can be shown: b.")


@pytest.mark.parametrize("seed", range(3))
def test_false_alarms_are_rare(seed: int) -> None:
    """Sixty studies without any difference: the chance that one of 14 is called real is 5 %."""
    rng = np.random.default_rng(seed)
    names = [
        "hessian_trace",
        "hessian_top_eigenvalue",
        "fisher_rao",
        "relative_flatness",
        "sam_sharpness",
        "average_sharpness",
    ]
    alarms = 0
    for _ in range(60):
        values = {c: {n: np.exp(rng.normal(size=5)).tolist() for n in names} for c in ("plain", "b", "c")}
        alarms += any(each.sure for each in against(values).sharpness)
    assert alarms <= 9


def test_a_made_up_study_reads_well() -> None:
    study = Cohorts.of(make_records(extras=False, temperature=False))
    found = contrasts(study, "baseline")
    assert found is not None
    lead = baseline_words(found)[0][0]
    assert lead.startswith("SAM is flatter than baseline by ")


def sized(values: dict[str, dict[str, list[float]]], parameters: dict[str, str]) -> list[Record]:
    """The same, with a number of parameters for every condition."""
    found = []
    for record in records(values):
        (subject,) = record.subjects
        about = {"parameters": parameters[record.condition]}
        reports = {name: Report(report.estimates, about) for name, report in subject.reports.items()}
        found.append(replace(record, subjects=(replace(subject, reports=reports),)))
    return found


def test_networks_of_other_sizes_are_compared_by_what_scale_does_not_change() -> None:
    values = {
        name: {
            "hessian_top_eigenvalue": [each * factor for each in PLAIN],
            "fisher_rao": [each * factor for each in PLAIN],
            "test.error": [0.1, 0.2, 0.15, 0.12],
        }
        for name, factor in {"plain": 1.0, "alike": 0.1, "wide": 0.1}.items()
    }
    study = Cohorts.of(sized(values, {"plain": "10 parameters", "alike": "10 parameters", "wide": "30 parameters"}))
    found = contrasts(study, "plain")
    assert found is not None
    lead, *_ = baseline_words(found)[0]
    assert lead.startswith("Alike is flatter than plain by 2 of 2 measures (Hessian λ₁ −90 % ")
    assert "wide is flatter by 1 of 1 measure (Fisher–Rao norm −90 % " in lead
    (told, *_) = baseline_words(found)[1]
    assert "wide (30 parameters against 10 parameters)" in told
    assert told.endswith("leave as they are: Fisher–Rao norm.")
    cells = [c for c in found.sharpness if c.condition == "wide" and c.effect is None]
    assert [c.column for c in cells] == ["train.hessian_top_eigenvalue"]
    only = {name: {key: held[key] for key in ("hessian_top_eigenvalue", "test.error")} for name, held in values.items()}
    study = Cohorts.of(sized(only, {"plain": "10 parameters", "alike": "10 parameters", "wide": "30 parameters"}))
    found = contrasts(study, "plain")
    assert found is not None
    assert "No measure here can be compared between plain and wide." in baseline_words(found)[0][0]


def test_single_runs_answer_that_they_cannot_tell() -> None:
    values = {
        "plain": {"hessian_top_eigenvalue": [5.5], "test.error": [0.1]},
        "SAM": {"hessian_top_eigenvalue": [2.8], "test.error": [0.12]},
    }
    section = answer_section(Cohorts.of(records(values)), None)
    (lead,) = (block.text for block in section.blocks if isinstance(block, Prose) and block.tone == "lead")
    assert lead.startswith("Which condition is flatter, and which is better, is undecided: every condition has one run")
    assert "Hessian λ₁ 2.80 (SAM) and 5.50 (plain)" in lead
    values["plain"] = {key: held * 2 for key, held in values["plain"].items()}
    told = answer_section(Cohorts.of(records(values)), None).blocks[0]
    assert isinstance(told, Prose)
    assert "SAM has one run only" in told.text
    alone = {"plain": values["plain"]}
    first = answer_section(Cohorts.of(records(alone)), None).blocks[0]
    assert isinstance(first, Prose)
    assert "one run only" not in first.text


def test_figures_of_correlations_that_two_conditions_cannot_have_are_not_drawn() -> None:
    values = {
        name: {"hessian_top_eigenvalue": held, "test.error": [0.10, 0.11, 0.12, 0.13]}
        for name, held in {"plain": PLAIN, "SAM": SAM, "other": [1.0, 2.0, 3.0, 4.0]}.items()
    }
    for conditions in (2, 3):
        some = dict(list(values.items())[:conditions])
        keys = {figure.name for figure in StudyReport.of(records(some), ReportOptions()).figures}
        assert ("forest" in keys, "correlations" in keys) == (conditions == 3, conditions == 3)
