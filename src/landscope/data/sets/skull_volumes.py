"""Head volumes, and the surfaces of a skull found in them.

Three heads: `mri`, a T1 image at 1 mm with the whole vault (Holmes et al. 1998, MRIcron's `ch2`); `ct`, VTK's `headsq`,
where bone is bright but the vault is cut off; and `phantom`, two ellipsoids, which needs no file. A skull is the set of
voxels where every one of its level functions is negative, (k, depth, height, width) on a cubic grid with z upwards, so
that it can be deformed smoothly and sampled at any size.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy
import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from landscope.core.errors import DamagedFileError
from landscope.core.seeding import generator
from landscope.data.files import Files, Version
from landscope.data.formats import parse_npz

# NIfTI-1 volumes, the single-file form (`.nii`, zipped or not), without a library.
#
# The header has 348 bytes: sizes at 40, type code at 70, voxel spacing at 76, offset of the data at 108, slope and
# intercept at 112 and 116, the magic `n+1` at 344. Its first number gives the byte order. A slope of 0, or one that is not
# finite, means that the voxels are not scaled at all; an intercept that is NaN means none.


_TYPES = {2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8", 256: "i1", 512: "u2", 768: "u4"}


@dataclass(frozen=True)
class Volume:
    """Voxels (depth, height, width) = (z, y, x) and their spacing in the same order, in millimetres."""

    voxels: npt.NDArray[np.float32]
    spacing: tuple[float, float, float]


def parse_nifti(content: bytes, path: Path) -> Volume:
    """Volume in the NIfTI-1 file `content`, which was read from `path`."""
    if len(content) < 352:
        raise DamagedFileError(f"{path}: {len(content)} bytes are too few for a NIfTI header")
    order = next((o for o in "<>" if struct.unpack_from(f"{o}i", content)[0] == 348), None)
    if order is None or content[344:347] != b"n+1":
        raise DamagedFileError(
            f"{path}: is not a single-file NIfTI-1 volume (header {content[:4].hex()}, no magic 'n+1')"
        )
    dims = struct.unpack_from(f"{order}8h", content, 40)
    code = struct.unpack_from(f"{order}h", content, 70)[0]
    spacing = struct.unpack_from(f"{order}8f", content, 76)[1:4]
    offset, slope, intercept = struct.unpack_from(f"{order}3f", content, 108)
    if code not in _TYPES:
        raise DamagedFileError(f"{path}: voxel type {code} is not one of {sorted(_TYPES)}")
    if not (3 <= dims[0] <= 7 and min(dims[1:4]) > 0 and all(n == 1 for n in dims[4 : dims[0] + 1])):
        raise DamagedFileError(f"{path}: dimensions {dims[1 : max(dims[0], 0) + 1]} are not those of one volume")
    dtype = np.dtype(order + _TYPES[code])
    if not (offset >= 348 and offset.is_integer()):
        raise DamagedFileError(f"{path}: its voxels begin at byte {offset:g}; expected a whole number of 348 or more")
    start, needed = int(offset), math.prod(dims[1:4]) * dtype.itemsize
    if len(content) - start < needed:
        raise DamagedFileError(
            f"{path}: its header promises {needed:,} bytes of voxels from byte {start}, "
            f"{max(0, len(content) - start):,} are there; it is truncated"
        )
    if not (all(map(math.isfinite, spacing)) and not math.isinf(intercept)):
        raise DamagedFileError(f"{path}: its spacing {spacing} and intercept {intercept} must be finite; it is damaged")
    flat = np.frombuffer(content, dtype, count=math.prod(dims[1:4]), offset=start)
    with np.errstate(over="ignore", invalid="ignore"):  # what is beyond float32 is infinite
        voxels = flat.reshape(dims[3], dims[2], dims[1]).astype(np.float32)
        if slope and math.isfinite(slope):
            voxels = voxels * np.float32(slope) + np.float32(0.0 if math.isnan(intercept) else intercept)
    return Volume(voxels, (abs(spacing[2]) or 1.0, abs(spacing[1]) or 1.0, abs(spacing[0]) or 1.0))


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
    zoomed = scipy.ndimage.zoom(volume.voxels, [s / spacing for s in volume.spacing], order=1)
    cube = np.zeros((size, size, size), np.float32)
    here, there = [], []
    for n in zoomed.shape:
        start = (size - n) // 2
        here.append(slice(max(0, start), max(0, start) + min(n, size)))
        there.append(slice(max(0, -start), max(0, -start) + min(n, size)))
    cube[tuple(here)] = zoomed[tuple(there)]
    return cube


def _largest(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.bool_]:
    parts, n = scipy.ndimage.label(mask)
    if n == 0:
        raise DamagedFileError("no head was found in the volume: nothing is brighter than the background")
    sizes = np.bincount(parts.ravel())
    sizes[0] = 0
    return np.asarray(parts == sizes.argmax())


def _signed_distance(mask: npt.NDArray[np.bool_]) -> npt.NDArray[np.float32]:
    """Distance to the surface in voxels, negative inside, smoothed by one voxel."""
    outside, inside = scipy.ndimage.distance_transform_edt(~mask), scipy.ndimage.distance_transform_edt(mask)
    return np.asarray(scipy.ndimage.gaussian_filter(outside - inside, 1.0), np.float32)


def ct_skull(volume: Volume, size: int = 112) -> Tensor:
    """Level function (1, size, size, size) of what absorbs more than 1,150, VTK's own threshold for bone here."""
    cube = _cubic(volume, 2.1, size)
    return torch.from_numpy(scipy.ndimage.gaussian_filter(1150 - cube, 0.7) / 1150).unsqueeze(0)


def mri_skull(volume: Volume, size: int = 112) -> Tensor:
    """Level functions (2, size, size, size) of the outer and inner surface of the skull.

    Bone gives no signal, so the skull is what lies 1 to 8 mm outside the brain's envelope and at least 3 mm under the
    skin; the brain is found by eroding the bright voxels until it comes apart from the scalp.
    """
    spacing = 2.2
    cube = scipy.ndimage.gaussian_filter(_cubic(volume, spacing, size), 0.5)
    bright = float(np.percentile(cube[cube > cube.max() * 0.1], 90))
    skin = _largest(scipy.ndimage.binary_fill_holes(cube > 0.2 * bright))
    ball = scipy.ndimage.iterate_structure(scipy.ndimage.generate_binary_structure(3, 1), 2)
    core = _largest(scipy.ndimage.binary_erosion(cube > 0.6 * bright, ball))
    envelope = scipy.ndimage.binary_closing(np.pad(scipy.ndimage.binary_dilation(core, ball), 12), ball, iterations=4)
    brain = scipy.ndimage.binary_fill_holes(envelope[12:-12, 12:-12, 12:-12])
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


# Seeded smooth deformations of a volume, many at once.
#
# A deformation is a rotation and a stretch of a few per cent, and a displacement field spanned by cubic B-splines on a
# coarse grid (Rueckert et al. 1999), drawn per shape.


def spline_basis(size: int, knots: int) -> Tensor:
    """Matrix (size, knots) of cubic B-splines at `size` even places; each row sums to 1.

    >>> bool(torch.allclose(spline_basis(64, 7).sum(1), torch.ones(64)))
    True
    """
    places = torch.linspace(0, knots - 3, size, dtype=torch.float64)
    distance = (places[:, None] - torch.arange(-1, knots - 1, dtype=torch.float64)).abs()
    near = 2 / 3 - distance**2 + distance**3 / 2
    far = (2 - distance).clamp(min=0) ** 3 / 6
    return torch.where(distance < 1, near, far).float()


def _affine(n: int, rng: torch.Generator, stretch: float, angle: float) -> Tensor:
    """Matrices (n, 3, 3): rotations about the three axes times stretches."""
    turn = angle * torch.randn(n, 3, generator=rng)
    scale = torch.exp(stretch * torch.randn(n, 3, generator=rng))
    skew = torch.zeros(n, 3, 3)
    skew[:, 0, 1], skew[:, 0, 2], skew[:, 1, 2] = turn.unbind(1)
    rotation: Tensor = torch.linalg.matrix_exp(skew - skew.transpose(1, 2))
    return rotation @ torch.diag_embed(scale)


def deformed(
    levels: Tensor,
    n: int,
    size: int,
    seed: int,
    stream: str,
    *,
    stretch: float = 0.05,
    angle: float = 0.06,
    bend: float = 0.04,
    knots: int = 7,
    chunk: int = 8,
) -> Tensor:
    """Deform the shape `levels` (k, d, d, d) `n` times and sample it: booleans (n, size, size, size).

    `stretch` is the deviation of the logarithm of the three stretches, `angle` of the rotations in radians, `bend` of
    the spline coefficients in half widths of the volume. Shape i depends on `seed`, `stream` and i alone.

    >>> from landscope.data.sets.skull_volumes import phantom_skull
    >>> deformed(phantom_skull(32), 2, 16, seed=0, stream="train").shape
    torch.Size([2, 16, 16, 16])
    """
    basis = spline_basis(size, knots)
    line = torch.linspace(-1 + 1 / size, 1 - 1 / size, size)
    grid = torch.stack(torch.meshgrid(line, line, line, indexing="ij")[::-1], -1)
    out = torch.empty(n, size, size, size, dtype=torch.bool)
    draws = [generator(seed, "deform", stream, i) for i in range(n)]
    affine = torch.cat([_affine(1, rng, stretch, angle) for rng in draws]) if n else torch.empty(0, 3, 3)
    # Neighbouring splines overlap, so a field of deviation `bend` needs larger coefficients.
    gain = bend / math.sqrt(float(basis.square().sum(1).mean()) ** 3)
    for start in range(0, n, chunk):
        rngs = draws[start : start + chunk]
        coefficients = gain * torch.stack([torch.randn(3, knots, knots, knots, generator=rng) for rng in rngs])
        field = torch.einsum("ncabd,za,yb,xd->nzyxc", coefficients, basis, basis, basis)
        places = torch.einsum("zyxi,nji->nzyxj", grid, affine[start : start + chunk]) + field
        # The border value is repeated outside, where every level function is positive.
        sampled = grid_sample(
            levels.expand(len(rngs), *levels.shape), places, padding_mode="border", align_corners=False
        )
        out[start : start + chunk] = (sampled < 0).all(1)
    return out
