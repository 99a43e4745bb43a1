"""The reliability table and its figure."""

from __future__ import annotations

import io

import calibration_truths as truth
import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from landscope.measures.calibration import ace, ece, mce, reliability


def test_the_table_sums_up_to_the_errors() -> None:
    z, y = truth.drawn(500)
    table = reliability(2 * z, y)
    assert table.ece == pytest.approx(ece(2 * z, y, resamples=0).value)
    assert table.mce == pytest.approx(mce(2 * z, y, resamples=0).value)
    assert reliability(2 * z, y, bins="equal_mass").ece == pytest.approx(ace(2 * z, y, resamples=0).value)
    assert table.counts.sum() == 500


def test_bins_of_equal_mass_hold_equally_many() -> None:
    z, y = truth.drawn(302)
    table = reliability(z, y, 15, bins="equal_mass")
    assert set(table.counts.tolist()) == {20, 21}
    assert (np.diff(table.edges) > 0).all()


def test_the_frame_and_its_intervals() -> None:
    z, y = truth.drawn(200)
    frame = reliability(z, y).to_frame()
    assert list(frame.columns) == ["lower", "upper", "count", "confidence", "accuracy", "accuracy_low", "accuracy_high"]
    held = frame[frame["count"] > 0]
    assert ((held.lower <= held.confidence) & (held.confidence <= held.upper)).all()
    assert frame[frame["count"] == 0].accuracy.isna().all()
    for row in held.itertuples():
        right = round(row.accuracy * row.count)
        wilson = binomtest(right, row.count).proportion_ci(0.95, "wilson")
        assert (row.accuracy_low, row.accuracy_high) == pytest.approx((wilson.low, wilson.high), abs=1e-4)


@pytest.mark.parametrize("n", range(1, 20))
@pytest.mark.parametrize("right", [0, 1])
def test_intervals_of_bins_that_are_all_right_or_all_wrong_are_shares(n: int, right: int) -> None:
    low, high = reliability(torch.zeros(n, 2), torch.full((n,), 1 - right), n_bins=1).accuracy_interval()
    assert 0 <= low[0] < high[0] <= 1
    assert (high if right else low)[0] == pytest.approx(right, abs=1e-12)


def test_bins_must_be_named_exactly() -> None:
    with pytest.raises(ValueError, match="equal_mass"):
        reliability(*truth.drawn(5), bins="quantile")


@pytest.mark.parametrize("n", [1, 400])
def test_the_figure_needs_no_pyplot(n: int) -> None:
    import sys

    z, y = truth.drawn(n)
    figure = reliability(z, y).plot()
    assert "matplotlib.pyplot" not in sys.modules or not sys.modules["matplotlib.pyplot"].get_fignums()
    figure.savefig(buffer := io.BytesIO(), format="png")
    assert buffer.getvalue().startswith(b"\x89PNG")
    assert [axes.get_xlabel() for axes in figure.axes] == ["", "confidence"]


def test_the_figure_may_be_part_of_another() -> None:
    from matplotlib.figure import Figure

    whole = Figure()
    axes = whole.subplots(1, 2)
    assert reliability(torch.randn(20, 3), torch.arange(20) % 3).plot(ax=axes[0]) is whole
    assert not axes[1].has_data()
