"""Paper 5: three families, trained as their notebooks did and as the text says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from landscope.data import load
from landscope.recipes import RECIPES
from landscope.recipes.adaptive_sharpness_claims import LENET5, STALE, claims
from landscope.recipes.adaptive_sharpness_families import AS_CODED, AS_DESCRIBED, FAMILIES
from landscope.recipes.adaptive_sharpness_notebooks import abalone_of_the_notebook, lenet5_left_in_evaluation
from landscope.recipes.bundle import load_bundle
from landscope.recipes.comparing import compare
from landscope.studies.grid import runs_of
from landscope.studies.study import wide_table
from landscope.training.pool.train_pool import train_pool

RECIPE = RECIPES["adaptive-sharpness"]
KEPT = Path(__file__).parents[2] / "results" / "adaptive-sharpness"


SEVERAL = [part for part, family in FAMILIES.items() if family.trainings]


@pytest.mark.parametrize("part", SEVERAL)
def test_every_training_of_a_family_is_a_condition(part: str) -> None:
    runs = runs_of(RECIPE.parts("paper")[part].study)
    family = FAMILIES[part]
    assert list(dict.fromkeys(run.condition for run in runs)) == list(family.trainings)
    assert len(runs) == family.seeds * len(family.trainings)
    assert all(run.plain["measuring"]["splits"]["train"]["samples"] is None for run in runs)  # all rows


def test_lenet_as_coded_is_left_in_evaluation_after_one_epoch() -> None:
    runs = {
        run.condition: run.training for run in runs_of(RECIPE.parts("paper")["lenet5-notebook"].study) if run.seed == 0
    }
    coded, described = runs[AS_CODED], runs[AS_DESCRIBED]
    assert coded.model.options["steps"] == -(-60_000 // coded.batch_size)
    assert (coded.optimizer.weight_decay, described.optimizer.weight_decay) == (5e-3, 0)
    network = lenet5_left_in_evaluation(steps=3)
    assert sum(getattr(module, "steps", None) == 3 for module in network.modules()) == 4


def test_abalone_is_split_as_by_scikit_learn() -> None:
    selection = pytest.importorskip("sklearn.model_selection")
    rows, whole = abalone_of_the_notebook(), load("abalone", validation=0)
    order = torch.cat([whole.indices["train"], whole.indices["test"]]).argsort()
    rings = torch.cat([whole.train.y, whole.test.y])[order][1:]  # the first row of the file is taken for a header
    train, test = selection.train_test_split(rings.numpy(), test_size=0.2, random_state=42)
    for found, expected in ((rows["train"].y, train), (rows["test"].y, test)):
        assert np.allclose(found, (expected - train.mean(0)) / train.std(0, ddof=1), atol=1e-5)


def table(n: int = 12) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    rows = []
    for training, level in (("as coded", 0.5), ("in training mode", 0.04), ("as described", 0.01)):
        for seed in range(n):
            loss = 0.35 + 0.02 * rng.standard_normal()
            rows.append(
                {
                    "run": f"{training} {seed}",
                    "condition": training,
                    "test.loss": loss,
                    "train.loss": 0.3 + 0.01 * rng.standard_normal(),
                    LENET5: level * (1 + 0.1 * rng.standard_normal()),
                    STALE: 0.8 * level,
                    f"train.corrected.{FAMILIES['lenet5-notebook'].measure}": 2.0
                    - 5 * loss
                    + 0.02 * rng.standard_normal(),
                }
            )
    return pd.DataFrame(rows)


def test_claims_are_of_one_training_each() -> None:
    found = claims({"lenet5-notebook": table()})
    correlated = [claim for claim in found if "correlates negatively" in claim.text]
    assert len(correlated) == 6
    assert all(
        {record.rpartition(" ")[0] for record in claim.records} == {_training(claim.text)} for claim in correlated
    )
    described = [claim for claim in correlated if "as its text describes it" in claim.text]
    assert {claim.verdict for claim in described} == {"holds"}  # they were made so
    (stale,) = [claim for claim in found if "stale" in claim.text]
    assert stale.verdict == "holds"
    assert "n = 12" in stale.why
    assert "in training mode 0.0" in stale.why


def _training(text: str) -> str:
    return next(name for name in FAMILIES["lenet5-notebook"].trainings if f"trained {name}" in text)


def test_few_models_and_missing_measures_make_no_verdict() -> None:
    found = claims({"lenet5-notebook": table(2), "lenet5-radii": table(2)})
    assert {claim.verdict for claim in found} == {"cannot be told"}


def test_the_published_correlation_is_of_one_training() -> None:
    bundle = load_bundle(KEPT / "fcnn-notebook.json.gz")
    numbers = {
        number.metric: number for number in compare(RECIPE, RECIPE.parts("paper")["fcnn-notebook"], bundle.records)
    }
    coded = wide_table([record for record in bundle.records if record.condition == AS_CODED])
    tau = coded["train.published.adaptive_sharpness_fcnn"].corr(coded["test.loss"], method="kendall")
    shown = numbers["kendall_tau test_loss~adaptive_sharpness"]
    assert shown.published.startswith(f"{tau:.3f}")
    assert shown.n == len(coded)


def test_kept_records_meet_the_level_of_the_notebook() -> None:
    kept = {
        part: wide_table(load_bundle(KEPT / f"{part}.json.gz").records) for part in ("lenet5-notebook", "lenet5-radii")
    }
    coded = kept["lenet5-notebook"][kept["lenet5-notebook"]["condition"] == AS_CODED]
    assert coded[LENET5].between(0.42, 0.67).all()  # the range of the paper's figure
    assert (kept["lenet5-notebook"][kept["lenet5-notebook"]["condition"] != AS_CODED][LENET5] < 0.1).all()
    ours = [claim for claim in claims(kept) if claim.text.startswith("Ours")]
    assert [claim.verdict for claim in ours] == ["holds", "holds"]


def test_a_left_network_trains_in_a_pool_as_alone() -> None:
    spec = next(
        run.training for run in runs_of(RECIPE.parts("tiny")["lenet5-notebook"].study) if run.condition == AS_CODED
    )
    still = replace(spec.model, options={**spec.model.options, "dropout": 0.0})  # a pool draws other masks
    stacked, alone = (
        train_pool(replace(spec, model=still), 2, strategy=strategy, progress=False)
        for strategy in ("stacked", "sequential")
    )
    for one, other in zip(stacked.members, alone.members, strict=True):
        theirs = other.model.state_dict()
        for name, value in one.model.state_dict().items():
            assert torch.allclose(value.double(), theirs[name].double(), atol=1e-5), name
