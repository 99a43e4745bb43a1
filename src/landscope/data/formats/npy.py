"""numpy's own files, of plain numbers: the header is compared with what follows it before any memory is taken."""

from __future__ import annotations

import io
import math
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from landscope.core.errors import DamagedFileError
from landscope.data.places import LARGEST

__all__ = ["parse_npy", "parse_npz"]


def parse_npy(content: bytes, path: Path) -> npt.NDArray[np.generic]:
    """Array in the `.npy` file `content`, which was read from `path`."""
    if zipfile.is_zipfile(io.BytesIO(content)) and content[:2] == b"PK":
        raise DamagedFileError(f"{path}: a .npz archive where a .npy file was expected")
    try:
        shape, fortran, dtype, start = _header(content)
    except Exception as error:  # the header is a Python literal, and numpy raises whatever a broken one leads it into
        raise DamagedFileError(f"{path}: no readable .npy file ({type(error).__name__}: {error})") from error
    if dtype.kind not in "biufc":
        raise DamagedFileError(f"{path}: holds an array of {dtype}; only plain numbers are read")
    needed, there = math.prod(shape) * dtype.itemsize, len(content) - start
    if min(shape, default=0) < 0 or max(shape, default=0) > LARGEST or len(shape) > 32 or there < needed:
        raise DamagedFileError(
            f"{path}: its header promises an array of shape {_short(shape)} in {needed:,} bytes, {there:,} follow; "
            "it is truncated or damaged"
        )
    flat = np.frombuffer(content[start : start + needed], dtype)
    return flat.reshape(shape, order="F" if fortran else "C").copy(order="K")


def _header(content: bytes) -> tuple[tuple[int, ...], bool, np.dtype[np.generic], int]:
    """Shape, whether the first index runs fastest, type, and where the numbers begin."""
    stream = io.BytesIO(content)
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0), (3, 0)):
        raise ValueError(f"version {version} of the format is not known")
    # Version 3 is version 2 with names of fields in UTF-8, which plain numbers do not have.
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = read(stream)
    return shape, fortran, dtype, stream.tell()


def _short(shape: tuple[int, ...]) -> str:
    text = repr(shape)
    return text if len(text) < 80 else f"{text[:80]}…"


def parse_npz(content: bytes, path: Path, key: str) -> npt.NDArray[np.generic]:
    """Array named `key` in the `.npz` file `content`, which was read from `path`."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            name = next((name for name in (f"{key}.npy", key) if name in archive.namelist()), None)
            size = archive.getinfo(name).file_size if name is not None else 0
            member = archive.read(name) if name is not None and size <= LARGEST else b""
    except Exception as error:  # zipfile raises whatever a broken archive leads it into
        raise DamagedFileError(f"{path}: no readable .npz file ({type(error).__name__}: {error})") from error
    if name is None:
        raise DamagedFileError(f"{path}: holds no array named {key!r}")
    if size > LARGEST:
        raise DamagedFileError(f"{path}: {name} unpacks to {size:,} bytes, more than the {LARGEST:,} that are read")
    return parse_npy(member, path)
