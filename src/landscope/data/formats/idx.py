"""The idx format of MNIST: two zero bytes, a type code, the number of dimensions, the sizes, the numbers.

All big-endian. Only unsigned bytes (type 0x08) occur in the sets read here.
"""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np
import numpy.typing as npt

from landscope.core.errors import DamagedFileError

__all__ = ["parse_idx"]


def parse_idx(content: bytes, path: Path, ndim: int) -> npt.NDArray[np.uint8]:
    """Array of `ndim` dimensions in the idx file `content`, which was read from `path`.

    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 2, 7, 9]), Path("labels"), 1)
    array([7, 9], dtype=uint8)
    """
    if len(content) < 4 + 4 * ndim:
        raise DamagedFileError(f"{path}: {len(content)} bytes are too few for an idx header of {ndim} dimensions")
    if content[:4] != bytes([0, 0, 8, ndim]):
        raise DamagedFileError(
            f"{path}: begins with {content[:4].hex(' ')} where an idx file of {ndim}-dimensional bytes begins with "
            f"00 00 08 {ndim:02x}"
        )
    shape = struct.unpack(f">{ndim}I", content[4 : 4 + 4 * ndim])
    expected, came = math.prod(shape), len(content) - 4 - 4 * ndim
    if came != expected:
        raise DamagedFileError(
            f"{path}: its header promises {'×'.join(map(str, shape))} = {expected:,} bytes, {came:,} follow; it is "
            + ("truncated" if came < expected else "too long")
        )
    return np.frombuffer(content, np.uint8, offset=4 + 4 * ndim).reshape(shape)
