"""MATLAB files as SVHN has them: images `X` (32, 32, 3, n) and labels `y` (n, 1) with 10 for the digit 0."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import numpy.typing as npt
import scipy.io

from landscope.core.errors import DamagedFileError

__all__ = ["parse_svhn"]


def parse_svhn(content: bytes, path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Images (n, 3, 32, 32) and labels 0 … 9 of the file `content`, which was read from `path`."""
    try:
        # The stubs know of paths only; open files are documented as well.
        variables = scipy.io.loadmat(io.BytesIO(content), variable_names=["X", "y"])  # type: ignore[arg-type]
    except Exception as error:  # scipy's reader raises whatever a broken file leads it into
        raise DamagedFileError(f"{path}: no readable MATLAB file ({type(error).__name__}: {error})") from error
    images, labels = variables.get("X"), variables.get("y")
    if not (isinstance(images, np.ndarray) and images.dtype == np.uint8 and images.shape[:3] == (32, 32, 3)):
        raise DamagedFileError(f"{path}: 'X' is no array of bytes of shape (32, 32, 3, n)")
    if images.ndim != 4 or not (isinstance(labels, np.ndarray) and labels.size == images.shape[3]):
        raise DamagedFileError(f"{path}: 'y' does not hold one label for each image")
    flat = labels.reshape(-1).astype(np.int64)
    if flat.size and not 1 <= flat.min() <= flat.max() <= 10:
        raise DamagedFileError(f"{path}: labels run from {flat.min()} to {flat.max()}, outside 1 … 10")
    return np.ascontiguousarray(images.transpose(3, 2, 0, 1)), flat % 10
