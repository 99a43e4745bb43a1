"""What the columns of a study are called, and which of them are one and the same."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from landscope.report.data.columns import label, repeated


@pytest.mark.parametrize(
    ("column", "called"),
    [
        ("train.random_sharpness_0.0005", "random sharpness 0.0005"),
        ("train.corrected.random_sharpness_0.5", "random sharpness 0.5, corrected"),
        ("test.random_sharpness_0.5", "random sharpness 0.5 (test)"),
        ("train.seconds_to_trace.one_probe", "one probe, seconds to trace"),
        ("shapes.dsc", "Dice score"),
        ("shapes_shifted.hd95", "Hausdorff distance at 95 % (shifted)"),
        ("hessian_trace", "Hessian trace"),
        # ‖W‖² tr H of one layer: "all layers" it is not.
        ("train.relative_flatness_layerwise", "layerwise relative flatness"),
    ],
)
def test_labels(column: str, called: str) -> None:
    assert label(column) == called


KAPPA = [2.0, 3.0, 5.0, 0.0, math.nan]


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ([4.0, 6.0, 10.0, 0.0, math.nan], True),
        ([4.0, 6.00003, 10.0, 0.0, math.nan], True),  # as another way to compute it would differ
        ([4.0, 6.01, 10.0, 0.0, math.nan], False),
        ([4.0, 6.0, 10.0, 1e-9, math.nan], False),
        ([-4.0, -6.0, -10.0, 0.0, math.nan], False),  # the larger the flatter
        ([5.0, 6.0, 8.0, 3.0, math.nan], False),  # a sum is another measure
        ([4.0, 6.0, 10.0, 0.0, 1.0], False),  # it says more
    ],
)
def test_a_measure_in_other_units_is_the_same(other: list[float], same: bool) -> None:
    frame = pd.DataFrame({"kappa": KAPPA, "other": other, "kappa again": KAPPA})
    assert repeated(frame, ["kappa", "other"]) == ({"other": "kappa"} if same else {})
    assert repeated(frame, ["other", "kappa", "kappa again"])["kappa again"] == ("other" if same else "kappa")


def test_two_models_or_constants_are_not_enough_to_tell() -> None:
    assert repeated(pd.DataFrame({"a": [1.0, 2.0], "b": [2.0, 4.0]}), ["a", "b"]) == {}
    assert repeated(pd.DataFrame({"a": [1.0] * 5, "b": [2.0] * 5}), ["a", "b"]) == {}
    assert repeated(pd.DataFrame({"a": [0.0] * 5, "b": [0.0] * 5}), ["a", "b"]) == {}
