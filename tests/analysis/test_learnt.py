"""Models that have not learnt."""

from __future__ import annotations

import math

import numpy as np

from landscope.analysis import fits, guessing, learnt


def test_half_of_guessing_is_the_bar() -> None:
    found = learnt([0.0, 0.96, 0.98, 1.48, math.nan, math.inf, None], chance=math.log(7))
    assert found.kept.tolist() == [True, True, False, False, False, False, False]
    assert found.left_out == 5
    assert (
        "5 of 7 models have not learnt (training loss not below 0.973, half of what guessing gives)" in found.sentence
    )
    assert learnt([0.1], chance=2.0).sentence == ""
    assert learnt([1.5], chance=2.0, share=0.8).kept.all()


def test_one_percent_of_the_training_rows() -> None:
    found = fits([0.0, 0.01, 0.011, None])
    assert found.kept.tolist() == [True, True, False, False]
    assert fits([0.4], at_most=0.5).left_out == 0


def test_guessing_is_told_from_a_first_epoch() -> None:
    for classes in (2, 7, 10, 100, 50_000):
        assert guessing(math.log(classes), 1 - 1 / classes) == math.log(classes)
    rng = np.random.default_rng(0)
    logits = 0.3 * rng.normal(size=(4000, 10))  # a network at its start
    labels = rng.integers(0, 10, 4000)
    loss = float(np.mean(np.log(np.exp(logits).sum(1)) - logits[np.arange(4000), labels]))
    assert guessing(loss, float(np.mean(logits.argmax(1) != labels))) == loss
    assert guessing(0.25, 0.06) is None  # one epoch was enough
    assert guessing(2.9, 0.6) is None  # a language model that was trained before
    assert guessing(math.nan, 0.9) is None
