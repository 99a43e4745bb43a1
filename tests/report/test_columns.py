"""What the columns of a study are called."""

from __future__ import annotations

import pytest

from landscope.report.columns import label


@pytest.mark.parametrize(
    ("column", "called"),
    [
        ("train.random_sharpness_0.0005", "random sharpness 0.0005"),
        ("train.corrected.random_sharpness_0.5", "random sharpness 0.5, corrected"),
        ("test.random_sharpness_0.5", "random sharpness 0.5 (test)"),
        ("train.seconds_to_trace.one_probe", "one probe, seconds to trace"),
        ("shapes_shifted.hd95", "shapes shifted hd95"),
        ("hessian_trace", "Hessian trace"),
        # ‖W‖² tr H of one layer: "all layers" it is not.
        ("train.relative_flatness_layerwise", "layerwise relative flatness"),
    ],
)
def test_labels(column: str, called: str) -> None:
    assert label(column) == called
