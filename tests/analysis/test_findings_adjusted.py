"""Adjusted p-values against SciPy and against the definition, by hand."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from landscope.analysis import adjust, benjamini_hochberg, benjamini_yekutieli
from landscope.core.errors import OperandError, UnknownNameError


def test_scipy_agrees() -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        p = np.round(rng.random(1 + 3 * seed) ** 3, 2)  # with ties, and zeros
        assert benjamini_hochberg(list(p)) == pytest.approx(stats.false_discovery_control(p, method="bh"), abs=1e-14)
        assert benjamini_yekutieli(list(p)) == pytest.approx(stats.false_discovery_control(p, method="by"), abs=1e-14)


def test_by_hand() -> None:
    # 4 · 0.005 = 0.02;  4/2 · 0.03 = 0.06, but 4/3 · 0.03 = 0.04 is less;  4/4 · 0.8
    assert benjamini_hochberg([0.03, 0.8, 0.005, 0.03]) == pytest.approx([0.04, 0.8, 0.02, 0.04])
    c = 1 + 1 / 2 + 1 / 3 + 1 / 4
    assert benjamini_yekutieli([0.03, 0.8, 0.005, 0.03]) == pytest.approx([c * 0.04, 1, c * 0.02, c * 0.04])


def test_families_are_adjusted_apart_and_missing_tests_do_not_count() -> None:
    p = [0.01, 0.02, None, 0.03, 0.04]
    found = adjust(p, "benjamini_hochberg", families=["a", "a", "a", "b", "b"])
    assert found == [*benjamini_hochberg([0.01, 0.02]), None, *benjamini_hochberg([0.03, 0.04])]
    assert adjust([]) == []
    assert adjust([None]) == [None]


def test_false_discoveries_stay_rare_under_dependence() -> None:
    """Half of 20 tests are true nulls that share one noise; the share of false findings stays under α."""
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(400):
        z = 0.7 * rng.normal() + 0.7 * rng.normal(size=20) + np.repeat([0, 3], 10)
        q = benjamini_yekutieli(list(stats.norm.sf(z)))
        found = [i for i, value in enumerate(q) if value is not None and value <= 0.05]
        shares.append(sum(i < 10 for i in found) / max(len(found), 1))
    assert np.mean(shares) <= 0.05


def test_wrong_arguments() -> None:
    with pytest.raises(OperandError, match="between 0 and 1"):
        benjamini_yekutieli([0.5, 1.5])
    with pytest.raises(OperandError, match="between 0 and 1"):
        benjamini_yekutieli([float("nan")])
    with pytest.raises(OperandError, match="one family"):
        benjamini_yekutieli([0.5, 0.5], families=["a"])
    with pytest.raises(UnknownNameError, match="benjamini_hochberg"):
        adjust([0.5], "holm")  # type: ignore[arg-type]
