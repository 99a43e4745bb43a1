"""Skulls with holes, after the fourth paper: 64³ binary shells to be completed, 100 to learn from and 100 to test.

The paper's skulls are not public; these are one head, smoothly deformed by seed. The input is a skull with a piece
missing, the target the whole one. Training, validation and test share one kind of defect, a round hole high on the
vault; the test skulls have a second one besides, differing in shape, size and place (a larger, box-shaped piece out of
the forehead or a side), in `extra["test_shifted"]`. `shells` is the same from an ellipsoid: it needs no file.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from landscope.core.seeding import generator
from landscope.data.dataset import DataSet, Raw, Split
from landscope.data.files import Files
from landscope.data.sets.skull_volumes import HEADS, ct_skull, deformed, head_volume, mri_skull, phantom_skull


def _positions(size: int) -> Tensor:
    """Voxel centres (size³, 3) as (z, y, x) in [−1, 1]."""
    line = torch.linspace(-1 + 1 / size, 1 - 1 / size, size)
    return torch.stack(torch.meshgrid(line, line, line, indexing="ij"), -1).reshape(-1, 3)


def _hit(shells: Tensor, directions: Tensor, places: Tensor) -> Tensor:
    """Voxel of each shell (n, 3) that lies closest to a direction (n, 3) seen from the shell's centre."""
    inside = shells.flatten(1)
    centres = inside.float() @ places / inside.sum(1, keepdim=True).clamp(min=1)
    along = directions @ places.T - (directions * centres).sum(1, keepdim=True)
    cosine = along / torch.cdist(centres, places).clamp(min=1e-6)
    return places[cosine.masked_fill(~inside, -2.0).argmax(1)]


def _spherical(elevation: Tensor, azimuth: Tensor) -> Tensor:
    """Directions as unit vectors (z, y, x); azimuth 0 is the forehead."""
    return torch.stack([elevation.sin(), elevation.cos() * azimuth.cos(), elevation.cos() * azimuth.sin()], -1)


def round_defect(shells: Tensor, seed: int, stream: str) -> Tensor:
    """Shells (n, d, d, d) with a round hole each, 25° to 65° above the horizon, of radius 0.2 to 0.28 half widths."""
    rng, n, places = generator(seed, "round defect", stream), len(shells), _positions(shells.shape[-1])
    u = torch.rand(n, 3, generator=rng).T
    centres = _hit(shells, _spherical(math.radians(25) + math.radians(40) * u[0], 2 * math.pi * u[1]), places)
    holes = torch.cdist(centres, places) < (0.2 + 0.08 * u[2])[:, None]
    return shells & ~holes.reshape(shells.shape)


def box_defect(shells: Tensor, seed: int, stream: str) -> Tensor:
    """Shells (n, d, d, d) with a box-shaped hole each, −10° to 15° above the horizon, in front or on a side."""
    rng, n, places = generator(seed, "box defect", stream), len(shells), _positions(shells.shape[-1])
    u = torch.rand(n, 5, generator=rng).T
    side = (3 * u[1]).floor() - 1
    outward = _spherical(math.radians(-10) + math.radians(25) * u[0], math.pi / 2 * side + 0.3 * (u[2] - 0.5))
    centres = _hit(shells, outward, places)
    upward = torch.tensor([1.0, 0.0, 0.0]).expand_as(outward)
    across = torch.nn.functional.normalize(torch.linalg.cross(outward, upward), dim=1)
    holes = torch.ones(n, len(places), dtype=torch.bool)
    for axis, half in (
        (outward, torch.full((n,), 0.25)),
        (across, 0.24 + 0.12 * u[3]),
        (torch.linalg.cross(outward, across), 0.16 + 0.08 * u[4]),
    ):
        holes &= (axis @ places.T - (axis * centres).sum(1, keepdim=True)).abs() < half[:, None]
    return shells & ~holes.reshape(shells.shape)


def _shapes(levels: Tensor, seed: int, size: int, n_train: int, n_validation: int, n_test: int) -> Raw:
    def split(n: int, stream: str) -> Split:
        whole = deformed(levels, n, size, seed, stream)
        return Split(round_defect(whole, seed, stream).unsqueeze(1).float(), whole.unsqueeze(1).float())

    test = split(n_test, "test")
    return Raw(
        train=split(n_train, "train"),
        validation=split(n_validation, "validation"),
        evaluation=test,
        beside={"shifted": box_defect(test.y[:, 0] > 0, seed, "test").unsqueeze(1).float()},
        notes="inputs: skulls with a round hole; targets: whole; extra['test_shifted']: the test skulls with box holes",
    )


def _skulls(
    files: Files, *, seed: int, size: int = 64, n_train: int = 100, n_validation: int = 20, n_test: int = 100
) -> Raw:
    levels = mri_skull if files.version.name == "mri" else ct_skull
    return _shapes(levels(head_volume(files)), seed, size, n_train, n_validation, n_test)


def _shells(*, seed: int, size: int = 64, n_train: int = 100, n_validation: int = 20, n_test: int = 100) -> Raw:
    return _shapes(phantom_skull(), seed, size, n_train, n_validation, n_test)


_AFTER = (
    "After: L. Adilova, A. Abourayya, J. Li, A. Dada, H. Petzka, J. Egger, J. Kleesiek, M. Kamp. "
    "FAM: Relative Flatness Aware Minimization. 2023."
)

SKULLS = DataSet(
    name="skulls",
    title="Skulls with defects",
    task="reconstruction",
    read=_skulls,
    licence="BSD-3-Clause (MRIcron's ch2); none stated (VTK's headsq)",
    citation=f"{_AFTER} Head: C. J. Holmes et al. Enhancement of MR images using registration for signal "
    "averaging. Journal of Computer Assisted Tomography 22(2), 1998.",
    source="https://www.nitrc.org/projects/mricron",
    versions=HEADS,
)
SHELLS = DataSet(
    name="shells",
    title="Ellipsoidal shells with defects",
    task="reconstruction",
    read=_shells,
    licence="none needed: computed",
    citation=_AFTER,
    source="computed",
)
