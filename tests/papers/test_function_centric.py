"""The second paper's recipe: every study is valid, the tiny ones run, and claims follow from tables with known answers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from study_runs import do_here

from landscope.data import TEST_FUNCTIONS
from landscope.papers import PAPERS
from landscope.papers.framework.claims import tell
from landscope.papers.framework.compare import compare, published_numbers
from landscope.papers.function_centric.claims import GENERALISATION, SAFETY, SHARPNESS, complexity
from landscope.studies.grid import runs_of
from landscope.studies.spec import SplitSpec
from landscope.studies.study import Study

PAPER = PAPERS["function-centric"]
RADII = (5e-4, 5e-3, 5e-2, 0.5)
CIRCLES = ("factor 0.5", "factor 0.7", "factor 0.9", "random labels")
CONDITIONS = PAPER.parts("paper")["images"].study.axes["condition"]

SEEDS = 8


@pytest.mark.parametrize("size", ["tiny", "small", "paper"])
def test_every_study_is_valid(size):
    parts = PAPER.parts(size)
    runs = {name: runs_of(part.study) for name, part in parts.items()}
    assert {"functions", "circles", "images"} <= set(runs)
    if size == "paper":
        assert len(runs["functions"]) == 7 * 10
        assert len(runs["images"]) == 240  # as many minima as the paper's first figure shows
        assert len(runs["circles"]) == 100 * (len(CIRCLES) + 2)
        assert {run.training.model.name for run in runs["images-vit"]} == {"vit32"}


def test_the_paper_trains_the_functions_as_published():
    (part,) = (part for name, part in PAPER.parts("paper").items() if name == "functions")
    training = runs_of(part.study)[0].training
    assert (training.batch_size, training.epochs) == ("full", 100_000)
    assert training.snapshots == (0, 1, 10, 100, 1_000, 10_000)
    assert training.evaluate_every == 100, "a row of the history for each of 100,000 steps would tell nothing"
    chosen = part.study.measuring.splits["train"].measures_by_name()
    assert [measure.rho for measure in chosen.values() if measure.key == "random_sharpness"] == list(RADII)


def test_no_published_number_is_left_out():
    # The paper's tables are not at hand; when they are, a part must name them.
    assert published_numbers("function-centric").empty
    assert all(compare(PAPER, part, []) == [] for part in PAPER.parts("paper").values())


def test_conditions_differ_in_what_their_names_say():
    runs = runs_of(PAPER.parts("small")["images"].study)
    assert {run.axes["condition"] for run in runs} == set(CONDITIONS)
    for run in runs:
        condition = run.axes["condition"]
        assert (run.training.sam is not None) == condition.endswith("SAM")
        assert (run.training.augmentation is not None) == condition.startswith("augmentation")
        assert (run.training.optimizer.weight_decay > 0) == condition.startswith("weight decay")
        assert run.training.batch_size == run.axes["batch"]
        assert run.training.optimizer.lr == run.axes["rate"]


def test_tiny_runs_from_end_to_end(tmp_path):
    tables = {}
    for name, part in PAPER.parts("tiny").items():
        study = do_here(Study(part.study, tmp_path / name))
        tables[name] = study.table()
        values = tables[name].drop(columns=["run", "condition", "checkpoint"]).select_dtypes("number")
        assert np.isfinite(values.to_numpy()).all(), name
    assert set(tables["functions"]["checkpoint"]) == {"final", "step 0", "step 1"}
    for rho in RADII:
        assert f"train.random_sharpness_{rho:g}" in tables["functions"]
    assert {column for column, _ in (GENERALISATION | SAFETY).values()} <= set(tables["images"])
    assert set(SHARPNESS.values()) <= set(tables["images"]) & set(tables["circles"])
    found = tell(PAPER.claims, tables)
    assert {one.claim.part for one in found} == set(tables)
    sharper = [one for one in found if one.claim.part == "images" and "sharper than" in one.claim.text]
    assert all("(n = 2 pairs)" in one.found for one in sharper)  # found by their cell


def test_one_measure_can_be_taken_twice():
    near, far = ({"measure": "random_sharpness", "rho": rho} for rho in (0.01, 0.1))
    chosen = SplitSpec(measures={"near": near, "far": far, "l2_norm": None}).measures_by_name(seed=3)
    assert {name: (one.key, one.seed) for name, one in chosen.items()} == {
        "near": ("random_sharpness", 3),
        "far": ("random_sharpness", 3),
        "l2_norm": ("l2_norm", 3),
    }
    assert chosen["far"].rho == 0.1


@pytest.mark.parametrize("function", list(TEST_FUNCTIONS))
def test_roughness_has_no_units(function, monkeypatch):
    rough, large = complexity(function)
    surface = TEST_FUNCTIONS[function]
    monkeypatch.setattr(
        "landscope.papers.function_centric.claims.TEST_FUNCTIONS", {"it": lambda p: 10 * surface(p) + 3}
    )
    assert complexity("it") == pytest.approx((rough, 100 * large), rel=1e-9)


def test_roughness_of_a_wave_is_its_squared_frequency(monkeypatch):
    waves = {"it": lambda p: torch.sin(4 * torch.pi * p[:, 0])}  # 14 whole waves
    monkeypatch.setattr("landscope.papers.function_centric.claims.TEST_FUNCTIONS", waves)
    assert complexity("it")[0] == pytest.approx((4 * np.pi) ** 2, rel=0.01)
