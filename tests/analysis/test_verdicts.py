"""The one rule: which verdict follows from which effect, and how often it is wrong."""

from __future__ import annotations

import math

import numpy as np
import pytest

from landscope.analysis import (
    Judgement,
    Mean,
    Order,
    Summary,
    difference,
    holm,
    judge,
    judge_all,
    judge_size,
    not_tested,
    runs_needed,
)
from landscope.analysis.verdicts import VERDICTS
from landscope.core.errors import OperandError


def effect(value: float, stderr: float = 1.0, freedom: float = math.inf) -> Mean:
    """A difference of ten runs a side."""
    return Mean(value, 10, stderr, freedom, stderr * math.sqrt(10), 2)


@pytest.mark.parametrize(
    ("ours", "theirs", "margin", "verdict"),
    [
        (effect(3.0), None, None, "replicates"),
        (effect(-3.0), None, None, "excluded"),
        (effect(1.0), None, None, "undecided"),
        (effect(1.0), effect(2.0), None, "undecided"),
        (effect(1.0), effect(5.0), None, "excluded"),  # apart by 4 ± 1.41
        (effect(1.0), effect(3.5), None, "undecided"),  # apart by 2.5 ± 1.41, although 3.5 lies outside of ours
        (effect(1.0), effect(-5.0), None, "undecided"),  # larger than the paper's is not evidence against the claim
        (effect(3.0), effect(9.0), None, "replicates"),  # the direction, but smaller
        (effect(0.1), None, 2.0, "excluded"),
        (effect(0.1), None, 1.0, "undecided"),
        (effect(2.2), None, 5.0, "excluded"),  # shown, and shown not to matter
        (effect(0.1), effect(1.5), 2.0, "undecided"),  # the margin says nothing about a paper inside it
        (Order(0.62, 24), None, None, "replicates"),
        (Order(1.0, 4), None, None, "undecided"),  # four conditions show nothing
        (-Order(0.62, 24), None, None, "excluded"),
        (Order(0.0, 200), Order(0.31, 100), None, "excluded"),
        (Order(0.0, 200), None, 0.2, "excluded"),
    ],
)
def test_a_direction(ours: Mean, theirs: Mean | None, margin: float | None, verdict: str) -> None:
    found = judge(ours, theirs, margin=margin)
    assert found.verdict == verdict
    low, high = found.interval or (math.nan, math.nan)
    if verdict == "replicates":
        assert low > 0
    if verdict == "undecided":
        assert low <= 0 <= high


def test_the_paper_is_judged_by_both_errors() -> None:
    assert "short of the paper's 5 by more than both errors" in judge(effect(1.0), effect(5.0)).why
    assert "but less than the paper's 9" in judge(effect(3.0), effect(9.0)).why


def test_n_comes_from_what_was_planned() -> None:
    spread = math.sqrt(10)
    by_paper = judge(effect(0.3), effect(2.0))
    assert by_paper.needed == runs_needed(2.0, spread)
    assert "on each side would find 2 with a chance of 80%" in by_paper.why
    assert judge(effect(0.3), margin=1.0).needed == runs_needed(1.0, spread)
    assert judge(effect(0.9), margin=1.0).needed == judge(effect(0.3), margin=1.0).needed  # whatever was seen
    assert judge(effect(0.3)).needed is None
    assert judge(Order(0.05, 50), Order(0.2, 100)).needed == 89


def test_a_size() -> None:
    paper = Mean(0.69, 5, 0.02, 4, 0.045)
    assert judge_size(Mean(0.15, 3, 0.02, 2, 0.04), paper, margin=0.1).verdict == "excluded"
    assert judge_size(Mean(0.69, 30, 0.01, 29, 0.05), paper, margin=0.1).verdict == "replicates"
    open_question = judge_size(Mean(0.60, 3, 0.05, 2, 0.09), paper, margin=0.1)
    assert open_question.verdict == "undecided"
    assert open_question.needed is not None
    with pytest.raises(OperandError, match="direction"):
        judge_size(Order(0.1, 10), paper, margin=0.1)
    with pytest.raises(OperandError, match="positive"):
        judge_size(effect(1.0), effect(1.0), margin=0.0)


def test_explained_needs_something_that_is_shown() -> None:
    shown, open_question = judge(effect(4.0)), judge(effect(1.0))
    assert judge(effect(-3.0), explained_by=shown).verdict == "explained"
    assert judge(effect(-3.0), explained_by=open_question).verdict == "excluded"
    assert judge(effect(3.0), explained_by=shown).verdict == "replicates"


def test_holm() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        p = rng.random(6) ** 3
        levels = holm(p.tolist())
        order = np.argsort(p)
        adjusted = np.maximum.accumulate(np.minimum(1, p[order] * np.arange(6, 0, -1)))
        assert ((p[order] <= np.array(levels)[order]) == (adjusted <= 0.05)).all()
    assert holm([]) == []


def test_a_family_is_judged_at_its_levels() -> None:
    def claim(value: float):  # type: ignore[no-untyped-def]
        return lambda alpha: judge(effect(value), alpha=alpha)

    found = judge_all([claim(2.2), claim(9.0), claim(1.0), lambda alpha: not_tested("no runs")])
    assert [each.verdict for each in found] == ["undecided", "replicates", "undecided", "not tested"]
    assert [round(each.alpha, 4) for each in found[:3]] == [0.025, 0.0167, 0.025]
    alone = judge_all([claim(2.2)])[0]
    assert alone.verdict == "replicates"


def test_a_stricter_level_never_turns_a_verdict_round() -> None:
    """Shown at 0.05 and smaller than the paper's at 0.0001: at a stricter level that is undecided, not excluded."""

    def claim(alpha: float) -> Judgement:
        return judge(effect(2.2), effect(9.0), alpha=alpha)

    assert claim(0.05).verdict == "replicates"
    assert claim(0.01).verdict == "excluded"
    assert judge_all([claim] * 5)[0].verdict == "undecided"


def test_how_often_a_verdict_is_wrong() -> None:
    """No effect: "replicates" at most in 2.5 %; the paper's effect with the paper's error: "excluded" at most in 5 %."""
    rng = np.random.default_rng(1)
    wrong = {"none": 0, "same": 0}
    trials = 1500
    for _ in range(trials):
        none, ours, theirs = (rng.normal(size=(2, 5)) for _ in range(3))
        wrong["none"] += judge(difference(*none.tolist())).verdict == "replicates"
        paper = difference(*(Summary.of(side.tolist()) for side in (theirs[0] + 1, theirs[1])))
        wrong["same"] += judge(difference((ours[0] + 1).tolist(), ours[1].tolist()), paper).verdict == "excluded"
    assert wrong["none"] / trials < 0.025 + 3 * 0.004
    assert wrong["same"] / trials < 0.05 + 3 * 0.0056
    assert set(VERDICTS) == {"replicates", "excluded", "undecided", "explained", "not tested"}
