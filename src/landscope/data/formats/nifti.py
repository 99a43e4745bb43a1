"""NIfTI-1 volumes, the single-file form (`.nii`, zipped or not), without a library.

The header has 348 bytes: sizes at 40, type code at 70, voxel spacing at 76, offset of the data at 108, slope and
intercept at 112 and 116, the magic `n+1` at 344. Its first number tells the byte order. A slope of 0, or one that is not
finite, means that the voxels are not scaled at all; an intercept that is NaN means none.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from landscope.core.errors import DamagedFileError

__all__ = ["Volume", "parse_nifti"]

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
        raise DamagedFileError(f"{path}: no single-file NIfTI-1 volume (header {content[:4].hex()}, no magic 'n+1')")
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
