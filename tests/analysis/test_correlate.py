"""`correlate`: the pieces it is made of, its families, and what its sentences say."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import landscope.analysis
from landscope.analysis import (
    Rules,
    benjamini_hochberg,
    benjamini_yekutieli,
    between,
    condition_means,
    correlate,
    correlation,
    granulated_kendall,
    models_needed,
    partial_correlation,
)
from landscope.core.errors import OperandError, UnknownNameError


def study(n: int = 48, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    condition = np.arange(n) % 4
    loss, noise, other = rng.normal(size=(3, n))
    return pd.DataFrame({
        "condition": [f"c{c}" for c in condition],
        "lr": np.arange(n) // 4 % 3,
        "seed": np.arange(n) // 12,
        "train_loss": loss,
        "sharpness": loss + 0.3 * noise,
        "norm": other,
        "gap": loss + 0.3 * rng.normal(size=n),
        "ece": rng.normal(size=n),
    })  # fmt: skip


def test_every_piece_is_the_function_of_its_name() -> None:
    frame = study()
    frame.loc[3, "gap"] = np.nan
    frame["cell"] = frame["condition"] + frame["lr"].astype(str)
    table = correlate(
        frame,
        ["sharpness", "norm"],
        ["gap", "ece"],
        group="cell",
        given="train_loss",
        axes=["lr", "condition", "seed"],
        permutations=199,
        seed=5,
    )
    for f in table:
        x, y = frame[f.measure], frame[f.outcome]
        assert f.correlation == between(x, y, frame["cell"], permutations=199, seed=5)
        assert f.correlation.n == 12
        assert f.within == correlation(x, y, within=frame["cell"], permutations=199, seed=5)
        assert f.granulated == granulated_kendall(frame, f.measure, f.outcome, ["lr", "condition", "seed"])
        means, models, _ = condition_means({"x": x, "y": y, "z": frame["train_loss"]}, frame["cell"])
        truth = partial_correlation(means["x"], means["y"], {"train_loss": means["z"]})
        assert f.partial is not None
        assert (f.partial.value, f.partial.p_value, f.partial.models) == (truth.value, truth.p_value, models)
    parts = [("adjusted_p", "correlation"), ("within_adjusted_p", "within"), ("partial_adjusted_p", "partial")]
    for adjusted, name in parts:
        raw = [getattr(f, name).p_value for f in table]
        assert [getattr(f, adjusted) for f in table] == benjamini_yekutieli(raw)
    assert {f.tests for f in table} == {4}
    assert table["sharpness", "gap"].correlation.dropped == 1
    flat = table.to_frame()
    assert len(flat) == 4
    assert flat["value"].notna().all()
    assert {"within", "paradox", "partial", "partial_adjusted_p", "granulated", "verdict", "unit"} <= set(flat.columns)
    json.dumps(table.to_dict(), allow_nan=False)


def test_models_are_the_units_where_there_is_one_condition() -> None:
    frame = study().assign(condition="all")
    table = correlate(frame, ["sharpness"], ["gap"], group="condition")
    found = table["sharpness", "gap"]
    assert found.correlation == correlation(frame["sharpness"], frame["gap"])
    assert found.within is None


def test_errors_of_the_covariate_are_used() -> None:
    frame = study(seed=3)
    errors = pd.DataFrame({"train_loss": np.full(len(frame), 0.4)}, index=frame.index)
    plain, used = (correlate(frame, ["sharpness"], ["gap"], given="train_loss", errors=e) for e in (None, errors))
    for f in used:
        assert f.partial == partial_correlation(
            frame[f.measure], frame[f.outcome], frame[["train_loss"]], errors=errors
        )
        assert f.partial != plain[f.measure, f.outcome].partial


def test_families() -> None:
    frame = study()
    families = {"curvature": ["sharpness"], "norms": ["norm"], "safety": ["ece"]}
    kwargs = {"permutations": 99}
    table = correlate(frame, ["sharpness", "norm"], ["gap", "ece"], families=families, **kwargs)
    assert [f.family for f in table] == [
        "curvature × outcomes",
        "curvature × safety",
        "norms × outcomes",
        "norms × safety",
    ]
    assert all(f.adjusted_p == f.correlation.p_value for f in table)
    together = correlate(
        frame,
        ["sharpness", "norm"],
        ["gap", "ece"],
        families={"m": ["sharpness", "norm"]},
        rules=Rules(adjustment="benjamini_hochberg"),
        **kwargs,
    )
    p = [f.correlation.p_value for f in together]
    assert [f.adjusted_p for f in together] == benjamini_hochberg(p)
    with pytest.raises(UnknownNameError, match="did you mean 'sharpness'"):
        correlate(frame, ["sharpness"], ["gap"], families={"a": ["sharpnes"]})
    with pytest.raises(OperandError, match="leave it in one"):
        correlate(frame, ["sharpness"], ["gap"], families={"a": ["gap"], "b": ["gap"]})


def test_a_strong_link_goes_with_and_vanishes_given_the_loss() -> None:
    table = correlate(study(), ["sharpness"], ["gap"], given="train_loss")
    found = table["sharpness", "gap"]
    assert found.verdict(table.rules) == "goes with"
    assert found.partial is not None
    assert found.partial.p_value is not None
    assert found.partial.p_value > 0.05
    sentence = table.sentence("sharpness", "gap")
    assert sentence.startswith("Higher sharpness goes with higher gap: τ = 0.")
    assert "n = 48 models" in sentence
    assert "Given train_loss it is τ = " in sentence


def test_a_sentence_has_the_adjusted_p_of_what_is_left_given_the_loss() -> None:
    settings = {"given": "train_loss", "permutations": 199}
    alone = correlate(study(), ["sharpness"], ["gap"], **settings)
    assert " adjusted" not in alone.sentence("sharpness", "gap")
    table = correlate(study(), ["sharpness"], ["gap", "ece"], **settings)
    adjusted = benjamini_yekutieli([f.partial.p_value for f in table if f.partial])[0]
    assert f", {adjusted:.2g} adjusted." in table.sentence("sharpness", "gap")


def test_lower_is_said_where_it_is_lower() -> None:
    frame = study().assign(gap=lambda f: -f["gap"])
    assert "goes with lower gap" in correlate(frame, ["sharpness"], ["gap"]).sentence("sharpness", "gap")


def test_undecided_says_how_many_would_show_what_was_planned() -> None:
    frame = pd.DataFrame({"sharpness": range(8), "gap": [3, 0, 6, 2, 5, 1, 4, 7]})
    table = correlate(frame, ["sharpness"], ["gap"])
    found = table["sharpness", "gap"].correlation
    assert found.value == pytest.approx(8 / 28)
    assert table["sharpness", "gap"].verdict(table.rules) == "undecided"
    sentence = table.sentence("sharpness", "gap")
    assert sentence.startswith("Undecided whether sharpness goes with gap: τ = 0.29")
    assert f"About {models_needed(0.3)} would show a τ of 0.3 with a chance of 80%." in sentence
    other = correlate(pd.DataFrame({"m": range(5), "g": [3, 5, 1, 2, 4]}), ["m"], ["g"], rules=Rules(relevant=0.5))
    assert f"About {models_needed(0.5)} would show a τ of 0.5" in other.sentence("m", "g")


def test_enough_models_without_a_link_show_that() -> None:
    table = correlate(study(200), ["norm"], ["ece"])
    assert table["norm", "ece"].verdict(table.rules) == "weak at most"
    found = table["norm", "ece"].correlation.effect
    assert found is not None
    low, high = found.interval(0.9)
    assert -0.3 < low < high < 0.3
    assert table.sentence("norm", "ece").startswith("norm and ece go together weakly at most, less than ±0.3: τ = ")


def test_more_tests_ask_for_more_models() -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(rng.normal(size=(20, 12)), columns=[f"m{i}" for i in range(11)] + ["gap"])
    frame["m0"] = frame["gap"] + 0.8 * rng.normal(size=20)
    alone = correlate(frame, ["m0"], ["gap"])
    many = correlate(frame, [f"m{i}" for i in range(11)], ["gap"])
    assert alone["m0", "gap"].verdict(alone.rules) == "goes with"
    assert many["m0", "gap"].correlation.p_value == alone["m0", "gap"].correlation.p_value
    assert many["m0", "gap"].verdict(many.rules) == "undecided"
    assert "after adjusting for 11 tests" in many.sentence("m0", "gap")


def test_the_paradox_is_in_the_sentence() -> None:
    rng = np.random.default_rng(0)
    group = np.repeat(np.arange(8), 10)
    x = rng.normal(size=80)
    frame = pd.DataFrame({"c": group, "x": x + 6 * group, "y": -x + 0.2 * rng.normal(size=80) + 6 * group})
    table = correlate(frame, ["x"], ["y"], group="c")
    assert table["x", "y"].paradox(table.rules)
    assert "n = 8 conditions (80 models)" in table.sentence("x", "y")
    assert "the opposite sign: Simpson's paradox" in table.sentence("x", "y")
    assert bool(table.to_frame()["paradox"][0])
    four = correlate(frame[frame["c"] < 4], ["x"], ["y"], group="c")
    assert not four["x", "y"].paradox(four.rules)  # four conditions show nothing between them


def test_undefined_is_said_with_the_columns_name() -> None:
    frame = study().assign(flat=1.0)
    table = correlate(frame, ["flat", "gap", "train_loss"], ["gap"], given="train_loss", permutations=99)
    assert table.sentence("flat", "gap").startswith(
        "flat and gap have no correlation: flat is constant (1 for all 48 models)."
    )
    assert table["gap", "gap"].correlation.reason == "they are the same column"
    assert table["gap", "gap"].adjusted_p is None
    assert "determined by given train_loss" in table.sentence("train_loss", "gap")
    assert table["train_loss", "gap"].tests == 1
    assert table.to_frame()["status"].tolist() == ["undefined", "undefined", "ok"]
    assert len(table) == 3


@pytest.mark.parametrize("method", ["spearman", "pearson"])
def test_other_methods(method: str) -> None:
    table = correlate(study(), ["sharpness", "norm"], ["gap"], method=method, given="train_loss")
    assert table["sharpness", "gap"].verdict(table.rules) == "goes with"
    assert table["sharpness", "gap"].correlation.symbol in table.sentence("sharpness", "gap")


def test_wrong_arguments() -> None:
    frame = study()
    table = correlate(frame, ["sharpness"], ["gap"])
    with pytest.raises(UnknownNameError, match="did you mean 'sharpness'"):
        table["sharpnes", "gap"]
    with pytest.raises(UnknownNameError, match="unknown outcome"):
        table.sentence("sharpness", "ece")
    with pytest.raises(UnknownNameError, match="column"):
        correlate(frame, ["nothing"], ["gap"])
    with pytest.raises(OperandError, match="list of different columns"):
        correlate(frame, "sharpness", ["gap"])
    with pytest.raises(OperandError, match="at least one"):
        correlate(frame, ["sharpness"], [])


def test_no_module_of_analysis_knows_torch() -> None:
    allowed = {"landscope.core.errors", "landscope.core.registry", "landscope.core.text"}
    folder = Path(landscope.analysis.__file__).parent
    for path in folder.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            for name in names:
                assert name.split(".")[0] != "torch", path.name
                if name.startswith("landscope") and not name.startswith("landscope.analysis"):
                    assert name in allowed, (path.name, name)


def test_public_names_are_there() -> None:
    for name in landscope.analysis.__all__:
        assert hasattr(landscope.analysis, name)
    assert landscope.analysis.__all__ == sorted(landscope.analysis.__all__)


def test_weak_at_most_is_adjusted_for_its_tests() -> None:
    frame = study(200)
    one = correlate(frame, ["norm"], ["ece"])["norm", "ece"]
    many = correlate(frame, ["norm", "sharpness"], ["ece", "gap"])
    effects = [f.correlation.effect for f in many.findings]
    small = [None if effect is None else effect.equivalence_p(0.3) for effect in effects]
    assert [f.weak_adjusted_p for f in many.findings] == benjamini_yekutieli(small)
    assert one.weak_adjusted_p == small[0]
    assert (many["norm", "ece"].weak_adjusted_p or 0) > (one.weak_adjusted_p or 1)
