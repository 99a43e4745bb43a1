"""The vocabulary of claims on tables whose truth is known, the guards, and families with their levels."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from landscope.analysis import Order
from landscope.papers.framework.answers import Unit
from landscope.papers.framework.claims import Claim, at_holms_levels, tell
from landscope.papers.framework.questions import Question, above, correlates, every, larger, none, share
from landscope.papers.framework.values import FAILED, FEW, GUESSING, INSTEAD, REDUCED, Values


def table(conditions: dict[str, float], seeds: int = 5, spread: float = 0.1, **attrs: Any) -> pd.DataFrame:
    """Models of some conditions: `x` around a value, `y` = 2x, losses and errors of networks that fit."""
    rng = np.random.default_rng(0)
    rows = []
    for condition, value in conditions.items():
        for seed in range(seeds):
            x = value + spread * rng.standard_normal()
            for checkpoint, times in (("final", 1.0), ("step 3", 0.5)):
                for temperature in (1.0, 2.0, 1.5):
                    rows.append(
                        {
                            "run": f"{condition} {seed}",
                            "condition": condition,
                            "axis.task": condition,
                            "seed": seed,
                            "checkpoint": checkpoint,
                            "temperature": temperature,
                            "train.loss": 0.1,
                            "train.error": 0.0,
                            "test.x": times * x / temperature,
                            "test.y": 2 * x,
                        }
                    )
    found = pd.DataFrame(rows)
    found.attrs.update(attrs)
    return found


def values(condition: str | None = None, column: str = "test.x", **how: Any) -> Values:
    return Values(part="p", column=column, condition=condition, **how)


def told(question: Question, found: pd.DataFrame, **how: Any):
    (one,) = tell([Claim(text="t", part="p", question=question, **how)], {"p": found})
    return one


def test_a_difference_is_welchs() -> None:
    found = table({"a": 1.0, "b": 0.0})
    one = told(larger(values("a"), values("b")), found)
    first, second = (
        found[(found.condition == c) & (found.checkpoint == "final") & (found.temperature == 1)]["test.x"] for c in "ab"
    )
    truth = stats.ttest_ind(first, second, equal_var=False)
    assert one.judgement.verdict == "replicates"
    assert one.judgement.p_value == pytest.approx(truth.pvalue)
    assert one.judgement.interval == pytest.approx(tuple(truth.confidence_interval()))
    assert told(larger(values("b"), values("a")), found).judgement.verdict == "excluded"
    assert told(larger(values("a"), values("b")), table({"a": 0.0, "b": 0.0})).judgement.verdict == "undecided"
    assert len(one.runs) == 10


def test_pairs_are_those_of_one_run_or_of_one_cell() -> None:
    found = table({"a": 1.0, "b": 0.0}, spread=5.0)
    shifted = found.assign(**{"test.x": found["test.x"].where(found.condition == "b", 0)})
    rows = found[(found.checkpoint == "final") & (found.temperature == 1)]
    base = rows[rows.condition == "b"].set_index("seed")["test.x"]
    own = found.condition == "a"
    shifted.loc[own, "test.x"] = found.loc[own, "seed"].map(base) + 0.1 + 1e-3 * found.loc[own, "seed"]
    question = larger(values("a"), values("b"), pairs="axis.task")
    assert told(question, shifted).judgement.verdict == "replicates"
    assert told(larger(values("a"), values("b")), shifted).judgement.verdict == "undecided"
    at_half_time = told(
        larger(values("b"), values("b", at="half time"), pairs="run", log=True), table({"b": 3.0}, spread=0.01)
    )
    assert math.exp(at_half_time.answers[0].ours.value) == pytest.approx(2.0)
    cooler = told(larger(values(), values(temperature="fitted"), pairs="run", log=True), table({"b": 3.0}))
    assert math.exp(cooler.answers[0].ours.value) == pytest.approx(2.0)


def test_a_correlation_is_over_the_unit_that_is_named() -> None:
    found = table({name: float(level) for level, name in enumerate("abcdefgh")})
    models = told(correlates(values(), "test.y", 1, over="models"), found)
    conditions = told(correlates(values(), "test.y", 1, over="conditions", theirs=Order(0.5, 4)), found)
    assert (models.answers[0].ours.n, conditions.answers[0].ours.n) == (40, 8)
    assert conditions.judgement.verdict == "replicates"
    assert told(correlates(values(), "test.y", -1, over="conditions"), found).judgement.verdict == "excluded"
    assert "τ = 1.0" in told(correlates(values(), "test.y", -1, over="conditions"), found).found
    few = table({name: float(level) for level, name in enumerate("abcd")}, seeds=50)
    assert told(correlates(values(), "test.y", 1, over="conditions"), few).judgement.verdict == "undecided"


def test_a_share_is_counted_from_its_bound() -> None:
    found = table({"a": 1.0})
    half = share(values("a", at="half time"), values("a"))
    shown = told(above("p", "share", lambda tables: half(tables) + 1e-3 * np.arange(5), 0.4, log=True), found)
    assert shown.judgement.verdict == "replicates"
    assert shown.found.startswith("share (n = 5): × 0.5020 [")
    assert (
        told(above("p", "share", lambda t: half(t) + 1e-3 * np.arange(5), 0.4, below=True), found).judgement.verdict
        == "excluded"
    )


def test_of_a_family_all_must_be_shown_and_one_against_it_excludes() -> None:
    found = table({"a": 1.0, "b": 0.0, "c": 0.0, "d": -1.0})
    up, flat, down = (larger(values(c), values("b")) for c in "acd")
    assert told(every((up, up)), found).judgement.verdict == "replicates"
    assert told(every((up, flat)), found).judgement.verdict == "undecided"
    assert told(every((up, down)), found).judgement.verdict == "excluded"


def test_that_nothing_is_there_needs_many_units() -> None:
    rng = np.random.default_rng(1)
    many = table({f"c{level}": float(level) for level in range(300)}, seeds=1)
    many["test.y"] = many["condition"].map(dict(zip(many["condition"].unique(), rng.random(300), strict=True)))
    question = none([correlates(values(), "test.y", 1, over="conditions", margin=0.2)])
    assert told(question, many).judgement.verdict == "replicates"
    few = many[many["condition"].isin([f"c{level}" for level in range(10)])]
    assert told(question, few).judgement.verdict == "undecided"
    assert told(question, table({name: float(i) for i, name in enumerate("abcdefgh")})).judgement.verdict == "excluded"


@pytest.mark.parametrize(
    ("attrs", "change", "how", "why"),
    [
        ({REDUCED: "run at size small only"}, {}, {}, "run at size small only"),
        ({FAILED: {"a": 2}}, {}, {}, "2 of 7 runs of a failed"),
        ({GUESSING: math.log(10)}, {"train.loss": 1.2}, {}, "5 of 5 networks of a have not learnt"),
        (
            {GUESSING: math.log(10)},
            {"train.error": 0.05},
            {"minima": True},
            "no minima: 0% of a fit 99% of their training rows",
        ),
    ],
)
def test_guards(attrs: dict[str, Any], change: dict[str, float], how: dict[str, Any], why: str) -> None:
    question = larger(values("a"), values("b"))
    found = table({"a": 1.0, "b": 0.0}).assign(**change)
    assert told(question, found).judgement.verdict == "replicates"
    found.attrs.update(attrs)
    guarded = told(question, found, **how)
    assert guarded.judgement.verdict == "not tested"
    assert why in guarded.judgement.why
    assert guarded.answers  # what was found is shown all the same


def test_a_correlation_over_conditions_needs_most_of_its_design() -> None:
    found = table({name: float(level) for level, name in enumerate("abcdefgh")}, **{FEW: "8 of 24 conditions were run"})
    over = told(correlates(values(), "test.y", 1, over="conditions"), found)
    assert over.judgement.verdict == "not tested"
    assert over.judgement.why == "8 of 24 conditions were run"
    assert over.answers  # the number is shown all the same
    assert told(larger(values("b"), values("a")), found).judgement.verdict == "replicates"
    assert told(every([correlates(values(), "test.y", 1, over="models")]), found).judgement.verdict == "replicates"
    assert told(every([correlates(values(), "test.y", 1, over="conditions")]), found).judgement.verdict == "not tested"


def test_a_verdict_says_what_stands_for_the_papers_data() -> None:
    found = table({"a": 1.0, "b": 0.0}, **{INSTEAD: "MiniLM for BERT"})
    assert told(larger(values("a"), values("b")), found).verdict == "**replicates** (MiniLM for BERT)"
    found.attrs[REDUCED] = "run at size small only"
    assert told(larger(values("a"), values("b")), found).verdict == "**not tested**"


def test_models_that_have_not_learnt_are_left_out_of_correlations() -> None:
    found = table({name: float(level) for level, name in enumerate("abcdefgh")}, **{GUESSING: math.log(10)})
    found.loc[found.condition == "h", ["train.loss", "test.y"]] = [2.0, -100.0]
    one = told(correlates(values(), "test.y", 1, over="conditions"), found)
    assert one.judgement.verdict == "replicates"
    assert "5 models left out: not learnt" in one.found
    found["train.loss"] = 2.0
    assert "none of 40 models has learnt" in told(correlates(values(), "test.y", 1, over="models"), found).judgement.why


def test_what_is_missing_is_said_and_stops_nothing() -> None:
    question = larger(values("a"), values("b"))
    assert tell([Claim(text="t", part="elsewhere", question=question)], {"p": table({"a": 1.0})}) == []
    assert "p has no test.x of b" in told(question, table({"a": 1.0, "c": 0.0})).judgement.why
    gone = table({"a": 1.0}, **{FAILED: {"b": 3}})
    assert "all 3 runs of b failed" in told(question, gone).judgement.why
    assert told(question, table({"a": 1.0, "b": 0.0}, seeds=1)).judgement.verdict == "not tested"


def test_headlines_share_one_level() -> None:
    found = table({"a": 0.21, "b": 0.0})
    claims = [Claim(text=str(n), part="p", question=larger(values("a"), values("b")), headline=n) for n in range(1, 21)]
    alone = tell(claims, {"p": found})
    assert {one.judgement.verdict for one in alone} == {"replicates"}
    together = at_holms_levels(alone, {})
    assert {one.judgement.verdict for one in together} == {"undecided"}
    assert {one.judgement.alpha for one in together} == {0.05 / 20}


def test_an_explanation_that_replicates_explains() -> None:
    found = table({"a": 1.0, "b": 0.0})
    why = Claim(text="why", part="p", question=larger(values("a"), values("b")))
    claim = Claim(text="it", part="p", question=larger(values("b"), values("a")), explained_by="why")
    assert [one.judgement.verdict for one in tell([why, claim], {"p": found})] == ["replicates", "explained"]


def test_numbers_have_the_digits_that_their_interval_leaves() -> None:
    question = larger(values("a"), values("b"), unit=Unit("points", 100))
    one = told(question, table({"a": 1.0, "b": 0.0}, spread=0.001))
    assert one.found == "test.x: a less b (n = 5 and 5): 99.99 points [99.86, 100.12]"
