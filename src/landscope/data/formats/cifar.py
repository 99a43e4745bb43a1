"""CIFAR's two published forms: fixed-length binary records, and pickled dictionaries from Python 2.

A binary record is one label byte (CIFAR-100: coarse, then fine) and 3,072 bytes of red, green and blue planes. A
pickled batch is `{"data": uint8 (n, 3072), "labels" | "fine_labels": [...]}`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from landscope.core.errors import DamagedFileError
from landscope.data.safe_pickle import loads

__all__ = ["Labels", "parse_binary", "parse_python"]

Labels = Literal["labels", "coarse_labels", "fine_labels"]
_PIXELS = 3 * 32 * 32


def _checked_labels(labels: Sequence[int], n_classes: int, path: Path) -> npt.NDArray[np.int64]:
    if wrong := sum(not 0 <= label < n_classes for label in labels):
        raise DamagedFileError(
            f"{path}: {wrong:,} of {len(labels):,} labels are outside 0 … {n_classes - 1}; the file is damaged or of another set"
        )
    return np.asarray(labels, np.int64)


def parse_binary(
    content: bytes, path: Path, kind: Labels, n_classes: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Images (n, 3, 32, 32) and labels of the binary batch `content`, which was read from `path`."""
    header = 1 if kind == "labels" else 2
    if not content or len(content) % (header + _PIXELS):
        raise DamagedFileError(
            f"{path}: {len(content):,} bytes are no whole number of records of {header + _PIXELS:,} bytes; the file is "
            "truncated or of another set"
        )
    records = np.frombuffer(content, np.uint8).reshape(-1, header + _PIXELS)
    labels = records[:, 1 if kind == "fine_labels" else 0].tolist()
    return records[:, header:].reshape(-1, 3, 32, 32), _checked_labels(labels, n_classes, path)


def parse_python(
    content: bytes, path: Path, kind: Labels, n_classes: int
) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Images (n, 3, 32, 32) and labels of the pickled batch `content`, which was read from `path`."""
    batch = loads(content, path)
    if not isinstance(batch, dict):
        raise DamagedFileError(f"{path}: holds a {type(batch).__name__} where a batch is a dictionary")
    data, labels = batch.get("data"), batch.get(kind)
    if not (isinstance(data, np.ndarray) and data.dtype == np.uint8 and data.ndim == 2 and data.shape[1] == _PIXELS):
        raise DamagedFileError(f"{path}: 'data' is no array of bytes of shape (n, {_PIXELS})")
    if not (isinstance(labels, list) and len(labels) == len(data) and all(type(label) is int for label in labels)):
        raise DamagedFileError(f"{path}: {kind!r} is no list of {len(data)} whole numbers")
    return data.reshape(-1, 3, 32, 32), _checked_labels(labels, n_classes, path)
