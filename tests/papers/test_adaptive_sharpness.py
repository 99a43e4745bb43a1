"""Paper 5: three families, trained as their notebooks did and as the text says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from landscope.data import load
from landscope.papers import PAPERS
from landscope.papers.framework.claims import tell
from landscope.papers.framework.compare import compare
from landscope.papers.framework.records import load_bundle
from landscope.papers.inputs import abalone_of_the_notebook, lenet5_left_in_evaluation
from landscope.studies.grid import runs_of
from landscope.studies.study import wide_table
from landscope.training.pool.train_pool import train_pool

PAPER = PAPERS["adaptive-sharpness"]
AS_CODED, AS_DESCRIBED = "as coded", "as described"
LENET5 = "train.published.adaptive_sharpness_lenet5"
TRAININGS = {part: list(entry.study.axes.get("training", {})) for part, entry in PAPER.parts("paper").items()}
KEPT = Path(__file__).parents[2] / "results" / "adaptive-sharpness"


SEVERAL = [part for part, trainings in TRAININGS.items() if trainings]


@pytest.mark.parametrize("part", SEVERAL)
def test_every_training_of_a_family_is_a_condition(part: str) -> None:
    runs = runs_of(PAPER.parts("paper")[part].study)
    assert list(dict.fromkeys(run.condition for run in runs)) == TRAININGS[part]
    assert all(run.plain["measuring"]["splits"]["train"]["samples"] is None for run in runs)  # all rows


def test_lenet_as_coded_is_left_in_evaluation_after_one_epoch() -> None:
    runs = {
        run.condition: run.training for run in runs_of(PAPER.parts("paper")["lenet5-notebook"].study) if run.seed == 0
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


def test_the_published_correlation_is_of_one_training() -> None:
    bundle = load_bundle(KEPT / "fcnn-notebook.json.gz")
    numbers = {
        number.metric: number for number in compare(PAPER, PAPER.parts("paper")["fcnn-notebook"], bundle.records)
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
    ours = [one for one in tell(PAPER.claims, kept) if one.claim.ours]
    assert [one.judgement.verdict for one in ours] == ["replicates", "replicates"]
    (coded,) = (one for one in tell(PAPER.claims, kept) if one.claim.headline == 19)
    assert coded.judgement.verdict == "explained"


def test_a_left_network_trains_in_a_pool_as_alone() -> None:
    spec = next(
        run.training for run in runs_of(PAPER.parts("tiny")["lenet5-notebook"].study) if run.condition == AS_CODED
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
