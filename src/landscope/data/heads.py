"""Head volumes, and the surfaces of a skull found in them.

Three heads: `mri`, a T1 image at 1 mm with the whole vault (Holmes et al. 1998, MRIcron's `ch2`); `ct`, VTK's `headsq`,
where bone is bright but the vault is cut off; and `phantom`, two ellipsoids, which needs no file. A skull is the set of
voxels where every one of its level functions is negative, (k, depth, height, width) on a cubic grid with z upwards, so
that it can be deformed smoothly and sampled at any size.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch
from scipy import ndimage
from torch import Tensor

from landscope.core.errors import DamagedFileError
from landscope.data.formats.nifti import Volume, parse_nifti
from landscope.data.formats.npy import parse_npz
from landscope.data.source import Files, Version

__all__ = ["HEADS", "ct_skull", "head_volume", "mri_skull", "phantom_skull"]

HEADS = (
    Version(
        name="mri",
        folders=("head",),
        files={"ch2.nii": "sha256:707a360b809ba937f6c007231bcf7dc6e2d33657497b254414c9894b6efa5f8c"},
        by_hand="ch2.nii.gz is a template of MRIcron (in Debian: package mricron-data).",
    ),
    Version(
        name="ct",
        folders=("head",),
        files={"headsq.npz": "sha256:864602b222926921333f87922f2d737b2bc31b8fbdea5250d727ecda67ef7210"},
        by_hand="headsq.npz holds the 93 slices of headsq from VTK's data as the array 'volume'.",
    ),
)


def head_volume(files: Files) -> Volume:
    """Volume with z upwards and y forwards, and its spacing in millimetres."""
    if files.version.name == "mri":
        path = files.path("ch2.nii")
        volume = parse_nifti(files.read("ch2.nii"), path)
    else:
        path = files.path("headsq.npz")
        voxels = parse_npz(files.read("headsq.npz"), path, "volume")
        if voxels.ndim != 3 or voxels.dtype.kind == "c":
            raise DamagedFileError(f"{path}: 'volume' is {voxels.dtype} of {voxels.ndim} dimensions, not real of 3")
        volume = Volume(voxels[::-1, ::-1].astype(np.float32), (1.5, 3.2, 3.2))
    sides = [n * step for n, step in zip(volume.voxels.shape, volume.spacing, strict=True)]
    if not all(10 < side < 1000 for side in sides) or not np.isfinite(volume.voxels).all():
        measured = "×".join(f"{side:.3g}" for side in sides)
        raise DamagedFileError(
            f"{path}: {measured} mm, or voxels that are not finite: expected a head. The file is damaged"
        )
    return volume


def _cubic(volume: Volume, spacing: float, size: int) -> npt.NDArray[np.float32]:
    """Resample to a cube of `size` voxels with the given spacing, the volume in the middle."""
    zoomed = ndimage.zoom(volume.voxels, [s / spacing for s in volume.spacing], order=1)
    cube = np.zeros((size, size, size), np.float32)
    here, there = [], []
    for n in zoomed.shape:
        start = (size - n) // 2
        here.append(slice(max(0, start), max(0, start) + min(n, size)))
        there.append(slice(max(0, -start), max(0, -start) + min(n, size)))
    cube[tuple(here)] = zoomed[tuple(there)]
    return cube


def _largest(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    parts, n = ndimage.label(mask)
    if n == 0:
        raise DamagedFileError("no head was found in the volume: nothing is brighter than the background")
    sizes = np.bincount(parts.ravel())
    sizes[0] = 0
    return np.asarray(parts == sizes.argmax())


def _signed_distance(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    """Distance to the surface in voxels, negative inside, smoothed by one voxel."""
    outside, inside = ndimage.distance_transform_edt(~mask), ndimage.distance_transform_edt(mask)
    return np.asarray(ndimage.gaussian_filter(outside - inside, 1.0), np.float32)


def ct_skull(volume: Volume, size: int = 112) -> Tensor:
    """Level function (1, size, size, size) of what absorbs more than 1,150, VTK's own threshold for bone here."""
    cube = _cubic(volume, 2.1, size)
    return torch.from_numpy(ndimage.gaussian_filter(1150 - cube, 0.7) / 1150).unsqueeze(0)


def mri_skull(volume: Volume, size: int = 112) -> Tensor:
    """Level functions (2, size, size, size) of the outer and inner surface of the skull.

    Bone gives no signal, so the skull is what lies 1 to 8 mm outside the brain's envelope and at least 3 mm under the
    skin; the brain is found by eroding the bright voxels until it comes apart from the scalp.
    """
    spacing = 2.2
    cube = ndimage.gaussian_filter(_cubic(volume, spacing, size), 0.5)
    bright = float(np.percentile(cube[cube > cube.max() * 0.1], 90))
    skin = _largest(ndimage.binary_fill_holes(cube > 0.2 * bright))
    ball = ndimage.iterate_structure(ndimage.generate_binary_structure(3, 1), 2)
    core = _largest(ndimage.binary_erosion(cube > 0.6 * bright, ball))
    envelope = ndimage.binary_closing(np.pad(ndimage.binary_dilation(core, ball), 12), ball, iterations=4)
    brain = ndimage.binary_fill_holes(envelope[12:-12, 12:-12, 12:-12])
    from_brain, from_skin = _signed_distance(brain), _signed_distance(skin)
    outer = np.maximum(from_brain - 8 / spacing, from_skin + 3 / spacing)
    return torch.from_numpy(np.stack([outer, 1 / spacing - from_brain]))


def phantom_skull(size: int = 112) -> Tensor:
    """Level functions of an ellipsoidal shell, open at the bottom like a skull cap.

    >>> phantom_skull(16).shape
    torch.Size([3, 16, 16, 16])
    """
    z, y, x = torch.meshgrid(*[torch.linspace(-1, 1, size)] * 3, indexing="ij")

    def ellipsoid(scale: float) -> Tensor:
        return ((z / 0.72) ** 2 + (y / 0.82) ** 2 + (x / 0.66) ** 2).sqrt() - scale

    return torch.stack([ellipsoid(1.0), 0.86 - ellipsoid(0.0), -z - 0.45])
