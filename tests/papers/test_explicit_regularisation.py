"""The first paper's recipe: every study is valid, the tiny ones run, every published number finds ours, claims follow tables."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from study_runs import do_here

from landscope.papers import PAPERS
from landscope.papers.explicit_regularisation.shown import lines
from landscope.papers.framework.claims import tell
from landscope.papers.framework.compare import compare, published_of
from landscope.papers.framework.records import Bundle, Kept, load_bundle
from landscope.papers.framework.results import _table
from landscope.papers.framework.values import own_losses, rows_at
from landscope.studies.grid import runs_of
from landscope.studies.study import Study

ROOT = Path(__file__).parent.parent.parent
PAPER = PAPERS["explicit-regularisation"]
REGULARISERS, STRENGTHS = (
    PAPER.parts("paper")[part].study.axes["regulariser"] for part in ("cifar10", "cifar10-strengths")
)

SEEDS = (43, 91, 17)


@pytest.mark.parametrize("size", ["tiny", "small", "paper"])
def test_every_study_is_valid(size):
    parts = PAPER.parts(size)
    beyond = ["cifar10-levels", "cifar10-seeds", "classes100-seeds", "cifar10-144m"] if size != "small" else []
    assert list(parts) == ["cifar10", "classes100", "cifar10-strengths", *beyond]
    assert [run.condition for run in runs_of(parts["cifar10-strengths"].study)] == list(STRENGTHS)
    assert len(STRENGTHS) == 24
    if size != "small":
        assert [run.condition for run in runs_of(parts["cifar10-levels"].study)] == list(STRENGTHS)
    for name in ("cifar10", "classes100", *beyond[1:]):
        part = parts[name]
        runs = runs_of(part.study)
        assert list(dict.fromkeys(run.condition for run in runs)) == list(REGULARISERS)
        assert len(runs) == 4 * len(part.study.seed_numbers)


def test_the_paper_trains_as_published():
    for name, epochs in (("cifar10", 50), ("classes100", 75)):
        study = PAPER.parts("paper")[name].study
        assert set(study.seed_numbers) == set(SEEDS)
        for run in runs_of(study):
            training = run.training
            assert (training.model.name, training.epochs, training.batch_size) == ("vgg19", epochs, 256)
            assert (training.optimizer.lr, training.optimizer.momentum) == (0.05, 0.9)
            assert training.schedule.name == "constant"
            assert (training.augmentation is not None) == (run.condition == "augmentation")
            assert training.model.options.get("dropout", 0.0) == (0.5 if run.condition == "dropout" else 0.0)
            assert training.optimizer.weight_decay == (5e-4 if run.condition == "weight decay" else 0.0)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """The records and tables of both tiny parts."""
    records, tables = {}, {}
    parts = PAPER.parts("tiny")
    for name in ("cifar10", "classes100"):
        part = parts[name]
        study = do_here(Study(part.study, tmp_path_factory.mktemp(name)))
        records[name], tables[name] = study.records(), study.table()
    return records, tables


def test_tiny_runs_from_end_to_end(tiny):
    records, tables = tiny
    for table in tables.values():
        assert len(table) == 4 * 2 * 3  # regularisers, checkpoints, temperatures
        assert {f"train.{kind}.{name}" for kind in ("published", "corrected") for name in _preset()} <= set(table)
        assert np.isfinite(table[["train.loss", "test.error", "test.ece", "test.ece_10_bins"]].to_numpy()).all()
        scaled = table[table["calibration.temperature"].notna()]
        assert (scaled["temperature"] == scaled["calibration.temperature"]).all()
    shown = records["cifar10"][0].subjects[0].extras
    assert {"reliability", "landscape"} <= set(shown)
    found = tell(PAPER.claims, tables)
    assert {one.claim.part for one in found} == {"cifar10", "classes100"}
    # one seed shows nothing about conditions
    assert {one.judgement.verdict for one in found if "generalises" in one.claim.text} == {"not tested"}


def test_conditions_of_many_strengths_are_measured_on_all_rows_where_one_pass_gives_that(tmp_path):
    spec = PAPER.parts("tiny")["cifar10-strengths"].study
    axis = {name: STRENGTHS[name] for name in ("baseline", "weight decay 5e-4")}
    study = do_here(Study(replace(spec, axes={"regulariser": axis}), tmp_path))
    assert len(study.table()) == 2 * 3  # conditions, temperatures
    for record in study.records():
        plain, ours, coded = (s for s in record.subjects if s.checkpoint == "final")
        assert coded.temperature != ours.temperature != plain.temperature == 1.0
        assert set(coded.reports["train"]) == set(ours.reports["train"]) < set(plain.reports["train"])
        train = plain.reports["train"]
        assert train.about["samples"] == "64 samples"
        assert train["published.sam_sharpness"].settings["rows"] == 32
        assert "rows" not in train["loss"].settings
        assert all(estimate.status.has_value for estimate in train.values())
    bundle = Bundle(PAPER.name, "cifar10-strengths", "tiny", study.spec, tuple(study.records()))
    tables = {bundle.part: _table(bundle)}
    plain_rows, scaled = (rows_at(tables, bundle.part, temperature=name) for name in ("none", "fitted"))
    assert "train.loss" not in scaled.dropna(axis=1)  # measured before any temperature only; the weights are the same
    assert list(own_losses(scaled)) == list(plain_rows["train.loss"])


def test_the_first_half_of_the_strengths_is_spread_over_regularisers():
    kinds = [name.split()[0] for name in STRENGTHS]
    assert len(kinds) == 24
    for number in (10, 12, 14, 16, 18):  # a run may be stopped after so many
        counts = Counter(kinds[:number])
        assert counts.pop("baseline") == 1
        assert len(counts) == 4
        assert max(counts.values()) - min(counts.values()) <= 1


def _preset() -> list[str]:
    return list(PAPER.measures)


@pytest.mark.parametrize("name", ["cifar10", "classes100"])
def test_every_published_number_stands_beside_ours(tiny, name):
    part = PAPER.parts("paper")[name]
    rows = published_of(PAPER.name, part)
    numbers = compare(PAPER, part, tiny[0][name])
    assert len(rows) > 100
    assert [(n.table, n.condition, n.metric) for n in numbers] == [
        (row["table"], row["condition"], row["metric"]) for row in rows.to_dict("records")
    ]
    for number in numbers:
        assert number.corrected != "–", number
        assert number.published != "–", number


def test_relative_flatness_of_both_tables_is_of_the_last_epoch(tiny):
    """The paper measured it on weights that a reload had brought back."""
    records, part = tiny[0]["cifar10"], PAPER.parts("paper")["cifar10"]
    models = [
        (record.condition, subject)
        for record in records
        for subject in record.subjects
        if subject.checkpoint == "final" and subject.temperature == 1.0
    ]
    last = {name: subject.reports["train"]["published.relative_flatness"].value for name, subject in models}
    shown = {(n.table, n.condition): n for n in compare(PAPER, part, records) if n.metric == "relative_flatness"}
    for name, value in last.items():
        for table in ("1 early stopping", "3 final"):
            assert float(shown[table, name].published) == pytest.approx(value, rel=1e-3)


def test_scaled_models_are_at_the_papers_temperature_as_published_and_at_ours_corrected(tiny):
    records = tiny[0]["cifar10"]
    (record,) = [record for record in records if record.condition == "baseline"]
    plain, ours, coded = [subject for subject in record.subjects if subject.checkpoint == "final"]
    assert len({plain.temperature, ours.temperature, coded.temperature}) == 3
    part = PAPER.parts("paper")["cifar10"]
    numbers = {(n.table, n.condition, n.metric): n for n in compare(PAPER, part, records)}
    number = numbers["1 early stopping", "baseline+temp", "ece_pct"]
    for text, subject in ((number.published, coded), (number.corrected, ours)):
        assert float(text) == pytest.approx(100 * subject.reports["test"]["ece_10_bins"].value, rel=1e-3)
    without = [replace(r, subjects=tuple(s for s in r.subjects if s is not coded)) for r in records]
    numbers = {(n.table, n.condition, n.metric): n for n in compare(PAPER, part, without)}
    assert numbers["1 early stopping", "baseline+temp", "ece_pct"].published == "–"


def test_tables_called_early_stopped_stand_beside_final_models():
    for part in map(PAPER.parts("paper").get, ("cifar10", "classes100")):
        assert {part.published.checkpoints[table] for table in ("1 early stopping", "2 early stopping")} == {"final"}
        assert {part.published.checkpoints[table] for table in ("3 final", "4 final")} == {"best"}
    assert "swapped" in PAPER.differences[0]


def test_its_sam_sharpness_stands_beside_losses_on_redrawn_rows() -> None:
    name = "cifar10-strengths.json.gz"
    path = ROOT / "results" / "explicit-regularisation" / name
    found = list(lines({"cifar10-strengths": Kept(path, load_bundle(path))}))
    assert "| dropout | 2.8 ± 2.8 | 0.9 ± 0.5 | 0.01 | 0.36 | 1 |" in found
    assert "| weight decay | 9.2 ± 0.4 | 13.5 ± 3 | 0.39 | 30.10 | 1 |" in found
