"""Street View House Numbers (Netzer et al. 2011), the cropped digits: 73,257 + 26,032 colour images of 32×32."""

from __future__ import annotations

import math
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from landscope.core.errors import DamagedFileError
from landscope.data.dataset import DataSet, Raw, Split
from landscope.data.files import LARGEST, Download, Files, Version

_HOME = "http://ufldl.stanford.edu/housenumbers/"
_FILES = {
    "train_32x32.mat": "md5:e26dedcc434d2e4c54c9b2d4a06d8373",
    "test_32x32.mat": "md5:eb5a983be6a315427106f1b164d9cef3",
}


def _read(files: Files) -> Raw:

    def split(name: str) -> Split:
        images, labels = parse_svhn(files.read(name), files.path(name))
        return Split(torch.from_numpy(images), torch.from_numpy(labels))

    return Raw(train=split("train_32x32.mat"), evaluation=split("test_32x32.mat"), classes=tuple("0123456789"))


SVHN = DataSet(
    name="svhn",
    title="SVHN (cropped digits)",
    task="classification",
    read=_read,
    licence="non-commercial use",
    citation="Y. Netzer, T. Wang, A. Coates, A. Bissacco, B. Wu, A. Y. Ng. Reading Digits in Natural Images with "
    "Unsupervised Feature Learning. NIPS Workshop on Deep Learning and Unsupervised Feature Learning, 2011.",
    source=_HOME,
    versions=(
        Version(
            name="mat",
            folders=("svhn", "SVHN", ""),
            files=dict(_FILES),
            downloads=tuple(Download(_HOME + name, f"svhn/{name}", checksum) for name, checksum in _FILES.items()),
        ),
    ),
)


# MATLAB files as SVHN has them: images `X` (32, 32, 3, n) and labels `y` (n, 1) with 10 for the digit 0.
#
# Read without a library, because those that read every kind of MATLAB file crash on some that are damaged. A file of level 5
# is 128 bytes of header and one element for each variable. An element is a type, a size and that many bytes; those of variables
# may be zipped as a whole. A variable has four: flags, dimensions, name, and the numbers in the order of Fortran, with a type
# of their own. Short elements keep type and size in the first four bytes, and the data in the next four.


_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_MATRIX, _ZIPPED = 14, 15
_NUMERIC_CLASSES = range(6, 16)
_COMPLEX = 0x800
_HEADER = 4096
"""Bytes of a zipped variable that are unzipped to learn its name."""


def parse_svhn(content: bytes, path: Path) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Images (n, 3, 32, 32) and labels 0 … 9 of the file `content`, which was read from `path`."""
    try:
        variables = {name: _numbers(body, order) for name, body, order in _variables(content, {"X", "y"})}
    except (ValueError, struct.error, zlib.error) as error:
        raise DamagedFileError(f"{path}: not a readable MATLAB file of level 5 ({error})") from error
    images, labels = variables.get("X"), variables.get("y")
    if images is None or images.dtype != np.uint8 or images.ndim != 4 or images.shape[:3] != (32, 32, 3):
        raise DamagedFileError(f"{path}: 'X' is not an array of bytes of shape (32, 32, 3, n)")
    if labels is None or labels.size != images.shape[3]:
        raise DamagedFileError(f"{path}: 'y' does not hold one label for each image")
    flat = labels.reshape(-1)
    if not np.isin(flat, np.arange(1, 11)).all():
        raise DamagedFileError(
            f"{path}: labels run from {flat.min()} to {flat.max()}, outside 1 … 10, or are not whole"
        )
    return np.ascontiguousarray(images.transpose(3, 2, 0, 1)).astype(np.uint8), flat.astype(np.int64) % 10


def _variables(content: bytes, wanted: set[str]) -> Iterator[tuple[str, bytes, str]]:
    """Name, body and byte order of those variables of a file that are wanted."""
    order = {b"IM": "<", b"MI": ">"}.get(content[126:128])
    if order is None or struct.unpack_from(f"{order}H", content, 124)[0] != 0x0100:
        raise ValueError("its header is not one of level 5")
    at = 128
    while at < len(content):
        kind, start, stop, _ = _element(content, at, order)
        if kind == _ZIPPED:
            head = zlib.decompressobj().decompress(content[start:stop], _HEADER)
            if _name(head, order) in wanted:
                yield (
                    _name(head, order),
                    _unzipped(content[start:stop], struct.unpack_from(f"{order}I", head, 4)[0]),
                    order,
                )
        elif kind == _MATRIX and (name := _name(content[at : at + _HEADER], order)) in wanted:
            yield name, content[start:stop], order
        at = stop


def _element(content: bytes, at: int, order: str) -> tuple[int, int, int, int]:
    """Type of the element at a place, where its data begin and end, and where the next one is."""
    kind, size = struct.unpack_from(f"{order}II", content, at)
    start, room = at + 8, 8
    if kind >> 16:
        kind, size, start, room = kind & 0xFFFF, kind >> 16, at + 4, 4
    if size > len(content) - start or (room == 4 and size > 4):
        raise ValueError(f"an element promises {size:,} bytes, {len(content) - start:,} follow; it is truncated")
    return kind, start, start + size, start + (4 if room == 4 else -(-size // 8) * 8)


def _name(head: bytes, order: str) -> str:
    """Name of the variable that begins so, empty where there is none."""
    if struct.unpack_from(f"{order}I", head)[0] != _MATRIX:
        return ""
    at = 8
    for _ in range(2):  # flags and dimensions
        *_, at = _element(head, at, order)
    _, start, stop, _ = _element(head, at, order)
    return head[start:stop].decode("latin-1")


def _unzipped(body: bytes, size: int) -> bytes:
    if size > LARGEST:
        raise ValueError(f"a variable promises {size:,} bytes")
    stream = zlib.decompressobj()
    whole = stream.decompress(body, 8 + size)
    if len(whole) < 8 + size or stream.decompress(stream.unconsumed_tail, 1) or not stream.eof:
        raise ValueError(f"a zipped variable does not unzip to the {size:,} bytes that it promises")
    return whole[8:]


def _numbers(body: bytes, order: str) -> npt.NDArray[np.generic]:
    """The array in the body of a variable."""
    _, flags, _, at = _element(body, 0, order)
    flag = struct.unpack_from(f"{order}I", body, flags)[0]
    _, start, stop, at = _element(body, at, order)
    shape = struct.unpack_from(f"{order}{(stop - start) // 4}i", body, start)
    *_, at = _element(body, at, order)  # its name
    kind, start, stop, _ = _element(body, at, order)
    if flag & 0xFF not in _NUMERIC_CLASSES or flag & _COMPLEX or kind not in _NUMBERS or not 2 <= len(shape) <= 32:
        raise ValueError("a variable is not an array of real numbers")
    dtype = np.dtype(order + _NUMBERS[kind])
    if min(shape) < 0 or math.prod(shape) * dtype.itemsize != stop - start:
        raise ValueError(f"an array of shape {shape} in {stop - start:,} bytes; it is damaged")
    return np.frombuffer(body[start:stop], dtype).reshape(shape, order="F")
