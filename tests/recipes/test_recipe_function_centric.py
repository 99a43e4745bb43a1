"""The second paper's recipe: every study is valid, the tiny ones run, and claims follow from tables with known answers."""

from __future__ import annotations

import re

import numpy as np
import pandas as pd
import pytest
import torch
from study_runs import do_here

from landscope.data import TEST_FUNCTIONS
from landscope.recipes.comparing import compare
from landscope.recipes.function_centric import CIRCLES, CONDITIONS, LONGER, RADII, RECIPE
from landscope.recipes.function_centric_claims import CORRECTED, QUALITY, claims, complexity
from landscope.recipes.numbers import published_numbers
from landscope.recipes.recipe import Claim
from landscope.studies.grid import runs_of
from landscope.studies.spec import SplitSpec
from landscope.studies.study import Study

SEEDS = 8


@pytest.mark.parametrize("size", ["tiny", "small", "paper"])
def test_every_study_is_valid(size):
    parts = RECIPE.parts(size)
    runs = {name: runs_of(part.study) for name, part in parts.items()}
    assert {"functions", "circles", "images"} <= set(runs)
    if size == "paper":
        assert len(runs["functions"]) == 7 * 10
        assert len(runs["images"]) == 240  # as many minima as the paper's first figure shows
        assert len(runs["circles"]) == 100 * (len(CIRCLES) + len(LONGER))
        assert {run.training.model.name for run in runs["images-vit"]} == {"vit32"}


def test_the_paper_trains_the_functions_as_published():
    (part,) = (part for name, part in RECIPE.parts("paper").items() if name == "functions")
    training = runs_of(part.study)[0].training
    assert (training.batch_size, training.epochs) == ("full", 100_000)
    assert training.snapshots == (0, 1, 10, 100, 1_000, 10_000)
    assert training.evaluate_every == 100, "a row of the history for each of 100,000 steps would tell nothing"
    chosen = part.study.measuring.splits["train"].measures_by_name()
    assert [measure.rho for measure in chosen.values() if measure.key == "random_sharpness"] == list(RADII)


def test_no_published_number_is_left_out():
    # The paper's tables are not at hand; when they are, a part must name them.
    assert published_numbers("function-centric").empty
    assert all(compare(RECIPE, part, []) == [] for part in RECIPE.parts("paper").values())


def test_conditions_differ_in_what_their_names_say():
    runs = runs_of(RECIPE.parts("small")["images"].study)
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
    for name, part in RECIPE.parts("tiny").items():
        study = do_here(Study(part.study, tmp_path / name))
        tables[name] = study.table()
        values = tables[name].drop(columns=["run", "condition", "checkpoint"]).select_dtypes("number")
        assert np.isfinite(values.to_numpy()).all(), name
    assert set(tables["functions"]["checkpoint"]) == {"final", "step 0", "step 1"}
    for rho in RADII:
        assert f"train.random_sharpness_{rho:g}" in tables["functions"]
    assert {column for column, _ in QUALITY.values()} <= set(tables["images"])
    assert set(CORRECTED.values()) <= set(tables["images"]) & set(tables["circles"])
    found = claims(tables)
    assert {claim.part for claim in found} == {"functions", "circles", "images"}
    assert all(claim.why and claim.records for claim in found)


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
        "landscope.recipes.function_centric_claims.TEST_FUNCTIONS", {"it": lambda p: 10 * surface(p) + 3}
    )
    assert complexity("it") == pytest.approx((rough, 100 * large), rel=1e-9)


def test_roughness_of_a_wave_is_its_squared_frequency(monkeypatch):
    waves = {"it": lambda p: torch.sin(4 * torch.pi * p[:, 0])}  # 14 whole waves
    monkeypatch.setattr("landscope.recipes.function_centric_claims.TEST_FUNCTIONS", waves)
    assert complexity("it")[0] == pytest.approx((4 * np.pi) ** 2, rel=0.01)


def _rows(axis: str, level: str, seed: int, **values: float) -> dict[str, object]:
    return {
        "run": f"{level}-{seed}",
        "condition": level,
        "seed": seed,
        "checkpoint": "final",
        f"axis.{axis}": level,
        "train.loss": 0.1 + 0.01 * seed,
        **values,
    }


def _images(shift: float, seeds: int = SEEDS) -> pd.DataFrame:
    """Conditions other than base have every sharpness larger by `shift`, every quality better by |shift|."""
    rng, rows = np.random.default_rng(0), []
    for condition in CONDITIONS:
        for seed in range(seeds):
            moved = 0.0 if condition == "base" else shift
            lead = 2.0 if condition == "augmentation + SAM" else 1.0
            sharpness = dict.fromkeys(CORRECTED.values(), 1 + moved + 0.01 * rng.standard_normal())
            quality = {
                column: 1 + sign * lead * abs(moved) + 0.01 * rng.standard_normal() for column, sign in QUALITY.values()
            }
            rows.append(_rows("condition", condition, seed, **sharpness, **quality, **{"train.error": 0.004}))
    return pd.DataFrame(rows)


def _verdicts(found: list[Claim], pattern: str) -> set[str]:
    chosen = {claim.verdict for claim in found if re.search(pattern, claim.text)}
    assert chosen, pattern
    return chosen


def test_regularised_minima_that_are_sharper():
    found = claims({"images": _images(0.5)})
    assert _verdicts(found, "sharper than base") == {"holds"}
    assert _verdicts(found, "calibrated") == {"holds"}
    assert _verdicts(found, "generalise better than base") == {"holds"}
    assert all("its random sharpness was not measured" not in claim.why for claim in found)
    assert _verdicts(found, "best in every respect") == {"holds"}
    assert _verdicts(found, "go with lower test error") == {"holds"}
    assert all("8 pairs" in claim.why for claim in found if "sharper than base" in claim.text)


def test_of_images_that_are_not_fitted_nothing_is_said():
    table = _images(0.5)
    table.loc[table["axis.condition"] == "augmentation", "train.error"] = 0.3
    found = claims({"images": table})
    assert _verdicts(found, "^augmentation: minima are sharper") == {"cannot be told"}
    assert _verdicts(found, "^weight decay: minima are sharper") == {"holds"}
    (claim,) = (claim for claim in found if claim.text == "augmentation: minima are sharper than base")
    assert "no minima: only 0% of augmentation fit 99% of their training rows" in claim.why


def test_what_only_models_that_do_not_fit_show_is_not_said_of_minima():
    table = _images(0.0)
    unfitted = table["axis.condition"].str.startswith("augmentation")
    table.loc[unfitted, "train.error"] = 0.4
    table.loc[unfitted, list(CORRECTED.values())] += 1.0
    table.loc[unfitted, "test.error"] -= 0.5
    (claim,) = (claim for claim in claims({"images": table}) if "go with lower test error" in claim.text)
    assert claim.verdict == "cannot be told"
    assert f"With the {unfitted.sum()} models that do not fit their training rows: Fisher–Rao norm τ = -0." in claim.why


def test_regularised_minima_that_are_flatter():
    found = claims({"images": _images(-0.5)})
    assert _verdicts(found, "sharper than base") == {"does not hold"}
    assert _verdicts(found, "calibrated") == {"holds"}
    assert _verdicts(found, "go with lower test error") == {"does not hold"}


def test_three_seeds_tell_nothing():
    found = claims({"images": _images(0.5, seeds=3)})
    assert _verdicts(found, "sharper than base") == {"cannot be told"}
    assert _verdicts(found, "best in every respect") == {"cannot be told"}
    assert any("cannot give a q below" in claim.why for claim in found)


def test_one_measure_against_the_others_is_enough_to_doubt():
    table = _images(0.5)
    regularised = table["condition"] != "base"
    table.loc[regularised, CORRECTED["relative flatness"]] -= 1.0
    assert _verdicts(claims({"images": table}), "sharper than base") == {"does not hold"}


def test_being_ahead_in_all_but_one_respect_is_not_best():
    table = _images(0.5)
    best = table["condition"] == "augmentation + SAM"
    table.loc[best, "test.ece"] = table.loc[table["condition"] == "augmentation", "test.ece"].to_numpy()
    assert "holds" not in _verdicts(claims({"images": table}), "best in every respect")


def test_runs_are_paired_by_seed_batch_and_rate():
    small, large = _images(0.5).assign(**{"axis.batch": 128}), _images(0.5).assign(**{"axis.batch": 256})
    for column in CORRECTED.values():
        large[column] += 100.0  # far more than the condition changes: only pairs within a batch size show it
    found = claims({"images": pd.concat([small, large])})
    assert _verdicts(found, "sharper than base") == {"holds"}
    assert all("16 pairs" in claim.why for claim in found if "sharper than base" in claim.text)


def _circles(shift: float, seeds: int, error: float = 0.0) -> pd.DataFrame:
    """Tasks other than the first have every sharpness larger by `shift` and a training error of `error`."""
    rng, rows = np.random.default_rng(1), []
    for task in CIRCLES:
        for seed in range(seeds):
            other = task != "factor 0.5"
            sharpness = {column: 1 + other * shift + 0.1 * rng.standard_normal() for column in CORRECTED.values()}
            rows.append(_rows("task", task, seed, **sharpness, **{"train.error": other * error}))
    return pd.DataFrame(rows)


@pytest.mark.parametrize(("shift", "verdict"), [(0.5, "holds"), (-0.5, "does not hold"), (0.0, "cannot be told")])
def test_circles(shift, verdict):
    found = claims({"circles": _circles(shift, seeds=20)})
    assert len(found) == len(CIRCLES) - 1
    assert {claim.verdict for claim in found} == {verdict}


def test_points_that_are_no_minima_say_nothing_of_minima():
    found = claims({"circles": _circles(0.5, seeds=20, error=0.1)})
    assert {claim.verdict for claim in found} == {"cannot be told"}
    assert all("no minima" in claim.why for claim in found)


@pytest.mark.parametrize("seeds", [80, 98, 100])
def test_many_pairs_that_all_go_one_way(seeds):
    """The other side's exact p-value is a sum that passes 1 by a rounding error at these sizes."""
    assert {claim.verdict for claim in claims({"circles": _circles(5.0, seeds)})} == {"holds"}


@pytest.mark.parametrize(("follows", "verdict"), [(0, "holds"), (1, "cannot be told")])
def test_functions(follows, verdict):
    """Sharpness that follows roughness, or only the size of the values."""
    rows = []
    for name in TEST_FUNCTIONS:
        for seed in range(2):
            for checkpoint, factor in (("final", 2.0), ("step 0", 1.0)):
                value = factor * complexity(name)[follows] * (1 + 0.001 * seed)
                row = _rows("function", name, seed, **{f"train.random_sharpness_{rho:g}": value for rho in RADII})
                rows.append({**row, "checkpoint": checkpoint})
    found = claims({"functions": pd.DataFrame(rows)})
    assert _verdicts(found, "rougher") == {verdict}
    assert _verdicts(found, "through training") == {"holds"}


def test_functions_of_large_values_do_not_outvote_the_others():
    """Sharpness doubles for six functions and falls by less for one, whose values are a thousand times theirs."""
    rows = []
    for name in TEST_FUNCTIONS:
        large, end = (1000.0, 0.6) if name == "booth" else (1.0, 2.0)
        for seed in range(5):
            for checkpoint, factor in (("final", end), ("step 0", 1.0)):
                value = large * factor * (1 + 0.1 * seed)
                row = _rows("function", name, seed, **{f"train.random_sharpness_{rho:g}": value for rho in RADII})
                rows.append({**row, "checkpoint": checkpoint})
    (claim,) = (c for c in claims({"functions": pd.DataFrame(rows)}) if "through training" in c.text)
    assert claim.verdict == "holds"
    assert "effects over 7 pairs" in claim.why  # networks of one function do not count one by one


def test_what_is_missing_makes_no_claim():
    assert claims({}) == []
    assert claims({"images": pd.DataFrame(), "circles": pd.DataFrame(), "functions": pd.DataFrame()}) == []
    only_base = _images(0.5).query("condition == 'base'")
    assert {claim.verdict for claim in claims({"images": only_base})} <= {"cannot be told", "holds", "does not hold"}
