"""The models that a report is about, and its outcomes."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from report_records import make_records

from landscope.core.errors import UnknownNameError
from landscope.core.estimate import Estimate
from landscope.measures import Report
from landscope.report.data.cohorts import Cohorts
from landscope.report.of_study import options_of
from landscope.specs.schema import parse
from landscope.studies.record import MeasuredModel, Record
from landscope.studies.spec import StudySpec


def test_the_question_is_asked_of_the_checkpoint_that_is_named() -> None:
    records = make_records(["a", "b"], seeds=3, temperature=False, extras=False)

    def twice(record: Record) -> Record:
        return replace(record, subjects=(record.subjects[0], replace(record.subjects[0], checkpoint="best")))

    both = [twice(record) for record in records]
    assert Cohorts.of(both).main.name == "final"
    chosen = Cohorts.of(both, checkpoint="best")
    assert chosen.main.name == "best"
    assert {cohort.name for cohort in chosen.cohorts} == {"final", "best"}
    some = [*both[:3], *records[3:]]  # few have the one that is asked for
    assert (Cohorts.of(some, checkpoint="best").main.name, len(Cohorts.of(some, checkpoint="best").main)) == ("best", 3)
    with pytest.raises(UnknownNameError, match="did you mean 'best'"):
        Cohorts.of(both, checkpoint="bets")


OF_SHAPES = {"test.loss", "gap.loss", "shapes.dsc"}


@pytest.mark.parametrize(
    ("outcomes", "shown"),
    [(None, OF_SHAPES), (["gap.loss"], {"gap.loss"}), (["test.ece", "shapes.dsc"], {"shapes.dsc"})],
)
def test_what_is_no_classifier_has_outcomes_of_its_own(outcomes: list[str] | None, shown: set[str]) -> None:
    rng = np.random.default_rng(0)
    (pattern,) = make_records(["only"], seeds=1, temperature=False, extras=False)

    def made(seed: int) -> Record:
        names = {"train": ("loss", "l2_norm"), "test": ("loss",), "shapes": ("dsc",)}
        reports = {split: Report({m: Estimate(float(rng.uniform())) for m in own}) for split, own in names.items()}
        subject = MeasuredModel(checkpoint="final", temperature=1.0, reports=reports)
        return replace(pattern, run=f"run{seed}", seed=seed, subjects=(subject,))

    records = [made(seed) for seed in range(12)]
    analysis = {} if outcomes is None else {"outcomes": outcomes}
    spec = parse(StudySpec, {"name": "shapes", "training": {"model": "mlp"}, "analysis": analysis})
    asked = options_of(spec, records)
    assert set(Cohorts.of(records, outcomes=asked.outcomes).outcomes) == shown
