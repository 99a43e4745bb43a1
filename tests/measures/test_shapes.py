"""Scores of shapes against closed forms: shifted boxes, balls in balls, a stray voxel, and distances found by hand."""

from __future__ import annotations

import math

import pytest
import torch

from landscope.core.errors import OperandError
from landscope.core.estimate import Status
from landscope.measures.shapes import dice_score, hausdorff, hd95, shape_scores, surface_distances, variety

SIZE = 24


def box(start: int, side: int = 8) -> torch.Tensor:
    """A cube from (start, 8, 8) on, as (1, 1, SIZE, SIZE, SIZE)."""
    volume = torch.zeros(1, 1, SIZE, SIZE, SIZE, dtype=torch.bool)
    volume[0, 0, start : start + side, 8 : 8 + side, 8 : 8 + side] = True
    return volume


@pytest.mark.parametrize("shift", [0, 1, 3, 8])
def test_shifted_box(shift):
    a, b = box(4), box(4 + shift)
    assert dice_score(a, b).item() == pytest.approx((8 - shift) / 8)
    assert hausdorff(a, b).item() == shift
    assert hd95(a, b).item() <= shift


def test_a_box_in_a_larger_one_is_as_far_as_their_corners():
    inner = torch.zeros(1, SIZE, SIZE, SIZE, dtype=torch.bool)
    outer = inner.clone()
    inner[0, 10:14, 10:14, 10:14] = True
    outer[0, 7:17, 7:17, 7:17] = True
    assert hausdorff(inner, outer).item() == pytest.approx(3 * math.sqrt(3))
    assert hausdorff(outer, inner).item() == pytest.approx(3 * math.sqrt(3))
    assert dice_score(inner, outer).item() == pytest.approx(2 * 64 / (64 + 1000))


def test_distances_are_those_of_all_pairs_of_surface_voxels():
    rng = torch.Generator().manual_seed(0)
    for density in (0.02, 0.5, 0.98):
        a, b = (torch.rand(2, 9, 8, 7, generator=rng) < density).unbind()
        places = [_faces(shape).nonzero().double() for shape in (a, b)]
        apart = (places[0][:, None] - places[1][None]).square().sum(-1).sqrt()
        expected = torch.cat([apart.amin(1), apart.amin(0)])
        torch.testing.assert_close(surface_distances(a, b), expected, rtol=1e-12, atol=1e-12)
        assert hausdorff(a[None], b[None]).item() == pytest.approx(expected.max().item())
        assert hd95(a[None], b[None]).item() == pytest.approx(torch.quantile(expected, 0.95).item())


def _faces(shape: torch.Tensor) -> torch.Tensor:
    """Voxels with a face to the outside, by shifting the padded shape."""
    padded = torch.nn.functional.pad(shape, (1,) * 6)
    inside = padded.clone()
    for axis in range(3):
        inside &= padded.roll(1, axis) & padded.roll(-1, axis)
    return (padded & ~inside)[1:-1, 1:-1, 1:-1]


def test_one_stray_voxel_moves_the_largest_distance_and_not_the_quantile():
    true = box(8)
    stray = true.clone()
    stray[0, 0, 0, 0, 0] = True
    assert hausdorff(stray, true).item() == pytest.approx(8 * math.sqrt(3))
    assert hd95(stray, true).item() == 0


def test_empty_shapes():
    nothing, something = torch.zeros_like(box(0)), box(0)
    assert dice_score(nothing, nothing).item() == 1
    assert dice_score(nothing, something).item() == 0
    assert hausdorff(nothing, nothing).item() == hd95(nothing, nothing).item() == 0
    assert hausdorff(nothing, something).item() == hd95(something, nothing).item() == math.inf
    scores = shape_scores(torch.cat([nothing, something]), torch.cat([something, something]))
    assert scores["dsc"].value == 0.5
    assert scores["hd"].status is scores["hd95"].status is Status.NOT_APPLICABLE
    assert "1 of 2" in scores["hd"].reason


def test_scores_are_means_with_the_spread_of_the_rows():
    a, b = torch.cat([box(4), box(4), box(4)]), torch.cat([box(4), box(6), box(8)])
    scores = shape_scores(a, b)
    assert scores["dsc"].value == pytest.approx((1 + 0.75 + 0.5) / 3)
    assert scores["hd"].value == pytest.approx(2)
    assert scores["hd"].data_stderr == pytest.approx(2 / math.sqrt(3))
    assert scores["variety"].value == 0
    one = shape_scores(a[:1], b[:1])
    assert one["dsc"].value == 1
    assert one["variety"].status is Status.NOT_APPLICABLE


def test_variety_is_one_less_the_mean_score_of_pairs():
    shapes = torch.cat([box(4), box(6), box(12), torch.zeros_like(box(0))])
    pairs = [dice_score(shapes[i : i + 1], shapes[j : j + 1]).item() for i in range(4) for j in range(i)]
    assert variety(shapes) == pytest.approx(1 - sum(pairs) / len(pairs))
    assert variety(box(4).expand(5, -1, -1, -1, -1)) == 0


def test_what_is_no_shape_is_refused():
    with pytest.raises(OperandError, match="threshold with `> 0.5`"):
        dice_score(torch.rand(1, 3), torch.ones(1, 3, dtype=torch.bool))
    with pytest.raises(OperandError, match="the same shape"):
        hausdorff(box(0), box(0)[:, 0])
    with pytest.raises(OperandError, match="expected at least 2, got 1"):
        variety(box(0))
