"""Kept records stand for their runs: a study elsewhere goes on from them, and is what it would have been."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from study_runs import do_here

from landscope.papers import take_over
from landscope.papers.framework.records import Bundle
from landscope.specs.schema import parse
from landscope.studies.record import Failure, Record
from landscope.studies.spec import StudySpec
from landscope.studies.store.identity import run_key
from landscope.studies.study import Study


def spec_of(**measuring: object) -> StudySpec:
    return parse(
        StudySpec,
        {
            "name": "tiny",
            "training": {"data": "circles", "model": {"name": "mlp", "widths": [4]}, "epochs": 1, "batch_size": 20},
            "axes": {"rate": {"optimizer.lr": [0.1, 0.2]}},
            "seeds": 2,
            "measuring": {"splits": {"train": ["loss"], "test": ["error"]}, **measuring},
        },
    )


def kept(study: Study, *left_out: int) -> Bundle:
    """The records of a study as another version of ours would have kept them, without some."""

    def elsewhere(record: Record) -> Record:
        versions = {**record.spec["versions"], "landscope": "0.0.7"}  # type: ignore[dict-item]
        return replace(record, run="another key", spec={**record.spec, "versions": versions})

    records = [elsewhere(record) for at, record in enumerate(study.records()) if at not in left_out]
    return Bundle("some recipe", "part", "tiny", study.spec, tuple(records))


@pytest.mark.parametrize("consistency", [True, False])
def test_records_stand_for_their_runs(consistency: bool, tmp_path: Path) -> None:
    first = do_here(Study(spec_of(consistency=consistency), tmp_path / "first"))
    second = Study(first.spec, tmp_path / "second")
    assert take_over(second, kept(first)) == (4, 0)
    assert take_over(second, kept(first)) == (0, 0)  # they are there already
    assert second.progress().done == 4
    assert second.table().equals(first.table())
    assert all(run_key(record.spec) == record.run for record in second.records())


def test_records_that_are_older_than_some_fields_stand_for_their_runs(tmp_path: Path) -> None:
    spec = spec_of(consistency=False)
    own = replace(spec, training={**(spec.training or {}), "model": {"name": "landscope:MLP", "widths": [4]}})
    first = do_here(Study(own, tmp_path / "first"))

    def older(record: Record) -> Record:
        text = json.dumps(record.spec).replace("landscope:MLP", "landscope.models.tabular:MLP")
        spec = json.loads(text)
        del spec["training"]["compile"], spec["measuring"]["splits"]["train"]["tempered"], spec["measuring"]["layers"]
        return replace(record, spec=spec)

    bundle = kept(first)
    bundle = replace(bundle, records=tuple(map(older, bundle.records)))
    assert take_over(Study(own, tmp_path / "second"), bundle) == (4, 0)


def test_what_is_missing_is_run(tmp_path: Path) -> None:
    first = do_here(Study(spec_of(consistency=False), tmp_path / "first"))
    second = Study(first.spec, tmp_path / "second")
    assert take_over(second, kept(first, 1, 2)) == (2, 0)
    do_here(second)
    columns = ["run", "condition", "seed", "train.loss", "test.error"]
    assert second.table()[columns].equals(first.table()[columns])


def test_models_that_are_compared_with_each_other_come_together_or_not_at_all(tmp_path: Path) -> None:
    first = do_here(Study(spec_of(), tmp_path / "first"))
    second = Study(first.spec, tmp_path / "second")
    assert take_over(second, kept(first, 1)) == (2, 0)  # of the other condition
    assert {record.condition for record in second.records()} == {first.records()[-1].condition}


def test_other_runs_are_not_taken_for_these(tmp_path: Path) -> None:
    first = do_here(Study(spec_of(), tmp_path / "first"))
    other = Study(spec_of(splits={"train": ["loss"], "test": ["loss"]}), tmp_path / "other")
    assert take_over(other, kept(first)) == (0, 0)
    assert other.progress().done == 0


@pytest.mark.parametrize("consistency", [True, False])
def test_a_run_that_failed_has_failed_here(consistency: bool, tmp_path: Path) -> None:
    first = do_here(Study(spec_of(consistency=consistency), tmp_path / "first"))
    second = Study(first.spec, tmp_path / "second")
    missing = first.records()[1]
    failure = Failure(missing.condition, missing.seed, "NonFiniteTrainingError: the loss became nan at step 3")
    with_failure = replace(kept(first, 1), failed=(failure,))
    assert take_over(second, with_failure) == (3, 1)
    assert take_over(second, with_failure) == (0, 0)
    assert second.failures() == [failure]
    assert (second.progress().done, second.progress().left) == (3, 0)
    assert take_over(second, kept(first)) == (1, 0)  # a record stands for more than a failure
    assert second.failures() == []


def test_a_failure_does_not_take_the_place_of_a_run(tmp_path: Path) -> None:
    first = do_here(Study(spec_of(consistency=False), tmp_path / "first"))
    one, *_ = first.records()
    with_failure = replace(kept(first, 0), failed=(Failure(one.condition, one.seed, "out of memory"),))
    assert take_over(first, with_failure) == (0, 0)
    assert first.failures() == []
    other = Study(spec_of(consistency=False, splits={"train": ["loss"], "test": ["loss"]}), tmp_path / "other")
    assert take_over(other, with_failure) == (0, 0)
    assert other.failures() == []
