"""numpy's own files, never with pickled objects inside."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from landscope.core.errors import DamagedFileError

__all__ = ["parse_npy", "parse_npz"]


def parse_npy(content: bytes, path: Path) -> npt.NDArray[np.generic]:
    """Array in the `.npy` file `content`, which was read from `path`."""
    try:
        array = np.load(io.BytesIO(content), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise DamagedFileError(f"{path}: no readable .npy file ({error})") from error
    if not isinstance(array, np.ndarray):
        raise DamagedFileError(f"{path}: a .npz archive where a .npy file was expected")
    return array


def parse_npz(content: bytes, path: Path, key: str) -> npt.NDArray[np.generic]:
    """Array named `key` in the `.npz` file `content`, which was read from `path`."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            if isinstance(arrays, np.ndarray) or key not in arrays:
                raise DamagedFileError(f"{path}: holds no array named {key!r}")
            return np.asarray(arrays[key])
    except (ValueError, EOFError, OSError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        if isinstance(error, DamagedFileError):
            raise
        raise DamagedFileError(f"{path}: no readable .npz file ({error})") from error
