"""Our own recipe: every study is valid and large, the tiny ones run, and claims tell predictors from confounded measures."""

from __future__ import annotations

import itertools

import numpy as np
import pandas as pd
import pytest
from study_runs import do_here

from landscope.measures import MEASURES as KNOWN
from landscope.papers import PAPERS
from landscope.papers.does_sharpness_predict.claims import IN_CIFAR10, MEASURES
from landscope.papers.framework.claims import Told, tell
from landscope.papers.framework.compare import compare
from landscope.papers.framework.values import LOSS_ERROR
from landscope.studies.grid import runs_of
from landscope.studies.study import Study

PAPER = PAPERS["does-sharpness-predict"]

AXES = {"architecture", "regulariser", "batch", "rate", "optimizer"}


@pytest.mark.parametrize("size", ["tiny", "small", "paper"])
def test_every_study_is_valid_and_large(size):
    for name, part in PAPER.parts(size).items():
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
        measured = set(part.study.measuring.splits["train"].measures_by_name())
        assert set(IN_CIFAR10 if name == "cifar10" else MEASURES) | {"loss", "error"} == measured


def test_there_are_no_published_numbers():
    assert all(compare(PAPER, part, []) == [] for part in PAPER.parts("paper").values())


def test_tiny_runs_from_end_to_end(tmp_path):
    tables = {}
    for name, part in PAPER.parts("tiny").items():
        study = do_here(Study(part.study, tmp_path / name))
        tables[name] = study.table()
        assert len(tables[name]) == 2 * len(study.runs)  # the last weights and their average
        assert np.isfinite(tables[name].select_dtypes("number").to_numpy()).all()
    found = tell(PAPER.claims, tables)
    assert {one.claim.part for one in found} == {"digits", "fashion-mnist", "cifar10"}
    assert any(len(one.answers) == 3 for one in found)  # overall, one axis at a time, given the training loss


def _grid(noise: float = 0.0) -> pd.DataFrame:
    """One measure predicts, one follows the loss only, one rises with the architecture but falls inside, one is noise."""
    rng, rows = np.random.default_rng(1), []
    slips = noise * np.random.default_rng(2).normal(
        size=(4, 4, 4)
    )  # of a condition: its runs are measured on the same rows
    for a, b, c, seed in itertools.product(range(4), range(4), range(4), range(2)):
        loss, quality = rng.normal() + b, rng.normal() + c
        for checkpoint in ("final", "average"):
            wobble = rng.normal(scale=0.05, size=5)
            own = quality + rng.normal(scale=0.5) + 0.6 * a
            rows.append(
                {
                    "run": f"{a}{b}{c}{seed}",
                    "condition": f"{a}{b}{c}",
                    "seed": seed,
                    "checkpoint": checkpoint,
                    "axis.architecture": a,
                    "axis.rate": b,
                    "axis.batch": c,
                    "train.loss": loss + slips[a, b, c],
                    LOSS_ERROR: noise,
                    "train.sam_sharpness": loss + own + wobble[0],
                    "train.igs": np.exp(loss + wobble[1]),
                    "train.relative_flatness": -own + wobble[2],
                    "train.l2_norm": 10.0 * a - loss - own + rng.normal(scale=0.1),
                    "train.gradient_norm": rng.normal(),
                    "train.pac_bayes_sigma": -(loss + own) + wobble[3],
                    "test.error": loss + own + wobble[4],
                    "test.ece": own,
                }
            )
    return pd.DataFrame(rows)


def _verdicts(table: pd.DataFrame) -> dict[str, Told]:
    names = ("sam_sharpness", "pac_bayes_sigma", "igs", "relative_flatness", "l2_norm", "gradient_norm")
    found = [one for one in tell(PAPER.claims, {"digits": table}) if "test error, in all three ways" in one.claim.text]
    return {name: one for name in names for one in found if f"er {KNOWN[name].title} goes" in one.claim.text}


def test_only_what_passes_all_three_ways_predicts():
    found = _verdicts(_grid())
    assert {name: one.judgement.verdict for name, one in found.items()} == {
        "sam_sharpness": "replicates",
        "pac_bayes_sigma": "replicates",  # a large one is a flat minimum
        "igs": "undecided",  # only with the loss
        "relative_flatness": "excluded",  # the other way round
        "l2_norm": "undecided",  # one axis has the opposite sign of the others
        "gradient_norm": "undecided",
    }
    overall, _, given = (answer.ours for answer in found["igs"].answers)
    assert overall.p_value() < 0.001
    assert given.p_value() > 0.05


def test_a_loss_with_errors_leaves_no_link_behind():
    table = _grid(noise=0.5)
    loss, rest = np.log(table["train.igs"]), np.random.default_rng(0).normal(scale=0.6, size=(2, len(table)))
    table = table.assign(**{"train.igs": loss + rest[0], "test.error": loss + rest[1]})
    unused, used = (_verdicts(each)["igs"].answers[2].ours for each in (table.drop(columns=LOSS_ERROR), table))
    assert unused.p_value() < 0.001
    assert used.p_value() > 0.05


def test_nothing_is_said_without_the_columns():
    table = _grid().iloc[:12].drop(columns="train.igs")
    told = _verdicts(table)
    assert told["igs"].judgement.verdict == "not tested"
    assert told["gradient_norm"].judgement.verdict in ("undecided", "not tested")
