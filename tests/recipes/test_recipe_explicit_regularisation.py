"""The first paper's recipe: every study is valid, the tiny ones run, every published number finds ours, claims follow tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from study_runs import do_here

from landscope.measures import AS_PUBLISHED
from landscope.recipes.comparing import compare
from landscope.recipes.explicit_regularisation import RECIPE, REGULARISERS
from landscope.recipes.explicit_regularisation_claims import claims_of
from landscope.recipes.numbers import published_of
from landscope.recipes.recipe import Claim
from landscope.studies.grid import runs_of
from landscope.studies.study import Study

SEEDS = (43, 91, 17)


@pytest.mark.parametrize("size", ["tiny", "small", "paper"])
def test_every_study_is_valid(size):
    parts = RECIPE.parts(size)
    assert list(parts) == ["cifar10", "classes100"]
    for part in parts.values():
        runs = runs_of(part.study)
        assert list(dict.fromkeys(run.condition for run in runs)) == list(REGULARISERS)
        assert len(runs) == 4 * len(part.study.seed_numbers)


def test_the_paper_trains_as_published():
    for name, epochs in (("cifar10", 50), ("classes100", 75)):
        study = RECIPE.parts("paper")[name].study
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
    for name, part in RECIPE.parts("tiny").items():
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
    found = claims_of(tables)
    assert {claim.part for claim in found} == {"cifar10", "classes100"}
    assert all(claim.why and claim.records for claim in found)
    # one seed shows nothing about conditions
    assert {c.verdict for c in found if "generalises" in c.text or "sharper minima than" in c.text} == {
        "cannot be told"
    }


def _preset() -> list[str]:
    return list(AS_PUBLISHED["explicit-regularisation"].measures)


@pytest.mark.parametrize("name", ["cifar10", "classes100"])
def test_every_published_number_stands_beside_ours(tiny, name):
    part = RECIPE.parts("paper")[name]
    rows = published_of(RECIPE.name, part)
    numbers = compare(RECIPE, part, tiny[0][name])
    assert len(rows) > 100
    assert [(n.table, n.condition, n.metric) for n in numbers] == [
        (row["table"], row["condition"], row["metric"]) for row in rows.to_dict("records")
    ]
    for number in numbers:
        assert number.corrected != "–", number
        assert number.published != "–", number


def test_scaled_models_are_at_the_papers_temperature_as_published_and_at_ours_corrected(tiny):
    records = tiny[0]["cifar10"]
    (record,) = [record for record in records if record.condition == "baseline"]
    plain, ours, coded = [subject for subject in record.subjects if subject.checkpoint == "final"]
    assert len({plain.temperature, ours.temperature, coded.temperature}) == 3
    part = RECIPE.parts("paper")["cifar10"]
    numbers = {(n.table, n.condition, n.metric): n for n in compare(RECIPE, part, records)}
    number = numbers["1 early stopping", "baseline+temp", "ece_pct"]
    for text, subject in ((number.published, coded), (number.corrected, ours)):
        assert float(text) == pytest.approx(100 * subject.reports["test"]["ece_10_bins"].value, rel=1e-3)
    without = [replace(r, subjects=tuple(s for s in r.subjects if s is not coded)) for r in records]
    numbers = {(n.table, n.condition, n.metric): n for n in compare(RECIPE, part, without)}
    assert numbers["1 early stopping", "baseline+temp", "ece_pct"].published == "–"


def test_tables_called_early_stopped_stand_beside_final_models():
    for part in RECIPE.parts("paper").values():
        assert {part.checkpoints[table] for table in ("1 early stopping", "2 early stopping")} == {"final"}
        assert {part.checkpoints[table] for table in ("3 final", "4 final")} == {"best"}
    assert "swapped" in RECIPE.differences[0]


def _table(paper: bool) -> pd.DataFrame:
    """Models as the paper has them, or the other way round in everything that it concludes."""
    sign = 1 if paper else -1
    level = {"baseline": 0.0, "dropout": 0.1, "augmentation": 1.0, "weight decay": 2.0}
    error = {"baseline": 0.14, "dropout": 0.13, "augmentation": 0.11, "weight decay": 0.18}
    rows = []
    for condition in REGULARISERS:
        for i, seed in enumerate(SEEDS):
            sharp = 5 + sign * level[condition] + 0.01 * i
            worse = error[condition] if paper else 0.3 - error[condition]
            ece = 0.2 - 0.03 * level[condition] - 0.0003 * i  # falls as the level rises
            kept = 0.1 if not paper else 0.7 if condition in ("baseline", "dropout") else 0.3
            for checkpoint in ("final", "best"):
                for scaled in (False, True):
                    row: dict[str, object] = {
                        "run": f"{condition}{seed}",
                        "condition": condition,
                        "seed": seed,
                        "checkpoint": checkpoint,
                        "temperature": 1.6 if scaled else 1.0,
                        "calibration.temperature": 1.6 if scaled else np.nan,
                        "train.loss": 0.1 + 0.1 * level[condition] + 0.001 * i,
                        "test.error": worse + 0.001 * i,
                        "test.ece": ece * (kept + 0.001 * i) if scaled else ece,
                    }
                    for kind in ("published", "corrected"):
                        row |= {f"train.{kind}.{name}": sharp for name in _preset()}
                        row[f"train.{kind}.weight_norm"] = 60 - sign * 100 * worse - 0.1 * i
                        row[f"train.{kind}.relative_flatness"] = sharp + (sign * 0.5 if scaled else 0.0)
                    rows.append(row)
    return pd.DataFrame(rows)


def _verdicts(claims: Sequence[Claim], words: str) -> set[str]:
    found = {claim.verdict for claim in claims if words in claim.text}
    assert found, words
    return found


CONCLUSIONS = (
    "augmentation generalises better",
    "dropout generalises better",
    "weight decay of 5e-4 generalises worse",
    "augmentation gives sharper minima",
    "weight decay gives sharper minima",
    "rises with the training loss",
    "larger weight norm",
    "sharper minima are better calibrated: relative_flatness (as its code computed it) falls with the ECE before",
    "leaves more than half of the calibration error of baseline",
    "makes relative flatness",
)


@pytest.mark.parametrize(("paper", "verdict"), [(True, "holds"), (False, "does not hold")])
def test_claims_follow_the_models(paper, verdict):
    claims = claims_of({"cifar10": _table(paper)})
    assert {words: _verdicts(claims, words) for words in CONCLUSIONS} == {words: {verdict} for words in CONCLUSIONS}


def test_the_papers_own_temperature_is_asked_about_by_itself():
    table = _table(paper=False)  # at ours, a tenth of the error is left
    coded = table[table["temperature"] != 1.0].assign(**{"calibration.temperature": 1.8})
    coded["test.ece"] *= 7
    coded["train.corrected.relative_flatness"] = np.nan  # is not measured there
    claims = claims_of({"cifar10": pd.concat([table, coded])})
    assert all(
        ("at its temperature" in c.why) == ("code computed" in c.text)
        for c in claims
        if "flatness" in c.text and "after" in c.text
    )
    assert _verdicts(claims, "a temperature leaves more than half") == {"does not hold"}
    assert _verdicts(claims, "a temperature, fitted as its code does, leaves more than half") == {"holds"}
    assert all("at T = 1.8, 1.8, 1.8" in claim.why for claim in claims if "as its code does, leaves" in claim.text)
    assert {
        c.text.split(", ")[1].split()[0] for c in claims if "as its code does, " in c.text and "still" in c.text
    } == {
        "augmentation",
        "weight",
    }
    without = [claim.text for claim in claims_of({"cifar10": table})]
    assert without == [claim.text for claim in claims if "as its code does" not in claim.text]


def test_the_papers_way_has_its_points_and_its_bins():
    table = _table(paper=True)
    table["test.ece_10_bins"] = table["train.published.log_igs"]
    found = claims_of({"cifar10": table})
    after = [claim.why for claim in found if "falls with the ECE" in claim.text]
    assert len(after) == 8
    for claim in found:
        if "over" in claim.why and "means of conditions" in claim.why:
            assert ("over 4 means" in claim.why) == ("igs" in claim.text), claim
    igs = next(c for c in found if "log_igs" in c.text and "falls with the ECE before" in c.text)
    assert igs.verdict == "holds"  # by ours
    assert "as the paper has it: ρ = 1.000" in igs.why


def test_finding_no_correlation_in_twelve_models_proves_nothing():
    table = _table(paper=True)
    rng = np.random.default_rng(0)
    order = rng.permutation(12)
    for run, value in zip(dict.fromkeys(table["run"]), order, strict=True):
        table.loc[table["run"] == run, "test.error"] = 0.1 + 0.01 * value
    assert _verdicts(claims_of({"cifar10": table}), "no measure of sharpness") == {"cannot be told"}
    table["test.error"] = table["train.loss"]
    assert _verdicts(claims_of({"cifar10": table}), "no measure of sharpness") == {"does not hold"}


def test_sharper_with_more_classes():
    easy, hard = _table(paper=True), _table(paper=True)
    columns = [column for column in hard if column.startswith("train.published")]
    hard[columns] *= 3
    (claim,) = (c for c in claims_of({"cifar10": easy, "classes100": hard}) if "twice as sharp" in c.text)
    assert (claim.verdict, claim.part) == ("holds", "classes100")
    (claim,) = (c for c in claims_of({"cifar10": hard, "classes100": easy}) if "twice as sharp" in c.text)
    assert claim.verdict == "does not hold"


def test_missing_parts_and_models_make_no_errors():
    table = _table(paper=True)
    assert claims_of({}) == []
    assert claims_of({"cifar10": table.iloc[:0]}) == []
    few = claims_of({"cifar10": table[table["condition"] == "baseline"]})
    assert "holds" not in {
        claim.verdict for claim in few if "generalises" in claim.text or "sharper minima than" in claim.text
    }
    unscaled = claims_of({"cifar10": table[table["temperature"] == 1.0]})
    assert not any("temperature leaves" in claim.text for claim in unscaled)
