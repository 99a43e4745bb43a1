"""Shapes with holes: from the phantom, from volumes written by the tests, and the two kinds of defects."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from data_samples import SAMPLES, phantom_head
from scipy import ndimage

from landscope.data import load
from landscope.data.sets.skull_volumes import Volume, deformed, mri_skull, phantom_skull, spline_basis
from landscope.data.sets.skulls import box_defect, round_defect


def parts(mask: torch.Tensor) -> int:
    return int(ndimage.label(mask.numpy(), np.ones((3, 3, 3)))[1])


def test_splines_reproduce_lines() -> None:
    """Cubic B-splines with coefficients on a line give that line, exactly."""
    basis = spline_basis(50, 7).double()
    line = basis @ torch.arange(-1, 6, dtype=torch.float64)
    assert torch.allclose(line, torch.linspace(0, 4, 50, dtype=torch.float64), atol=1e-6)


def test_no_deformation_gives_the_shape_itself() -> None:
    levels = phantom_skull(32)
    (still,) = deformed(levels, 1, 32, 0, "t", stretch=0, angle=0, bend=0)
    assert torch.equal(still, (levels < 0).all(0))


def test_shapes_depend_on_their_number_alone() -> None:
    levels = phantom_skull(32)
    many = deformed(levels, 10, 24, 3, "t", chunk=4)
    few = deformed(levels, 2, 24, 3, "t")
    assert torch.equal(many[:2], few)
    assert not torch.equal(many[0], many[1])
    assert not torch.equal(few, deformed(levels, 2, 24, 4, "t"))


def test_the_skull_is_found_between_brain_and_skin() -> None:
    head = phantom_head()
    levels = mri_skull(Volume(head.astype(np.float32), (4.0, 4.0, 4.0)))
    skull = (levels < 0).all(0).numpy()
    assert ndimage.label(skull)[1] == 1
    # Closed: what lies inside cannot be reached from outside.
    filled = ndimage.binary_fill_holes(skull)
    assert filled.sum() > 3 * skull.sum()
    # In the phantom's dark layer, at the resolution of the volume.
    from landscope.data.sets.skull_volumes import _cubic

    dark = _cubic(Volume((head == 10).astype(np.float32), (4.0, 4.0, 4.0)), 2.2, 112) > 0.5
    assert (skull & ndimage.binary_dilation(dark, iterations=2)).sum() > 0.97 * skull.sum()


@pytest.mark.parametrize("defect", [round_defect, box_defect])
def test_a_defect_is_one_piece_of_the_shell(defect: object) -> None:
    shells = deformed(phantom_skull(), 6, 48, 0, "t")
    holed = defect(shells, 0, "t")
    removed = shells & ~holed
    assert not bool((holed & ~shells).any())
    for shell, hole in zip(shells, removed, strict=True):
        assert 0.01 < float(hole.sum() / shell.sum()) < 0.25
        assert parts(hole) == 1
    assert torch.equal(holed, defect(shells, 0, "t"))
    assert torch.equal(holed[:2], defect(shells[:2], 0, "t"))


def test_the_two_kinds_differ_in_place_and_size() -> None:
    shells = deformed(phantom_skull(), 12, 48, 0, "t")
    height = torch.arange(48.0)[None, :, None, None]

    def mean_height(mask: torch.Tensor) -> torch.Tensor:
        return (mask * height).sum((1, 2, 3)) / mask.sum((1, 2, 3))

    a, b = shells & ~round_defect(shells, 0, "t"), shells & ~box_defect(shells, 0, "t")
    assert float((mean_height(a) - mean_height(b)).mean()) > 4
    assert float(b.sum()) > 1.2 * float(a.sum())
    assert float((a & b).sum()) < 0.1 * float(a.sum())


@pytest.mark.parametrize("case", ["skulls", "skulls/ct"])
def test_as_a_data_set(case: str, sample_roots: dict[str, Path]) -> None:
    data = load("skulls", root=sample_roots[case], verify=False, **SAMPLES[case][1])
    assert data.train.x.shape == data.train.y.shape
    assert set(data.train.x.unique().tolist()) == {0.0, 1.0}
    assert bool((data.train.x <= data.train.y).all())
    assert bool((data.extra["test_shifted"] <= data.test.y).all())
    assert not torch.equal(data.extra["test_shifted"], data.test.x)
    assert data.card.task == "reconstruction"
