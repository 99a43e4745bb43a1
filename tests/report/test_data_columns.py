"""What the columns of a study are called, and which of them are one and the same."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from landscope.report.data.columns import default_measures, label, measures_behind, repeated
from landscope.studies.record import Record


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
        ("train.hessian_spectrum", "Hessian λ₁, of the spectrum"),
        ("consistency.linear_cka", "consistency linear CKA"),
        ("test.my_package.sharpness:My_measure", "My measure (test)"),
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


def test_a_name_of_the_study_s_own_is_traced_to_its_measure() -> None:
    measures = {"ece_10_bins": {"measure": "ece", "n_bins": 10}, "error": None, "near": {"measure": "random_sharpness"}}
    spec = {"measuring": {"splits": {"test": {"measures": measures}, "train": {"measures": "all"}}}}
    record = Record(run="a", condition="b", axes={}, seed=0, spec=spec, subjects=())
    behind = measures_behind([record])
    assert behind == {"test.ece_10_bins": "ece", "test.near": "random_sharpness"}
    frame = pd.DataFrame({"test.ece_10_bins": [0.1], "test.near": [1.0], "test.error": [0.2], "train.mine": [2.0]})
    assert default_measures(frame, ["test.error"], behind) == ["test.near", "train.mine"]


def test_a_spectrum_stands_for_its_top_eigenvalue_where_that_is_missing() -> None:
    spectra = pd.DataFrame({"train.hessian_spectrum": [1.0], "train.ggn_spectrum": [1.0]})
    assert default_measures(spectra, []) == list(spectra)
    both = spectra.assign(**{"train.ggn_top_eigenvalue": [1.0]})
    assert default_measures(both, []) == ["train.hessian_spectrum", "train.ggn_top_eigenvalue"]
