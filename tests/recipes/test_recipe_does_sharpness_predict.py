"""Our own recipe: every study is valid and large, the tiny ones run, and claims tell predictors from confounded measures."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from study_runs import do_here

from landscope.recipes.comparing import compare
from landscope.recipes.does_sharpness_predict import MEASURED, RECIPE
from landscope.recipes.does_sharpness_predict_claims import claims_of
from landscope.recipes.recipe import Claim
from landscope.studies.grid import runs_of
from landscope.studies.study import Study

AXES = {"architecture", "regulariser", "batch", "rate", "optimizer"}


@pytest.mark.parametrize("size", ["tiny", "small", "paper"])
def test_every_study_is_valid_and_large(size):
    for part in RECIPE.parts(size).values():
        runs = runs_of(part.study)
        assert all(set(run.axes) == AXES for run in runs)
        if size == "tiny":
            continue
        models = len(runs) * len(part.study.measuring.checkpoints)
        assert models >= 200
        assert part.note.startswith(f"{len(runs)} trainings")
        assert f"{models} models" in part.note
        for axis in AXES:
            assert len({run.axes[axis] for run in runs}) > 1
        assert {run.axes["optimizer"] for run in runs if run.training.sam is not None} == {"SAM"}
        assert all(run.training.averaging is not None for run in runs)
        assert set(MEASURED) <= set(part.study.measuring.splits["train"].measures_by_name())


def test_there_are_no_published_numbers():
    assert all(compare(RECIPE, part, []) == [] for part in RECIPE.parts("paper").values())


def test_tiny_runs_from_end_to_end(tmp_path):
    tables = {}
    for name, part in RECIPE.parts("tiny").items():
        study = do_here(Study(part.study, tmp_path / name))
        tables[name] = study.table()
        assert len(tables[name]) == 2 * len(study.runs)  # the last weights and their average
        assert np.isfinite(tables[name].select_dtypes("number").to_numpy()).all()
    found = claims_of(tables)
    assert {claim.part for claim in found} == {"digits", "fashion-mnist", "cifar10"}
    assert all(claim.why and claim.records for claim in found)
    # eight networks are too few for finding nothing to mean anything
    assert "does not hold" not in {c.verdict for c in found if "no evidence" in c.why}


def _grid() -> pd.DataFrame:
    """One measure predicts, one follows the loss only, one rises with the architecture but falls inside, one is noise."""
    rng = np.random.default_rng(1)
    rows = []
    for a, b, c, seed in itertools.product(range(4), range(4), range(4), range(2)):
        loss, quality = rng.normal() + b, rng.normal() + c
        for checkpoint in ("final", "average"):
            wobble = rng.normal(scale=0.05, size=5)
            rows.append(
                {
                    "run": f"{a}{b}{c}{seed}",
                    "condition": f"{a}{b}{c}",
                    "seed": seed,
                    "checkpoint": checkpoint,
                    "axis.architecture": a,
                    "axis.rate": b,
                    "axis.batch": c,
                    "train.loss": loss,
                    "train.error": 0.0,
                    "train.sam_sharpness": loss + quality + wobble[0],
                    "train.igs": np.exp(loss + wobble[1]),
                    "train.relative_flatness": -quality + wobble[2],
                    "train.l2_norm": 10.0 * a - loss - quality + rng.normal(scale=0.1),
                    "train.gradient_norm": rng.normal(),
                    "train.pac_bayes_sigma": -(loss + quality) + wobble[3],
                    "test.error": 3.0 * a + loss + quality + wobble[4],
                    "test.ece": quality,
                }
            )
    return pd.DataFrame(rows)


def _one(claims: list[Claim], words: str) -> Claim:
    (claim,) = (claim for claim in claims if words in claim.text)
    return claim


def test_only_what_passes_all_three_ways_predicts():
    claims = list(claims_of({"digits": _grid()}))
    assert _one(claims, "higher train.sam_sharpness goes with a higher test.error").verdict == "holds"
    # a large sigma is a flat minimum
    assert _one(claims, "lower train.pac_bayes_sigma goes with a higher test.error").verdict == "holds"
    loss_alone = _one(claims, "higher train.igs goes with a higher test.error")
    assert loss_alone.verdict == "does not hold"
    assert "given train.loss" in loss_alone.why.rsplit("So:", 1)[1]
    settings_alone = _one(claims, "higher train.l2_norm goes with a higher test.error")
    assert settings_alone.verdict == "does not hold"
    assert "one axis at a time" in settings_alone.why.rsplit("So:", 1)[1]
    reversed_one = _one(claims, "higher train.relative_flatness goes with a higher test.error")
    assert "the other way" in reversed_one.why
    noise = _one(claims, "higher train.gradient_norm goes with a higher test.error")
    assert noise.verdict == "does not hold"
    some = _one(claims, "some measure")
    assert some.verdict == "holds"
    assert "2 of 6 measures do: train.sam_sharpness, train.pac_bayes_sigma" in some.why


def test_what_the_first_paper_suspects():
    claims = list(claims_of({"cifar10": _grid()}))
    assert _one(claims, "train.igs rises with the training loss").verdict == "holds"
    assert _one(claims, "train.relative_flatness rises with the training loss").verdict == "does not hold"
    assert _one(claims, "better calibrated: higher train.relative_flatness").verdict == "holds"
    assert _one(claims, "better calibrated: higher train.igs").verdict == "does not hold"


def test_few_models_cannot_tell():
    table = _grid().iloc[:12]
    claims = list(claims_of({"digits": table}))
    assert _one(claims, "higher train.gradient_norm goes with").verdict == "cannot be told"
    assert claims_of({}) == []
    assert claims_of({"digits": table.drop(columns="train.loss")}) == []
    assert claims_of({"digits": table[table["checkpoint"] == "average"]}) == []


def test_nothing_is_claimed_of_what_applies_to_no_network():
    table = _grid().iloc[:12].assign(**{"train.fisher_rao_homogeneous": np.nan})
    claims = list(claims_of({"fashion-mnist": table}))
    assert not [claim for claim in claims if "fisher_rao_homogeneous" in claim.text]
    assert "of 6 measures" in _one(claims, "some measure").why
